"""What a rank that runs holds and where it is, by the last that it wrote:
RUN/rank-N/samples.jsonl and steps.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepscope.analyses.run.samples import Sample
from stepscope.protocol.untrusted import objects_at, whole
from stepscope.readers.run_folder.tail import RankTail


def device_bytes(sample: Sample) -> int | None:
    """Memory that the rank holds on its devices:
    what torch has reserved, else what the driver says is used."""
    reserved = _sum(
        whole(allocator.get("reserved_bytes")) for allocator in objects_at(sample, "allocators")
    )
    if reserved is not None:
        return reserved
    return _sum(
        whole(device.get("gpu_memory_used_bytes")) for device in objects_at(sample, "devices")
    )


def device_total_bytes(sample: Sample) -> int | None:
    """All memory of the rank's devices."""
    return _sum(
        whole(device.get("gpu_memory_total_bytes")) for device in objects_at(sample, "devices")
    )


def usual_ns(row: Mapping[str, int | None]) -> int | None:
    """How long a step took that is like the others: no profiler, no checkpoint.
    By the device's clock if it was read."""
    if row["state"] != 0 or row["save_ns"]:
        return None
    return row["device_ns"] or row["dur_ns"] or None


def last_step(tail: RankTail) -> int | None:
    """The last step that the rank has written down."""
    steps = [row["step"] for row in tail.rows[-1:]] + [
        whole(sample.get("step")) for sample in tail.samples[-1:]
    ]
    return max((step for step in steps if step is not None), default=None)


def _sum(sizes: Iterable[int | None]) -> int | None:
    measured = [size for size in sizes if size is not None]
    return sum(measured) if measured else None
