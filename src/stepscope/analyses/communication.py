"""Which device work is communication between ranks."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyses.grouping import matching
from stepscope.analyses.links import Links
from stepscope.core.trace import NONE, Bool, Kind, Trace

LIBRARY_KERNEL = re.compile(r"nccl|rccl|oneccl|hccl|msccl|nvshmem|deep_?ep::", re.IGNORECASE)
"""Kernels of the communication libraries, whatever their release calls them (ncclKernel,
ncclDevKernel, ncclSymk, ...)."""

C10D_OP = re.compile(r"^(record_param_comms|c10d::|nccl:|rccl:|symm_mem::)")
"""What c10d records around a collective."""

HOST_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc):")


def library_collectives(trace: Trace) -> Bool:
    """Mask of the kernels of a communication library, or marked as a collective by the recorder."""
    mask: Bool = trace.is_kind(Kind.KERNEL) & (
        matching(trace, LIBRARY_KERNEL) | (trace.collective != NONE)
    )
    return mask


def collective_kernels(trace: Trace, links: Links) -> Bool:
    """Mask of all kernels that move data between ranks:
    a library's, and those a c10d op launched directly (symmetric memory)."""
    library = library_collectives(trace)
    if len(trace) == 0:
        return library
    launched_by = (links.op != NONE) & matching(trace, C10D_OP)[np.maximum(links.op, 0)]
    mask: Bool = library | (trace.is_kind(Kind.KERNEL) & launched_by)
    return mask


def host_collectives(trace: Trace) -> Bool:
    """Mask of the host ranges that carry a collective themselves (gloo, MPI, UCC):
    marks such as `gloo:all_reduce`."""
    mask: Bool = trace.is_kind(Kind.OP, Kind.MARK) & matching(trace, HOST_COLLECTIVE)
    return mask
