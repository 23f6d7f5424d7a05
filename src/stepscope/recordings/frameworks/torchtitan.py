"""Lines of torchtitan.

    [rank0]:[titan] 2026-01-01 12:00:00,123 - root - INFO - step: 10  loss:  8.01234
        grad_norm:  1.2345  memory: 38.42GiB(48.52%)  tps: 5,123  tflops: 250.31  mfu: 25.30%

It states no time of a step. Its lines have times of their own, to the millisecond: two of them give
what the steps between took. Where the lines have none, the step's tokens and the number of devices
give it, if the log has both (torchtitan/trainer.py, "Trainer is initialized with"): tps is of one
device (torchtitan/components/metrics.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import ClassVar

from msgspec.structs import replace

from stepscope.core.recordings.training_log import CLOCK, RATE, Figure
from stepscope.readers.text_lines import NUMBER, number
from stepscope.recordings.frameworks.parser import MAX_RESERVED, MEMORY, FrameworkParser
from stepscope.recordings.frameworks.series import MIN_STEPS

STEP = re.compile(
    r"(?<!validate )\bstep:\s{1,8}(?P<step>\d{1,12})\s{1,4}"
    rf"loss:\s{{0,8}}(?P<loss>nan|inf|{NUMBER})\s(?P<rest>.{{0,80}}?memory:.{{0,200}})"
)
FIELD = re.compile(
    r"\b(memory|tps|wps|tflops|mfu):\s{0,8}([\d,]{1,20}(?:\.\d{1,8})?)"
    rf"(GiB|%)?(?:\({NUMBER}%\))?"
)
TOKENS = re.compile(r"(?P<tokens>\d{1,15}) tokens per train step")
BATCH = re.compile(
    r"global batch size (?P<global_batch>\d{1,12}),.{0,80}sequence length (?P<sequence>\d{1,12}),"
)
MESH = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp)=(\d{1,7})\b")
OLD_MESH = re.compile(r"device mesh with \[[^\]]{0,200}\], \[([\d, ]{1,100})\]")
PEAK = re.compile(rf"Peak FLOPS used for computing MFU: (?P<peak>{NUMBER})")
CAPACITY = re.compile(
    rf"\[titan\].{{0,400}}?capacity: (?P<device>.{{1,80}}?) with (?P<gib>{NUMBER})GiB memory"
)
PER_UNIT = {"": 1, "%": 100, "GiB": 2**-30}
MAX_WORLD = 1 << 24


class TorchtitanParser(FrameworkParser):
    NAME = "torchtitan"
    SIGN = re.compile(
        rb"step: {1,8}\d{1,12} {1,4}(?:\x1b\[[0-9;]{1,20}m)?loss: [^\n]{0,200}?memory: "
        rb"{1,8}[\d.]{1,12}GiB\([^\n]{0,60}?(?:tps|wps): "
        rb"|^[^\n]{0,60}?\[titan\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - ",
        re.MULTILINE,
    )
    SIGN_MARKS = (b"GiB(", b"[titan] ")
    METRICS: ClassVar = {
        "memory GiB": MEMORY,
        "tps": "tokens_per_s",
        "wps": "tokens_per_s",
        "tflops": "tflops",
        "mfu %": "mfu",
    }
    CONVENTIONS: ClassVar = {
        "tokens_per_s": "of one device, as it is written (tps)",
        "tflops": "TFLOP/s of one device, of the model's FLOPs",
        "mfu": "the model's FLOPs (PaLM, appendix B)",
        MEMORY: MAX_RESERVED,
    }
    STEP_SOURCE = CLOCK

    def pairs(self, text: str) -> Iterable[tuple[str, str]]:
        for name, value, unit in FIELD.findall(text):
            yield f"{name} {unit}".rstrip(), f"{value} {unit}"

    def number(self, text: str) -> float | None:
        value, unit = number(text), text.partition(" ")[2]
        return None if value is None else value / PER_UNIT[unit]

    def _take_mesh(self, line: str, _match: re.Match[str]) -> None:
        sizes = [int(size) for _, size in MESH.findall(line)]
        if not sizes and (match := OLD_MESH.search(line)):
            sizes = [int(size) for size in match[1].split(",") if size.strip().isdecimal()]
        if sizes and 0 < prod(sizes) <= MAX_WORLD:
            self.facts["world_size"] = str(prod(sizes))

    LINES = (
        ("step: ", STEP, FrameworkParser.take_step),
        ("Trainer is initialized with", TOKENS, FrameworkParser.take_facts),
        ("Trainer is initialized with", BATCH, FrameworkParser.take_facts),
        ("device mesh with", re.compile("device mesh with"), _take_mesh),
        ("Peak FLOPS used", PEAK, FrameworkParser.take_facts),
        (" capacity: ", CAPACITY, FrameworkParser.take_facts),
    )

    def _tokens(self) -> int | None:
        """Tokens of a step, over all ranks."""
        batch, sequence = self.count("global_batch"), self.count("sequence")
        if batch is not None and sequence is not None:
            return batch * sequence
        return self.count("tokens")

    def step_time(self) -> tuple[int | None, int, str | None]:
        step_ns, num, source = super().step_time()
        rates = self.figures["tokens_per_s"]
        tokens = self._tokens()
        world_size = self.count("world_size")
        tps = rates.steady()
        if step_ns is None and tps and tokens and world_size and len(rates.values) >= MIN_STEPS:
            return round(tokens / (tps * world_size) * 1e9), self.series.num, RATE
        return step_ns, num, source

    def figure(self, name: str) -> Figure | None:
        figure = super().figure(name)
        if figure is None or name != "mfu":
            return figure
        peak = "of the BF16 peak"
        if "peak" in self.facts:
            peak = f"of a peak of {self.facts['peak']} FLOP/s"
        return replace(figure, convention=f"{figure.convention}, {peak}")

    def remarks(self) -> tuple[tuple[str, str], ...]:
        remarks, tokens = [], self._tokens()
        if tokens is not None:
            remarks.append(("tokens of a step", f"{tokens}"))
        if "device" in self.facts:
            remarks.append(("device", f"{self.facts['device']}, {self.facts['gib']} GiB"))
        return tuple(remarks)
