"""The input in the host's stacks, as py-spy and its kin sampled them: making batches in the thread
that trains, or waiting for the workers that make them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.system import HostStacks, HotSpot

MAKES = re.compile(r"(?:^|\.)__getitems?__$|collate")
IN_WORKER = re.compile(r"(?:^|\.)_worker_loop$")
WAITS = re.compile(r"(?:^|\.)_try_get_data$")
MIN_SAMPLED = 0.2
"""Of the samples of the host's stacks, without a trace, in which it is worth saying; chosen without
recordings."""


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
        """Of the samples, that make batches in a process that is no worker."""
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
