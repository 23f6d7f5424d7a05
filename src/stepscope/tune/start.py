"""Where a search begins: what the diagnosis proposes, and what the tuning cache knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from stepscope.core.experiments.trials import Setup, Value
from stepscope.core.kept_diagnosis import read_diagnosis
from stepscope.experiments.verify.numerics_check import IDENTICAL, ROUNDING
from stepscope.tune.batch import changes_batch
from stepscope.tune.cache import CacheEntry, CacheKey, TuningCache
from stepscope.tune.knob_space import Knob
from stepscope.tune.policy import Start
from stepscope.tune.shapes.tuning import CACHE, DIAGNOSIS, Tuning

MAX_NEAR = 3
"""Settings of other versions that are worth a trial."""


def codes_of(file: Path) -> tuple[str, ...]:
    """The findings of a diagnosis as JSON, most costly first."""
    return tuple(finding.code for finding in read_diagnosis(file, "--from").findings)


def from_findings(codes: Sequence[str], num_ranks: int) -> list[Start]:
    """The fixes of all findings together, then each by itself, most costly first."""
    from stepscope.experiments.fix_values import fixes

    proposed = [fixes(code, num_ranks=max(1, num_ranks)) for code in codes]
    alone: list[Mapping[str, Value]] = [settings for settings in proposed if settings]
    together: dict[str, Value] = {}
    for settings in alone:
        together = {**settings, **together}
    starts = [together, *alone] if len(alone) > 1 else alone
    return [Start(settings=settings, origin=DIAGNOSIS) for settings in starts]


def key_of(what: str, knobs: Sequence[Knob], setup: Setup) -> CacheKey:
    """Where a search of this command keeps what it finds: the job, its size and the machine, as the
    baseline shows them."""
    sizes = {
        "batch": None if setup.samples is None else f"{setup.samples:g}",
        "ranks": setup.world_size,
        "parameters": setup.num_parameters,
    }
    shapes = " ".join(f"{name}={value}" for name, value in sizes.items() if value is not None)
    model = " ".join(word for word in (setup.model, setup.dataset) if word)
    names = ",".join(sorted(knob.name for knob in knobs))
    return CacheKey(
        what=f"train {what}" + (f" ({model})" if model else "") + f" over {names}",
        shapes=shapes or "not known",
        dtype="as the job has it",
        device=setup.device or "not known",
        versions=setup.versions,
    )


class Remembered(Struct, frozen=True, kw_only=True):
    """What the cache knows of a search, and how to say it."""

    starts: tuple[Start, ...]
    notes: tuple[str, ...]


def from_cache(cache: TuningCache, key: CacheKey) -> Remembered:
    """The settings to try first. What was found with other versions is said aloud, and is no more
    than a setting to start from."""
    starts: list[Start] = []
    notes: list[str] = []
    same = cache.find(key)
    if same is not None:
        starts.append(Start(settings=same.settings, origin=CACHE))
        notes.append(
            f"{cache} has a setting for this very job, found {same.at} with the same versions: it "
            "is tried first"
        )
    for entry in cache.near(key)[:MAX_NEAR]:
        starts.append(Start(settings=entry.settings, origin=CACHE))
        notes.append(
            f"{cache} has a setting found {entry.at} with other versions "
            f"({_versions(entry, key)}): it is tried, not taken over"
        )
    return Remembered(starts=tuple(starts), notes=tuple(notes))


def _versions(entry: CacheEntry, key: CacheKey) -> str:
    names = sorted({*entry.key.versions, *key.versions})
    apart = [name for name in names if entry.key.versions.get(name) != key.versions.get(name)]
    return ", ".join(
        f"{name} {entry.key.versions.get(name, 'absent')}, here {key.versions.get(name, 'absent')}"
        for name in apart
    )


def keep(cache: TuningCache, key: CacheKey, tuning: Tuning, setup: Setup) -> bool:
    """Puts a proven winner into the cache; says whether there was one. `setup` is the
    baseline's."""
    winner = tuning.winner
    if winner is None or winner.ms is None or not tuning.is_proven:
        return False
    # A baseline that does not repeat itself shows nothing to be the same, and steps that see other
    # data were not compared.
    is_same = tuning.check is not None and tuning.check.verdict in (IDENTICAL, ROUNDING)
    seen = () if tuning.verified is None else tuning.verified.differences
    is_other = changes_batch(winner.settings, setup) or any(
        difference.what == "data" for difference in seen
    )
    cache.add(
        CacheEntry(
            key=key,
            settings=winner.settings,
            ns=winner.ms * 1e6,
            baseline_ns=None if tuning.baseline.ms is None else tuning.baseline.ms * 1e6,
            checked=is_same and not is_other,
        )
    )
    return True
