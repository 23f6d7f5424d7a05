"""Recorders of traces: what to ask each for, where something is missing."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct


class Recorder(Struct, frozen=True, kw_only=True):
    """The recorder's own words for what it can record."""

    calls: str
    operators: str
    marks: str
    shapes: str
    stacks: str = "with_stack=True"
    with_stacks: str = "record with_stack=True"
    slow_stacks: str = "with_stack=True in the profiler records them, and slows the host more"
    memory: str = "profile_memory=True"
    with_memory: str = "record with profile_memory=True"
    with_memory_and_shapes: str = "record with profile_memory=True and record_shapes=True"
    more_steps: str = "torch.profiler.schedule(wait=1, warmup=1, active=3)"


KINETO = Recorder(
    calls="activities=[CPU, CUDA]",
    operators="profile with ProfilerActivity.CPU",
    marks="ProfilerActivity.CPU, profiler.step()",
    shapes="profile with record_shapes=True",
)
NSYS = Recorder(
    calls="nsys profile -t cuda",
    operators="nsys profile --pytorch=autograd-nvtx, or torch.autograd.profiler.emit_nvtx()",
    marks="nsys profile -t cuda,nvtx, and torch.cuda.nvtx ranges around the step",
    shapes="nsys profile --pytorch=autograd-shapes-nvtx; their types are never there",
)
RUN = Recorder(
    calls=KINETO.calls,
    operators=KINETO.operators,
    marks=KINETO.marks,
    shapes=KINETO.shapes,
    stacks="--stacks",
    with_stacks="rerun with --stacks",
    slow_stacks="rerun with --stacks, which slows the host more",
    memory="--memory",
    with_memory="rerun with --memory",
    with_memory_and_shapes="rerun with --memory",
    more_steps="rerun with --steps 3",
)
"""`stepscope run`, which always records shapes and both activities."""


def recorder_of(versions: Collection[str], *, is_run: bool) -> Recorder:
    """The recorder of a trace that names these versions."""
    if any(name.startswith("nsys") for name in versions):
        return NSYS
    return RUN if is_run else KINETO


def capitalized(words: str) -> str:
    """Capitalize words for the beginning of a sentence."""
    return f"{words[:1].upper()}{words[1:]}"
