"""The speedup that a diagnosis predicted for a fix, to be compared with what the fix gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.experiments.experiment import Prediction
from stepscope.core.kept_diagnosis import read_diagnosis
from stepscope.errors import UsageError
from stepscope.protocol.run_folder import DIAGNOSIS_FILE

if TYPE_CHECKING:
    from stepscope.cli.verify.options import Judged


def read_prediction(given: Judged, codes: Sequence[str], knobs: Iterable[str]) -> Prediction | None:
    """Prediction from --predicted, or the finding in --from that these codes name or one of these
    settings is for."""
    finding = given.finding
    if given.predicted is not None and given.predicted_by is not None:
        raise UsageError(
            "--predicted gives the speedup itself and --from says where it stands; leave one out"
        )
    if given.predicted is not None:
        return Prediction(value=given.predicted, source="you")
    if given.predicted_by is None:
        if finding is not None:
            raise UsageError(
                f"--finding {finding} names a finding, and --from says where it stands: give both"
            )
        return None
    if finding is not None:
        return predicted_by(given.predicted_by, (finding,))
    return predicted_by(given.predicted_by, codes or fixed(tuple(knobs), given.predicted_by))


def predicted_by(path: Path, codes: Sequence[str]) -> Prediction:
    """Prediction of the finding with this code, in a diagnosis as JSON or in a run that keeps
    one."""
    file = path / DIAGNOSIS_FILE if path.is_dir() else path
    findings = {finding.code: finding for finding in read_diagnosis(file, "--from").findings}
    if len(codes) != 1:
        present = ", ".join(findings) or "it has none"
        raise UsageError(
            "--from needs one finding to look for: --finding CODE (or --apply CODE), one of "
            f"those in {file}: {present}"
        )
    finding = findings.get(codes[0])
    if finding is None:
        raise UsageError(
            f"{file} has no finding {codes[0]}; it has {', '.join(findings) or 'none'}"
        )
    return Prediction(
        value=finding.predicted_speedup,
        low=finding.predicted_low,
        high=finding.predicted_high,
        source=f"the diagnosis ({finding.code})",
    )


def fixed(knobs: Sequence[str], path: Path) -> tuple[str, ...]:
    """The codes in the diagnosis that one of these settings fixes, for --apply KNOB=VALUE."""
    from stepscope.protocol.settings import SETTINGS

    file = path / DIAGNOSIS_FILE if path.is_dir() else path
    can = {code for knob in knobs for code in SETTINGS[knob].fixes}
    findings = read_diagnosis(file, "--from").findings
    return tuple(finding.code for finding in findings if finding.code in can)
