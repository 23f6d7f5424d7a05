"""What a stack says about an allocation: which part of the step made it, and which line of the
user's code that was.

Frames come innermost first, Python's and, where these were asked for, C++'s between them. The
device's thread of the backward pass has no Python stack: with Python frames alone, its stacks are
empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

INIT = "init"
FORWARD = "forward"
BACKWARD = "backward"
STEP = "step"
CLIP = "clip"
LIBRARY = "library"
"""Parts of a step: modules made or moved; the forward pass; the backward; the optimizer; clipping;
a library's workspace."""
BACKWARD_LABEL = "the backward pass"
MAX_FRAMES = 512
MAX_NAME_CHARS = 160

TORCH_FILE = re.compile(
    r"(?:^|(?:site|dist)-packages/|/pytorch/)(?:torch|functorch|triton|torchgen)/"
)
OPTIMIZER_FILE = re.compile(
    r"(?:^|/)(?:torch/optim|torch/distributed/optim|apex/optimizers|bitsandbytes/optim|transformer_engine/pytorch/optimizers"
    r"|deepspeed/ops/(?:adam|lamb|lion|adagrad)|megatron/core/optimizer|torch_optimizer|lion_pytorch)/"
)
MODULE_FILE = re.compile(r"(?:^|/)torch/nn/(?:modules/|functional\.py|parallel/)")
INIT_FILE = re.compile(r"(?:^|/)torch/nn/(?:init|parameter)\.py$")
CLIP_FILE = re.compile(r"(?:^|/)torch/nn/utils/clip_grad\.py$")
BACKWARD_FILE = re.compile(
    r"(?:^|/)torch/(?:autograd/(?:__init__|graph|function)\.py|_tensor\.py)$"
)
MOVES = frozenset((
    "convert", "_apply", "to_empty", "load_state_dict", "_load_from_state_dict", "reset_parameters",
    "__init__",
))  # fmt: skip
MAKES = frozenset((
    "__init__", "reset_parameters", "init_weights", "_init_weights", "from_pretrained",
    "load_state_dict",
))  # fmt: skip
ENGINE = re.compile(r"torch::autograd::(?:Engine|python::PythonEngine)::")
NODE = re.compile(
    r"torch::autograd::(?:generated::)?(?:\w+::)*(\w+?Backward\d*)(?:_apply_functional|::apply)"
)
WORKSPACE = re.compile(
    r"getCUDABlasLtWorkspace|setWorkspaceForHandle|getNewWorkspace|cudnn\w*[Ww]orkspace"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What one frame says."""

    part: str | None
    label: str | None
    """How to name it where it is the user's; for autograd's, its node."""
    is_user: bool
    is_engine: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """What a whole stack says."""

    part: str | None
    in_backward: bool
    """Whether the backward pass runs, whoever allocates in it."""
    label: str | None
    is_empty: bool
    is_native: bool = False
    """Whether C++ frames were recorded."""


NOTHING = Mark(None, None, False, False)
EMPTY = Origin(None, False, None, True)


def origin(frames: list[Any]) -> Origin:
    """Origin by the innermost frame that says something; a library's workspace before
    everything."""
    part: str | None = None
    user: str | None = None
    node: str | None = None
    engine = library = native = False
    seen = 0
    for frame in frames[:MAX_FRAMES]:
        if not isinstance(frame, dict):
            continue
        name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
        if type(name) is not str or type(file) is not str:
            continue
        seen += 1
        native = native or not _is_python(file)
        mark = _mark(name, file, line if type(line) is int else 0)
        if mark is NOTHING:
            continue
        engine = engine or mark.is_engine
        if mark.part == LIBRARY:
            library = True
        elif (
            mark.part is not None
            and part is None
            and (mark.part != INIT or not mark.is_user or user is None)
        ):
            part = mark.part
        if mark.is_user:
            user = user or mark.label
        elif mark.label is not None:
            node = node or mark.label
    if not seen:
        return EMPTY
    label = (node or BACKWARD_LABEL) if engine and user is None else user
    return Origin(LIBRARY if library else part, engine, label, False, native)


@lru_cache(maxsize=1 << 16)
def _mark(name: str, file: str, line: int) -> Mark:
    if not _is_python(file):
        if WORKSPACE.search(name):
            return Mark(LIBRARY, None, False, False)
        node = NODE.search(name)
        if node is not None:
            return Mark(BACKWARD, node[1][:MAX_NAME_CHARS], False, True)
        return Mark(BACKWARD, None, False, True) if ENGINE.search(name) else NOTHING
    if OPTIMIZER_FILE.search(file):
        return Mark(STEP, None, False, False)
    if not TORCH_FILE.search(file):
        part = (
            FORWARD
            if name == "forward"
            else BACKWARD
            if name == "backward"
            else INIT
            if name in MAKES
            else None
        )
        short = "/".join(file.split("/")[-2:])
        return Mark(part, f"{name} ({short}:{line})"[:MAX_NAME_CHARS], True, name == "backward")
    if CLIP_FILE.search(file):
        return Mark(CLIP, None, False, False)
    if INIT_FILE.search(file) or (MODULE_FILE.search(file) and name in MOVES):
        return Mark(INIT, None, False, False)
    if BACKWARD_FILE.search(file) and "backward" in name:
        return Mark(BACKWARD, None, False, True)
    return Mark(FORWARD, None, False, False) if MODULE_FILE.search(file) else NOTHING


def _is_python(file: str) -> bool:
    return file.endswith(".py") or file.startswith("<")
