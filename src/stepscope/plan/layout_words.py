"""A layout's name spelled out: what tp2-cp2-pp4-dp4-mb1-z3 says, part by part."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from stepscope.errors import UsageError
from stepscope.plan.devices import shown
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout

ZERO_WORDS = {
    1: "data ranks share the optimizer's states (ZeRO-1)",
    2: "data ranks share optimizer and gradients (ZeRO-2)",
    3: "data ranks share optimizer, gradients and weights (ZeRO-3, FSDP)",
}
RECOMPUTE_WORDS = {
    "selective": "parts of a layer that the framework chooses are computed again in backward",
    "full": "each layer's forward is computed again in backward",
}
SCHEDULE_WORDS = {
    "gpipe": "all forwards before all backwards",
    "zb1p": "the zero-bubble schedule with 1F1B's memory",
    "zb2p": "the zero-bubble schedule with twice 1F1B's memory",
    "zbv": "the zero-bubble schedule in a V, two pieces on each stage",
}
OFFLOAD_WORDS = {
    "nvme": "weights, gradients and the optimizer's states are kept on the node's disks",
    "optimizer": "the optimizer's states are kept on the host",
    "all": "weights, gradients and the optimizer's states are kept on the host",
}


def spelled_out(layout: Layout) -> str:
    """Every part of the name and what it means, in the name's own order."""
    return "; ".join(f"{name}: {words}" for name, words in name_parts(layout)) + "."


def name_parts(layout: Layout) -> list[tuple[str, str]]:
    """Each part of the name and what it means."""
    parts = [(f"tp{layout.tp}", _ranks(layout.tp, "share each layer's matrices"))]
    if layout.cp > 1:
        parts.append((f"cp{layout.cp}", _ranks(layout.cp, "share each sequence")))
    parts.append(_stages(layout))
    parts.append((f"dp{layout.dp}", _ranks(layout.dp, "each take a part of the batch")))
    if layout.ep > 1:
        parts.append((f"ep{layout.ep}", f"experts are spread over {layout.ep} of these ranks"))
    sequences = "1 sequence" if layout.micro_batch == 1 else f"{layout.micro_batch} sequences"
    times = f", {layout.num_micro} times a step" if layout.num_micro > 1 else ""
    parts.append((f"mb{layout.micro_batch}", f"{sequences} at a time{times}"))
    if layout.zero_stage:
        parts.append(_shards(layout))
    if layout.is_sequence_parallel:
        parts.append(("sp", "tensor ranks share norms and residuals too (sequence parallelism)"))
    if layout.recompute_layers:
        num = layout.recompute_layers
        layers = "1 layer" if num == 1 else f"{num} layers"
        some = f"the forward of {layers} of each stage is computed again in backward"
        parts.append((f"{layout.recompute}{num}", some))
    elif layout.recompute != "none":
        parts.append((layout.recompute, RECOMPUTE_WORDS[layout.recompute]))
    if layout.recompute_every > 1:
        apart = f"a checkpoint every {layout.recompute_every} layers"
        parts.append((f"every{layout.recompute_every}", apart))
    if layout.schedule != "1f1b":
        parts.append((layout.schedule, SCHEDULE_WORDS[layout.schedule]))
    if layout.offload != "none":
        parts.append((f"offload-{layout.offload}", OFFLOAD_WORDS[layout.offload]))
    if not layout.is_flash:
        parts.append(("no-flash", "attention writes its scores to memory"))
    return parts


def _ranks(num: int, do: str) -> str:
    return "1 rank, not cut" if num == 1 else f"{num} ranks {do}"


def _stages(layout: Layout) -> tuple[str, str]:
    if layout.pp == 1:
        return "pp1", "1 stage, no pipeline"
    if layout.vpp == 1:
        return f"pp{layout.pp}", f"{layout.pp} pipeline stages"
    pieces = f"{layout.pp} pipeline stages of {layout.vpp} pieces each (interleaved)"
    return f"pp{layout.pp}v{layout.vpp}", pieces


def _shards(layout: Layout) -> tuple[str, str]:
    words = ZERO_WORDS[layout.zero_stage]
    if 0 < layout.shard < layout.dp * layout.cp:
        return f"z{layout.zero_stage}/{layout.shard}", f"{words}, {layout.shard} to a copy (HSDP)"
    return f"z{layout.zero_stage}", words


_NUMBERS = {
    "tp": "tp", "cp": "cp", "pp": "pp", "dp": "dp", "ep": "ep", "mb": "micro_batch",
    "every": "recompute_every", "v": "vpp", "vpp": "vpp", "z": "zero_stage", "zero": "zero_stage",
}  # fmt: skip
_WORD = re.compile(r"([a-z]+?)(\d{1,9})(?:v(\d{1,9})|/(\d{1,9}))?")
_SOME_LAYERS = re.compile(r"full([1-9]\d{0,4})")
_FLAGS: dict[str, tuple[str, object]] = {
    "sp": ("is_sequence_parallel", True),
    "flash": ("is_flash", True),
    "noflash": ("is_flash", False),
    "fsdp": ("zero_stage", 3),
    **{word: ("recompute", word) for word in RECOMPUTE if word != "none"},
    **{word: ("schedule", word) for word in SCHEDULES},
    **{f"offload{word}": ("offload", word) for word in OFFLOAD},
}


def parse_layout(word: str, job: TrainingJob | None = None) -> Layout:
    """A layout as it is printed, "tp8-pp16-dp8-mb1-z1-sp-full", in any order.

    With a job, what is left out is filled in: data ranks from the devices, micro-batches from the
    batch.
    """
    if len(word) > 200:
        raise UsageError("a layout is a few words such as tp8-pp16-dp8-mb1-z1-sp-full, not so many")
    fields: dict[str, object] = {}
    plain = re.sub(r"\b(no|offload)[-_ ]", r"\1", word.casefold().strip())
    for part in re.split(r"[-_,\s]+", plain):
        for name, value in _meant(part, word):
            if name in fields:
                raise UsageError(f"{shown(word)} says {name.replace('_', ' ')} twice; say it once")
            fields[name] = value
    layout = Layout(**fields)  # type: ignore[arg-type]
    if job is None:
        return layout
    if "dp" not in fields:
        layout = replace(
            layout, dp=max(1, job.cluster.num_devices // (layout.tp * layout.cp * layout.pp))
        )
    return replace(layout, num_micro=max(1, job.global_batch // (layout.dp * layout.micro_batch)))


def _meant(part: str, word: str) -> Iterator[tuple[str, object]]:
    if part in _FLAGS:
        yield _FLAGS[part]
        return
    some = _SOME_LAYERS.fullmatch(part)
    if some is not None:
        yield "recompute", "full"
        yield "recompute_layers", int(some[1])
        return
    match = _WORD.fullmatch(part)
    name = None if match is None else _NUMBERS.get(match[1])
    if (
        match is None
        or name is None
        or (match[3] and name != "pp")
        or (match[4] and name != "zero_stage")
    ):
        close = difflib.get_close_matches(part, [*_FLAGS, *_NUMBERS], n=3, cutoff=0.4)
        near = f"near it: {', '.join(close)}; " if close else ""
        raise UsageError(
            f"{part!a} in the layout {shown(word)} means nothing; {near}a layout is such as "
            "tp8-pp4v2-dp8-mb1-z1-sp-full"
        )
    number = int(match[2])
    if name == "zero_stage" and number > 3:
        raise UsageError(f"ZeRO has stages 0 to 3, not {number}, in the layout {shown(word)}")
    if name != "zero_stage" and number < 1:
        raise UsageError(f"{part!a} in the layout {shown(word)}: a width is at least 1")
    yield name, number
    if match[3]:
        yield "vpp", max(1, int(match[3]))
    if match[4]:
        yield "shard", int(match[4])
