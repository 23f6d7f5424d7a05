"""What each allocation asked for.

The recorder has the block that it got, which is larger by up to 1 MB where a cached one was taken
and what was left of it was too small to be cut off: of a batch ten times as large, ten times too
much. The same operator on inputs of the same shapes asks for the same each time, so that the
smallest block that it got is the nearest to it.
"""

from __future__ import annotations

import numpy as np

from stepscope.analyses.memory.lifetimes import Lifetimes
from stepscope.core.trace import NONE, Int64, Trace


def requested_bytes(trace: Trace, operator: Int64, spans: Lifetimes) -> Int64:
    """`operator` made each allocation; NONE where that is not known."""
    known = np.flatnonzero((operator != NONE) & spans.is_made)
    ops = operator[known]
    order = np.lexsort((spans.start_ns[known], ops))
    known, ops = known[order], ops[order]
    is_first = np.concatenate([[True], ops[1:] != ops[:-1]])[: len(ops)]
    indices = np.arange(len(ops))
    nth = indices - np.maximum.accumulate(np.where(is_first, indices, 0))
    kinds = np.stack([trace.name[ops], trace.detail[ops], nth], axis=1)
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    least = np.full(int(kind.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, kind, spans.size[known])
    sizes: Int64 = spans.size.copy()
    sizes[known] = least[kind]
    return sizes
