"""How far ahead FSDP gathers parameters:
the modules that compute between a gather's launch and its use.

In the order the host launches (G gathers, U uses a module's parameters, c computes):

    G1 U1 c1 G2 U2 c2 G3 U3 c3        none: each gather is launched when it is needed
    G1 U1 G2 c1 U2 G3 c2 U3 c3        1
    G1 U1 G2 G3 c1 U2 G4 c2 U3 c3     2
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from stepscope.analyses.grouping import matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import NONE, Int64, Kind

GATHER = re.compile(r"^FSDP::all_gather(?: \((.*)\))?$")
USE = re.compile(r"^FSDP::all_gather_copy_out(?: \((.*)\))?$")
"""FSDP2 marks both, with the name of the module whose
parameters they are (torch/distributed/fsdp/_fully_shard)."""


def gathers_ahead(context: RankContext, around: Int64) -> Int64:
    """Number of modules further that each launch of a collective was prefetched; NONE where FSDP
    did not mark it."""
    trace = context.trace
    gather = ancestor_with(
        context.links.parent, around, matching(trace, GATHER) & trace.is_kind(Kind.MARK)
    )
    ahead = np.full(len(around), NONE, np.int64)
    if not (gather != NONE).any():
        return ahead
    use = np.flatnonzero(matching(trace, USE) & trace.is_kind(Kind.MARK))
    used = trace.start_ns[use]
    of_module: dict[str | None, list[int]] = defaultdict(list)
    for event in use.tolist():
        of_module[_module(USE, trace.names[trace.name[event]])].append(int(trace.start_ns[event]))
    launched = _compute_launches(context)
    for i in np.flatnonzero(gather != NONE).tolist():
        begun, done = int(trace.start_ns[gather[i]]), int(trace.end_ns[gather[i]])
        mine = [
            start
            for start in of_module[_module(GATHER, trace.names[trace.name[gather[i]]])]
            if start >= done
        ]
        if mine:
            first = np.searchsorted(used, begun, "right")
            own = np.searchsorted(used, min(mine), "left")
            computes = np.searchsorted(launched, done, "left") < np.searchsorted(
                launched, used[first], "left"
            )
            ahead[i] = own - first + int(computes)
    return ahead


def _module(pattern: re.Pattern[str], name: str) -> str | None:
    match = pattern.match(name)
    return None if match is None else match[1]


def _compute_launches(context: RankContext) -> Int64:
    """When the host launched each kernel that is no collective, sorted."""
    launch = context.links.launch[context.trace.is_kind(Kind.KERNEL) & ~context.collective]
    launched: Int64 = np.sort(context.trace.start_ns[launch[launch != NONE]])
    return launched
