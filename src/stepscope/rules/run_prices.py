"""What following a run's advice gives, less what stays of the part that it is about."""

from __future__ import annotations

from msgspec import Struct

from stepscope.core.run import RankMetadata, RunPart, RunPrice, WholeRun


class Policy(Struct, frozen=True, kw_only=True):
    """Costs of torch.distributed.checkpoint.async_save, by the job's own clock on Neoverse N1
    cores, torch 2.13, 3 to 98 MB; docs/benchmarks.md."""

    copy_ns: int = 1_500_000
    """Nanoseconds to copy a state of no size in the step."""
    slow_copy: float = 1.2
    copy: float = 2.5
    fast_copy: float = 6.0
    """Bytes a nanosecond into memory that is fresh: 1.5 to 5.6 measured."""
    writer_ns: int = 15_000_000
    """Nanoseconds on a core to plan the save and to write its metadata: more than the plain save is
    there."""
    slow_writer: float = 2.0
    """Times the plain save that one beside busy steps may take."""
    most_held_up: float = 0.9


POLICY = Policy()


def price_of_saves(run: WholeRun, part: RunPart, mine: RankMetadata | None) -> RunPrice | None:
    """Beside the steps. The copy stays in the step; the writer takes a core, which steps lack where
    none is free; and the next save waits until it is through. None where that is not known."""
    if mine is None or mine.saves is None or not part.num:
        return None
    cores, free = mine.own_cores, _unused_cores(mine)
    if cores is None or free is None:
        return None
    saves, stretch = mine.saves, _stretch(mine)
    between_ns = run.step_ms * 1e6 * run.num_steps / part.num
    writer_ns = POLICY.writer_ns + saves.cpu_ns
    beside_ns = max(saves.once_ns, writer_ns * stretch)

    def stays(rate: float, stretched: float, taken_ns: float, written_ns: float) -> float:
        copied_ns = (POLICY.copy_ns + saves.size_bytes / rate) * stretched
        return copied_ns + taken_ns + max(written_ns - between_ns, 0.0)

    # All threads of a full machine give way to one more alike.
    taken_ns = writer_ns / max(cores, 1.0)
    return _price(
        part,
        most=stays(POLICY.slow_copy, stretch, taken_ns, POLICY.slow_writer * beside_ns),
        likely=stays(POLICY.copy, stretch, taken_ns * (1.0 - free), beside_ns),
        least=stays(POLICY.fast_copy, 1.0, 0.0, saves.once_ns),
    )


def price_of_kept_workers(part: RunPart, mine: RankMetadata) -> RunPrice | None:
    """The first batch of an epoch has still to be made: in no longer than a worker has for one,
    where workers keep up with the steps. It is likely what they are on a core for one; where epochs
    are too short to see that, half of the most."""
    stays = first_batch_ns(mine)
    if stays is None or not part.num:
        return None
    return _price(part, most=stays[1], likely=stays[0], least=0.0)


def first_batch_ns(mine: RankMetadata) -> tuple[float, float] | None:
    """What workers that stay take for it, likely and at most."""
    loader, steps = mine.loader, mine.steps
    if loader is None or not loader.num_workers or steps is None:
        return None
    batch_ns = steps.step_ns / max(steps.num_batches or 1.0, 1.0)
    most = loader.num_workers * batch_ns
    likely = most / 2
    if mine.children_cores is not None:
        likely = min(mine.children_cores * batch_ns * _stretch(mine), most)
    return likely, most


def _price(part: RunPart, *, most: float, likely: float, least: float) -> RunPrice:
    """Price of a part of the run, from what stays of it each time."""
    low, middle, high = (
        max(part.dur_ns - round((part.num or 0) * stays), 0) for stays in (most, likely, least)
    )
    return RunPrice(seconds=middle / 1e9, low_seconds=low / 1e9, high_seconds=high / 1e9)


def _stretch(mine: RankMetadata) -> float:
    """What a thread takes for a second on a core."""
    return 1.0 / (1.0 - min(mine.held_up_share or 0.0, POLICY.most_held_up))


def _unused_cores(mine: RankMetadata) -> float | None:
    """Cores that are not used, up to one."""
    if mine.free_cores is None or mine.cores_used is None:
        return None
    return min(max(mine.free_cores - mine.cores_used, 0.0), 1.0)
