"""A report does not deny itself: `python -m benchmarks.agree` does the same over every trace."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.agree import Shown, cases_below, checked, violations
from stepscope.core.diagnosis import Verdict
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.terminal import to_text
from tests.scenarios import SCENARIOS
from tests.shared_data import DEMO, ROOT, lab_traces

SMALL = (
    "rank_traces/gloo_late_rank.slow",
    "rank_traces/gloo_late_rank.fixed",
    "rank_traces/pp_gpipe_w4.slow",
    "traces/pinn_tiny_kernels.fixed",
    "traces/mlp_looped_adam_big.fixed",
    "traces/table_trivial_loader.slow",
)


@pytest.mark.parametrize("name", SMALL)
def test_the_report_of_a_recorded_job_agrees_with_itself(name: str) -> None:
    paths = lab_traces(f"{name}.*")
    assert paths
    assert checked(name, paths, None) == []


def test_the_report_of_a_recorded_run_agrees_with_itself() -> None:
    assert checked("run", [ROOT / "tests" / "kept" / "run"], None) == []
    assert checked("demo", [DEMO], None) == []


def test_ranks_of_one_job_are_read_together(tmp_path: Path) -> None:
    for name in ("a.rank0.json", "a.rank1.json", "b.pt.trace.json.gz", "truth.json"):
        (tmp_path / name).touch()
    (tmp_path / "run" / "rank-0").mkdir(parents=True)
    (tmp_path / "run" / "run.json").touch()
    (tmp_path / "run" / "rank-0" / "window-3.pt.trace.json").touch()
    found = cases_below(tmp_path)
    assert sorted(len(paths) for paths in found.values()) == [1, 1, 2]


def shown(name: str, verdict: Verdict, text: str = "") -> Shown:
    diagnosis = msgspec.structs.replace(SCENARIOS[name](), verdict=verdict)
    said = to_text(diagnosis_document(diagnosis), width=400) + text
    return Shown(diagnosis=diagnosis, text=said, json=to_json(diagnosis), page=said)


def kinds(shown: Shown) -> set[str]:
    return {kind for kind, _ in violations(shown)}


def test_cards_that_deny_themselves_are_counted() -> None:
    first, *others = SCENARIOS["data_bound"]().findings
    assert first.predicted_speedup > 1.2

    def with_first(**changed: object) -> set[str]:
        findings = (msgspec.structs.replace(first, **changed), *others)
        diagnosis = msgspec.structs.replace(SCENARIOS["data_bound"](), findings=findings)
        said = to_text(diagnosis_document(diagnosis), width=400)
        return kinds(Shown(diagnosis=diagnosis, text=said, json=to_json(diagnosis), page=said))

    usual = with_first()
    assert with_first(evidence=("by hand: 1.1x",)) - usual == {"evidence"}
    assert with_first(evidence=("by hand: 1.1x (less: it fuses nothing)",)) == usual
    assert with_first(changes_training=True) - usual == ({"bounds"} if others else set())


def test_a_bound_that_is_not_the_largest_part_is_counted() -> None:
    words = "Bound by copies: without copies the step would be 40% shorter."
    verdict = Verdict(bound="transfer", summary=words, shares={"transfer": 0.4})
    assert "largest" in kinds(shown("healthy", verdict))


def test_parts_larger_than_their_whole_are_counted() -> None:
    sound = SCENARIOS["healthy"]().verdict
    assert "whole" not in kinds(shown("healthy", sound))
    assert "whole" in kinds(shown("healthy", sound, "the device has work for 126 of 121 ms"))
    assert "whole" in kinds(shown("healthy", sound, "\nhost  60 % in the loader, 51 % in backward"))


def test_kernels_without_a_device_are_counted() -> None:
    words = "Compute-bound: without arithmetic in kernels the step would be 90% shorter."
    verdict = Verdict(bound="compute", summary=words, shares={"compute": 0.9})
    assert "host" in kinds(shown("cpu_only", verdict))
