"""Source locations: the line and the module that work comes from,
where Python frames were recorded (`with_stack=True`).

Work on the device was launched by a host event, and that stands in frames. Backward is launched by
autograd's own thread, where there are none: it comes from where the forward operator of the same
sequence number stands.

Python frames by their names: whose code a frame is, and how its line is written.

The recorder names a frame `path/file.py(123): function`. It cuts the folders of `sys.path` off, so
that an installed package and the standard library stand there as `torch/nn/modules/linear.py` and
`contextlib.py`. The line is the one the function begins at, or, for a frame that was open when the
recording began, the one it was at.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepscope.analyses.grouping import distinct
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.links import Links
from stepscope.analyses.steps.projection import (
    MODULE_FRAME,
    ForwardOps,
    forward_of,
    forward_ops,
    module_ranges,
)
from stepscope.core.diagnosis import SourceLocation
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace

FRAME = re.compile(
    r"^(?P<path>[^<].*\.pyw?|<ipython-input[^>]*>)\((?P<line>\d+)\): (?P<function>.+)$"
)
RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
"""What goes on after torch.compile broke off, named for the line it broke off at."""
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
STANDARD = re.compile(r"(^|/)lib/python3[^/]*/(?!site-packages|dist-packages)")
TORCH_TREE = re.compile(
    r"/torch/(_\w+|amp|autograd|cuda|distributed|fx|jit|nn|optim|profiler|utils)[/.]"
)
"""A torch that was built from source and lies elsewhere."""

PLUMBING = frozenset(
    {"torch", "functorch", "triton", "numpy", "tqdm", "stepscope", "_pytest", "pluggy", "debugpy"}
)
"""Packages whose lines say nothing about the run."""
LIBRARIES = frozenset({
    "PIL", "accelerate", "apex", "bitsandbytes", "composer", "cv2", "datasets", "deepspeed",
    "diffusers", "einops", "flash_attn", "flashinfer", "fsspec", "huggingface_hub", "ignite",
    "joblib", "lightning", "lightning_fabric", "liger_kernel", "mmcv", "mmengine", "monai",
    "pandas", "peft", "pytorch_lightning", "ray", "scipy", "sklearn", "tensorboard", "timm",
    "tokenizers", "torch_geometric", "torchaudio", "torchdata", "torchmetrics", "torchvision",
    "transformer_engine", "transformers", "trl", "vllm", "wandb", "webdataset", "xformers",
})  # fmt: skip
"""Installed packages that are known by name, once the recorder has cut their folder off."""
MAX_CHARACTERS = 60


class Owner(IntEnum):
    """Owner of the code of a frame."""

    NOBODY = 0  # no Python line: a built-in, a module's mark, no frame at all
    PLUMBING = 1  # torch, the standard library
    LIBRARY = 2
    USER = 3


def owner_of(name: str) -> Owner:
    """Owner of a frame, by its path."""
    frame = FRAME.match(name)
    if frame is None:
        return Owner.NOBODY
    path = frame["path"].replace("\\", "/")
    inside = INSTALLED.sub("", path)
    top = inside.split("/", 1)[0].removesuffix(".py")
    if (
        top in PLUMBING
        or top in sys.stdlib_module_names
        or STANDARD.search(path)
        or TORCH_TREE.search(path)
    ):
        return Owner.PLUMBING
    return Owner.LIBRARY if inside != path or top in LIBRARIES else Owner.USER


def line_of(name: str) -> str:
    """The frame as a source location: `model.py:25 in forward`, with the folder it is in.

    Before  models/gpt/block.py(25): forward               After  gpt/block.py:25 in forward
            model.py(25): torch_dynamo_resume_in_forward_at_31    model.py:31 in forward
    """
    frame = FRAME.match(name)
    if frame is None:
        return _short(name)
    path, line, function = frame["path"].replace("\\", "/"), frame["line"], frame["function"]
    if resumed := RESUMED.match(function):
        line, function = resumed["line"], resumed["function"]
    return f"{_short('/'.join(path.split('/')[-2:]))}:{line} in {_short(function)}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"...{text[-MAX_CHARACTERS:]}"


MAX_DEEP = 64
"""Modules in one another that are looked at."""
MAX_SHOWN = 4
"""Modules of a path that are written; a longer one is shortened in the middle."""
COMMON_SHARE = 0.5
"""Share of a line's cost that must lie in a module for the line to be shown in it."""
ALONE_SHARE = 0.9
"""Share of the cost of a class of modules that one of them must have to be named alone."""


class Stacks(Struct, frozen=True, kw_only=True):
    """A trace's frames, as masks over its events."""

    trace: Trace
    links: Links
    user: Bool
    library: Bool
    module: Bool
    node: Bool
    """What autograd evaluates, which knows its forward operator."""
    forward: ForwardOps
    has_lines: bool = True
    """Whether there are frames; else there are only marks of modules."""


class Origins(Struct, frozen=True, kw_only=True):
    """Frames that each event asked for comes from; NONE where there is none."""

    frame: Int64
    """The innermost frame of the user's code, else of a library's;
    never of torch or the standard library."""
    module: Int64
    """The innermost module."""


def stacks_of(trace: Trace, links: Links) -> Stacks | None:
    """The frames of the trace, or its marks of modules; None when neither was recorded."""
    python, module = trace.is_kind(Kind.PYTHON), module_ranges(trace)
    if not (python | module).any():
        return None
    owner = np.zeros(len(trace.names), np.uint8)
    for code in distinct(trace.name[python]).tolist():
        owner[code] = owner_of(trace.names[code])
    whose = np.where(python, owner[trace.name], Owner.NOBODY)
    return Stacks(
        trace=trace,
        links=links,
        user=whose == Owner.USER,
        library=whose == Owner.LIBRARY,
        module=module,
        has_lines=bool(python.any()),
        node=trace.is_kind(Kind.OP) & (trace.sequence >= 0) & (trace.fwd_thread > 0),
        forward=forward_ops(trace),
    )


def origins(stacks: Stacks, events: Int64) -> Origins:
    """Where each event, on the device or the host, comes from; an event may be NONE."""
    on_device = stacks.trace.device_work[events] & (events != NONE)
    parent, start = stacks.links.parent, np.where(on_device, stacks.links.origin(events), events)
    node = ancestor_with(parent, start, stacks.node)
    forward = forward_of(stacks.trace, node, stacks.forward)

    def innermost(marked: Bool, asked: Int64) -> Int64:
        begin = start[asked]
        frame = ancestor_with(parent, begin, marked | stacks.node)
        inside = (frame != NONE) & ~stacks.node[frame]
        # Above the node stands whoever called backward(),
        # which is not where the work comes from; it is better than none.
        rest = np.flatnonzero(~inside)
        frame[rest] = ancestor_with(parent, forward[asked[rest]], marked)
        rest = rest[frame[rest] == NONE]
        frame[rest] = ancestor_with(parent, begin[rest], marked)
        return frame

    every = np.arange(len(events))
    frame = innermost(stacks.user, every)
    others = every[frame == NONE]
    frame[others] = innermost(stacks.library, others)
    return Origins(frame=frame, module=innermost(stacks.module, every))


def source_locations_of(
    stacks: Stacks, events: Int64, cost: NDArray[np.float64], most: int
) -> tuple[SourceLocation, ...]:
    """The lines that most of the events' cost comes from, most costly first,
    each with the modules most of it is in."""
    total = float(cost.sum())
    if len(events) == 0 or total <= 0:
        return ()
    trace, origin = stacks.trace, origins(stacks, events)
    located = (origin.frame != NONE) | (origin.module != NONE)
    line = np.where(origin.frame == NONE, NONE, trace.name[origin.frame])
    codes, which = np.unique(line[located], return_inverse=True)
    spent = np.bincount(which, cost[located], len(codes))
    module, cost = origin.module[located], cost[located]
    return tuple(
        SourceLocation(
            line=None if codes[i] == NONE else line_of(trace.names[codes[i]]),
            module=_common_path(stacks, module[which == i], cost[which == i]),
            share=min(float(spent[i]) / total, 1.0),
        )
        for i in np.argsort(-spent, kind="stable")[:most].tolist()
        if spent[i] > 0
    )


def frames_at(stacks: Stacks, moments: Int64, on: Bool) -> Int64:
    """The innermost host range that was open at each moment on a thread with frames,
    of the threads of the masked events."""
    trace, parent = stacks.trace, stacks.links.parent
    innermost = np.full(len(moments), NONE, np.int64)
    frames = np.flatnonzero(trace.is_kind(Kind.PYTHON) & on)
    for thread in distinct(trace.thread[frames]).tolist():
        mine = frames[trace.thread[frames] == thread]
        before = np.searchsorted(trace.start_ns[mine], moments, side="right") - 1
        frame = np.where(before >= 0, mine[np.maximum(before, 0)], NONE)
        while (over := (frame != NONE) & (trace.end_ns[frame] <= moments)).any():
            frame[over] = parent[frame[over]]
        innermost = np.where(innermost == NONE, frame, innermost)
    return innermost


def _common_path(stacks: Stacks, modules: Int64, cost: NDArray[np.float64]) -> str | None:
    """The modules that hold most of the cost, from the outermost in:
    `GPT_0 > Block_* > Linear_*`, where many are alike."""
    frames, which = np.unique(modules, return_inverse=True)
    spent: dict[tuple[str, ...], float] = defaultdict(float)
    for path, ns in zip(
        _paths(stacks, frames), np.bincount(which, cost, len(frames)).tolist(), strict=True
    ):
        spent[path] += ns
    least, shown = COMMON_SHARE * float(cost.sum()), list[str]()
    for depth in range(MAX_DEEP):
        classes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for path, ns in spent.items():
            if len(path) > depth:
                classes[_class_of(path[depth])][path[depth]] += ns
        kind = max(classes, key=lambda name: sum(classes[name].values()), default="")
        inside = sum(classes[kind].values()) if kind else 0.0
        if inside < least or inside == 0:
            break
        costliest = max(classes[kind], key=lambda name: classes[kind][name])
        shown.append(costliest if classes[kind][costliest] >= ALONE_SHARE * inside else f"{kind}_*")
        spent = {
            path: ns
            for path, ns in spent.items()
            if len(path) > depth and _class_of(path[depth]) == kind
        }
    if len(shown) > MAX_SHOWN:
        shown = [shown[0], "...", *shown[2 - MAX_SHOWN :]]
    return " > ".join(shown) or None


def module_paths(stacks: Stacks, frames: Int64) -> list[str | None]:
    """`GPT_0 > Block_* > Linear_*` of each module frame, where a class has several modules at that
    depth; None where there is none."""
    distinct_frames, which = np.unique(frames, return_inverse=True)
    paths = _paths(stacks, distinct_frames)
    named: dict[tuple[int, str], set[str]] = defaultdict(set)
    for path in paths:
        for depth, name in enumerate(path):
            named[depth, _class_of(name)].add(name)
    shown: list[str | None] = []
    for path in paths:
        words = [
            name if len(named[depth, _class_of(name)]) == 1 else f"{_class_of(name)}_*"
            for depth, name in enumerate(path)
        ]
        if len(words) > MAX_SHOWN:
            words = [words[0], "...", *words[2 - MAX_SHOWN :]]
        shown.append(" > ".join(words) or None)
    return [shown[i] for i in which.tolist()]


def _paths(stacks: Stacks, frames: Int64) -> list[tuple[str, ...]]:
    """The names of the modules around each module frame, itself last."""
    trace, parent = stacks.trace, stacks.links.parent
    paths: list[list[str]] = [[] for _ in range(len(frames))]
    module, names = frames, dict[int, str]()
    for _ in range(MAX_DEEP):
        inside = np.flatnonzero(module != NONE)
        if len(inside) == 0:
            break
        for i, code in zip(inside.tolist(), trace.name[module[inside]].tolist(), strict=True):
            if code not in names:
                names[code] = MODULE_FRAME.sub("", trace.names[code])
            paths[i].append(names[code])
        above = np.full(len(module), NONE, np.int64)
        above[inside] = ancestor_with(parent, parent[module[inside]], stacks.module)
        module = above
    return [tuple(reversed(path)) for path in paths]


def _class_of(module: str) -> str:
    """`Linear` of `Linear_12`."""
    name, _, number = module.rpartition("_")
    return name if name and number.isdecimal() else module
