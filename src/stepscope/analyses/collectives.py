"""Which device work is communication between ranks."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyses.links import Links
from stepscope.core.trace import NONE, Bool, Kind, Trace

LIBRARY_KERNEL = re.compile(r"nccl|rccl|oneccl|hccl|msccl|nvshmem|deep_?ep::", re.IGNORECASE)
"""Kernels of the communication libraries, whatever their release calls them (ncclKernel, ncclDevKernel, ncclSymk, ...)."""

C10D_OP = re.compile(r"^(record_param_comms|c10d::|nccl:|rccl:|symm_mem::)")
"""What c10d records around a collective."""


def library_collectives(trace: Trace) -> Bool:
    """Mask of the kernels of a communication library, or marked as a collective by the recorder."""
    by_name = np.array([LIBRARY_KERNEL.search(name) is not None for name in trace.names], np.bool_)
    kernel = trace.is_kind(Kind.KERNEL)
    if len(trace) == 0:
        return kernel
    mask: Bool = kernel & (by_name[trace.name] | (trace.collective != NONE))
    return mask


def collective_kernels(trace: Trace, links: Links) -> Bool:
    """Mask of all kernels that move data between ranks: a library's, and those a c10d op launched directly (symmetric memory)."""
    library = library_collectives(trace)
    if len(trace) == 0:
        return library
    by_op = np.array([C10D_OP.match(name) is not None for name in trace.names], np.bool_)
    launched_by = (links.op != NONE) & by_op[trace.name[np.maximum(links.op, 0)]]
    mask: Bool = library | (trace.is_kind(Kind.KERNEL) & launched_by)
    return mask


def host_collectives(trace: Trace) -> Bool:
    """Mask of the host operators that carry a collective themselves (gloo): outermost marks such as `gloo:all_reduce`."""
    by_name = np.array([name.startswith(("gloo:", "mpi:", "ucc:")) for name in trace.names], np.bool_)
    if len(trace) == 0:
        return np.zeros(0, np.bool_)
    mask: Bool = by_name[trace.name] & trace.is_kind(Kind.OP, Kind.MARK)
    return mask
