"""A layout's name spelled out: what tp2-cp2-pp4-dp4-mb1-z3 says, part by part."""

from __future__ import annotations

from stepscope.plan.layout import Layout

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
