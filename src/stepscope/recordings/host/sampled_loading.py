"""The input in the host's stacks, as py-spy and its kin sampled them: making batches in the thread
that trains, or waiting for the workers that make them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.system import HostStacks, HotSpot

MAKES = re.compile(r"(?:^|\.)__getitems?__$|collate")
IN_WORKER = re.compile(r"(?:^|\.)_worker_loop$")
WAITS = re.compile(r"(?:^|\.)_try_get_data$")
OPERATORS = "operators"
"""A profiler's name for the host's own time."""
LOADER = re.compile(r"enumerate\(DataLoader\)#")
SINGLE, MULTI = "_SingleProcess", "_MultiProcessing"
MIN_SAMPLED = 0.2
"""Share of the samples of the host's stacks, without a trace, from which it is reported; chosen
without recordings."""


class SampledLoading(Struct, frozen=True, kw_only=True):
    stacks: HostStacks
    makes: HotSpot | None
    """What makes samples or batches, and takes the most; of a worker's time it is not known."""
    in_worker: float
    """Share of the samples in workers of a DataLoader."""
    waits: float
    """Share of the samples that wait for a worker's batch."""

    @property
    def serial_share(self) -> float:
        """Share of the samples that make batches in a process that is no worker."""
        return 0.0 if self.makes is None else max(0.0, self.makes.total_share - self.in_worker)


def sampled_loading(auxiliary: Auxiliary) -> Iterator[SampledLoading]:
    for stacks in () if auxiliary.system is None else auxiliary.system.stacks:
        every = (*stacks.functions, *stacks.training)
        makes = [spot for spot in every if MAKES.search(spot.name)]
        yield SampledLoading(
            stacks=stacks,
            makes=max(makes, key=lambda spot: spot.total_share, default=None),
            in_worker=_share(every, IN_WORKER),
            waits=_share(every, WAITS),
        )


def _share(spots: tuple[HotSpot, ...], pattern: re.Pattern[str]) -> float:
    return max((spot.total_share for spot in spots if pattern.search(spot.name)), default=0.0)


DECODES = re.compile(
    r"(?:lib)?(?:turbo)?(?:jpeg|png|webp|tiff|avcodec|swscale|opencv|sndfile|flac)\w{0,40}[.-]|_imaging|"
    r"cv2\.|jsonloader|libarrow|simdjson"
)
"""Files of what decodes pictures, films, sounds and records."""
WORKER = "pt_data_worker"


def decoding(stacks: HostStacks) -> tuple[float, HotSpot] | None:
    """The share of the samples in decoders, and the hottest of these; None where it is not worth
    saying."""
    spots = [spot for spot in stacks.functions if spot.file and DECODES.search(spot.file)]
    share = sum(spot.self_share for spot in spots)
    if share < MIN_SAMPLED:
        return None
    return share, max(spots, key=lambda spot: spot.self_share)


def is_in_workers(stacks: HostStacks) -> bool:
    """Whether most samples are of a loader's workers, by the names of the threads."""
    mine = sum(each.share for each in stacks.threads if each.name.startswith(WORKER))
    return mine > 0 and mine >= sum(thread.share for thread in stacks.threads) / 2


def decoding_advice(code: str, stacks: HostStacks, share: float, hot: HotSpot) -> Advice:
    is_worker = code == "starved-loader"
    who = "workers decode" if is_worker else "process that trains decodes"
    return Advice(
        code=code,
        bound="data",
        summary=f"The {who} pictures or records in {share:.0%} of the host's {stacks.unit}.",
        action="decode smaller (draft mode, cropped), on the device (torchvision.io with "
        "device='cuda', DALI), or once beforehand"
        + ("; more workers" if is_worker else "; DataLoader(num_workers=...)"),
        evidence=(f"{hot.label}: {hot.self_share:.0%} of the {stacks.unit}", stacks.path),
        weight=share,
        weight_of=f"the host's {stacks.unit}",
    )


def decoders(auxiliary: Auxiliary, code: str) -> Iterator[Advice]:
    """Where decoding is what the host does: in the process that trains, or in its workers."""
    for stacks in () if auxiliary.system is None else auxiliary.system.stacks:
        found = decoding(stacks)
        if found is not None and (code == "starved-loader") == is_in_workers(stacks):
            yield decoding_advice(code, stacks, *found)


class TabledLoading(Struct, frozen=True, kw_only=True):
    """The loader's range in a profiler's printed table."""

    name: str
    num: int
    total_ns: float
    share: float
    """Share of the host's own time in all ranges and operators."""


def tabled_loading(auxiliary: Auxiliary, iterator: str) -> TabledLoading | None:
    """What `enumerate(DataLoader)` took by this kind of iterator; None where it is not worth
    saying."""
    report = auxiliary.kernels
    others = [] if report is None else [each for one in report.recordings for each in one.others]
    rows = [row for each in others if each.of == OPERATORS for row in each.rows]
    found = [row for row in rows if LOADER.match(row.name) and iterator in row.name]
    whole_ns, loader_ns = (sum(row.total_ns for row in some) for some in (rows, found))
    if not found or loader_ns < MIN_SAMPLED * whole_ns:
        return None
    num = sum(row.count for row in found)
    share = loader_ns / whole_ns
    return TabledLoading(name=found[0].name, num=num, total_ns=loader_ns, share=share)


def tabled_advice(code: str, found: TabledLoading, does: str, action: str) -> Advice:
    return Advice(
        code=code,
        bound="data",
        summary=f"The process that trains {does} for {found.share:.0%} of the host's time that "
        f"the table lists: {found.total_ns / found.num / 1e6:.1f} ms a batch.",
        action=action,
        evidence=(f"{found.name}: {found.num:,} batches, {found.total_ns / 1e6:.1f} ms",),
        weight=found.share,
        weight_of="the host's time in operators",
    )
