"""Layouts in words: "tp8-pp16-dp8-mb1-z1-sp-full"."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from stepscope.errors import UsageError
from stepscope.plan.devices import shown
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout

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
