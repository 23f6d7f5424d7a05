"""Where the peak goes, from all of it down to what was achieved: a rank's median step, and those of
all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.facts import PARTS, Facts, RankFacts
from stepscope.core.peak import ACHIEVED, ComputeSplit, GivenWork, PeakWaterfall, waterfall_parts
from stepscope.core.recordings.training_log import TrainingLog


class Clock(Struct, frozen=True, kw_only=True):
    """An SM's clock at work, and the highest that its device has."""

    mhz: float
    max_mhz: float


def with_waterfalls(facts: Facts) -> Facts:
    """The facts with the waterfall of each rank and of the job."""
    ranks = tuple(
        replace(rank, peak_waterfall=rank_waterfall(rank, _clock(facts, rank.rank)))
        for rank in facts.ranks
    )
    made = [rank.peak_waterfall for rank in ranks if rank.peak_waterfall is not None]
    return replace(facts, ranks=ranks, peak_waterfall=job_waterfall(made))


def rank_waterfall(rank: RankFacts, clock: Clock | None = None) -> PeakWaterfall | None:
    """Waterfall of the median step, or of the two in the middle."""
    split, chosen = rank.compute_split, rank.steps.median_windows
    if rank.partition is None or split is None or not chosen:
        return None
    parts = {part: sum(rank.partition.parts[part][at] for at in chosen) for part in PARTS}
    if parts["comms_transfer"] and not rank.partition.waits_split:
        parts.pop("comms_wait")
    compute = parts.pop("compute")
    kernels = {part: sum(values[at] for at in chosen) for part, values in split.parts.items()}
    assert sum(kernels.values()) == compute, "the kernels' parts are not the step's compute"
    lost = None if clock is None else _clock_loss(split, chosen, clock)
    if lost is not None:
        kernels["clock"] = min(lost, kernels["below_peak"])
        kernels["below_peak"] -= kernels["clock"]
    total = sum(rank.partition.totals[at] for at in chosen)
    is_least = rank.roofline.model_flops is None
    return PeakWaterfall(
        device=split.device,
        precision=split.precision,
        peak_flops=split.peak_flops,
        num_ranks=1,
        num_steps=len(chosen),
        total_ns=total,
        parts=waterfall_parts(parts | kernels, total),
        achieved=_share(kernels.get(ACHIEVED), total, is_least),
        is_least=is_least,
        source="trace",
    )


def job_waterfall(ranks: Sequence[PeakWaterfall]) -> PeakWaterfall | None:
    """All ranks' steps together, each rank with as many."""
    if not ranks:
        return None
    num_steps = lcm(*(rank.num_steps for rank in ranks))
    parts: dict[str, int] = {}
    for rank in ranks:
        for part in rank.parts:
            parts[part.what] = parts.get(part.what, 0) + part.ns * (num_steps // rank.num_steps)
    total = sum(parts.values())
    first, is_least = ranks[0], any(rank.is_least for rank in ranks)
    peak = (first.device, first.precision, first.peak_flops)
    is_one = all((rank.device, rank.precision, rank.peak_flops) == peak for rank in ranks)
    return PeakWaterfall(
        device=first.device if is_one else None,
        precision=first.precision if is_one else None,
        peak_flops=first.peak_flops if is_one else None,
        num_ranks=len(ranks),
        num_steps=num_steps,
        total_ns=total,
        parts=waterfall_parts(parts, total),
        achieved=_share(parts.get(ACHIEVED), total, is_least),
        is_least=is_least,
        source=first.source,
    )


def log_waterfall(
    log: TrainingLog, step_ns: int | None, work: GivenWork | None
) -> PeakWaterfall | None:
    """Waterfall of a log alone: what was achieved, and all else. By the model that was given; else
    by the TFLOP/s that the log states, where the device was given; else by the log's own MFU."""
    share = _share_of_log(log, step_ns, work)
    if step_ns is None or share is None or not 0 <= share <= 1:
        return None
    achieved = round(share * step_ns)
    return PeakWaterfall(
        device=None if work is None else work.device,
        precision=None if work is None else work.precision,
        peak_flops=None if work is None else work.peak_flops,
        num_ranks=1,
        num_steps=1,
        total_ns=step_ns,
        parts=waterfall_parts({"unexplained": step_ns - achieved, ACHIEVED: achieved}, step_ns),
        achieved=share,
        is_least=False,
        source="log",
    )


def _share_of_log(log: TrainingLog, step_ns: int | None, work: GivenWork | None) -> float | None:
    """Share of the peak that a log achieved."""
    if work is not None and work.step_flops is not None:
        return work.step_flops / work.peak_flops / (step_ns * 1e-9) if step_ns else None
    if work is not None:
        rates = [each.tflops.value for each in log.logs if each.tflops is not None]
        return median(rates) * 1e12 / work.peak_flops if rates else None
    shares = [each.mfu.value for each in log.logs if each.mfu is not None]
    return median(shares) if shares else None


def _share(achieved_ns: int | None, total_ns: int, is_least: bool) -> float | None:
    """None where nothing is known of the model's FLOPs."""
    if achieved_ns is None or not total_ns or (is_least and not achieved_ns):
        return None
    return achieved_ns / total_ns


def peak_clock_mhz(peak_flops: float, num_sms: int, max_mhz: float) -> float:
    """The clock that a datasheet's peak is stated at, which may be below the highest (1830 of an
    H100's 1980 MHz): an SM does a power of two of FLOPs a cycle, the least that needs no more than
    the highest clock."""
    mhz = peak_flops / num_sms / 1e6
    while mhz > max_mhz * 1.01:
        mhz /= 2
    return mhz


def _clock_loss(split: ComputeSplit, chosen: Sequence[int], clock: Clock) -> int | None:
    """What kernels that arithmetic limits would not have taken at the peak's clock."""
    if split.peak_flops is None or split.num_sms is None:
        return None
    slower = 1 - clock.mhz / peak_clock_mhz(split.peak_flops, split.num_sms, clock.max_mhz)
    return round(sum(split.arithmetic_ns[at] for at in chosen) * max(slower, 0.0))


def _clock(facts: Facts, rank: int) -> Clock | None:
    """Clock as the run sampled it on this rank; else as a recording of the only device has it."""
    metadata = None if facts.run is None else facts.run.by_rank.get(rank)
    sample = None if metadata is None else metadata.device
    if sample is not None and sample.sm_clock_mhz and sample.max_sm_clock_mhz:
        return Clock(mhz=sample.sm_clock_mhz, max_mhz=sample.max_sm_clock_mhz)
    system = None if facts.auxiliary is None else facts.auxiliary.system
    working = [] if system is None else [d for d in system.devices if d.sm_clock_working_mhz]
    if len(working) != 1 or len(facts.ranks) != 1:
        return None
    spread, most = working[0].sm_clock_working_mhz, working[0].max_sm_clock_mhz
    return None if spread is None or not most else Clock(mhz=spread.median, max_mhz=most)
