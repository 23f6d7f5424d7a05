"""Lines of torchtitan.

    [rank0]:[titan] 2026-01-01 12:00:00,123 - root - INFO - step: 10  loss:  8.01234  grad_norm:  1.2345
        memory: 38.42GiB(48.52%)  tps: 5,123  tflops: 250.31  mfu: 25.30%

It tells no time of a step. Its lines have times of their own, to the millisecond: two of them tell
what the steps between took. Where the lines have none, the step's tokens and the number of devices
tell it, if the log has both (torchtitan/trainer.py, "Trainer is initialized with"): tps is of one
device (torchtitan/components/metrics.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

from stepscope.core.recordings.training_log import CLOCK, RATE, Figure, FrameworkLog
from stepscope.readers.frameworks.lines import NUMBER, number, rank_of, seconds_of
from stepscope.readers.frameworks.parser import LEAST_STEPS, MAX_RANKS_KEPT, Clocks, Most, Series

NAME = "torchtitan"
SIGN = re.compile(
    rb"step: {1,8}\d{1,12} {1,4}(?:\x1b\[[0-9;]{1,20}m)?loss: [^\n]{0,200}?memory: "
    rb"{1,8}[\d.]{1,12}GiB\([^\n]{0,60}?(?:tps|wps): "
    rb"|^[^\n]{0,60}?\[titan\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - ",
    re.MULTILINE,
)
SIGN_MARKS = (b"GiB(", b"[titan] ")
"""One of them is in whatever SIGN finds; they are sought faster."""
MARKS = (
    "step: ",
    "Trainer is initialized with",
    "device mesh with",
    "Peak FLOPS used",
    " capacity: ",
)
STEP = re.compile(
    r"(?<!validate "
    rf")\bstep:\s{{1,8}}(\d{{1,12}})\s{{1,4}}loss:\s{{0,8}}(nan|inf|{NUMBER})\s(?P<rest>.{{0,80}}?memory:.{{0,200}})"
)
FIELD = re.compile(
    rf"\b(memory|tps|wps|tflops|mfu):\s{{0,8}}([\d,]{{1,20}}(?:\.\d{{1,8}})?)(GiB|%)?(?:\(({NUMBER})%\))?"
)
TOKENS = re.compile(r"(\d{1,15}) tokens per train step")
BATCH = re.compile(r"global batch size (\d{1,12}),.{0,80}sequence length (\d{1,12}),")
MESH = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp)=(\d{1,7})\b")
OLD_MESH = re.compile(r"device mesh with \[[^\]]{0,200}\], \[([\d, ]{1,100})\]")
PEAK = re.compile(rf"Peak FLOPS used for computing MFU: ({NUMBER})")
CAPACITY = re.compile(rf"capacity: ([^\n]{{1,80}}?) with ({NUMBER})GiB memory")
MAX_WORLD = 1 << 24


@dataclass(slots=True)
class Draft:
    series: Series = field(default_factory=Series)
    clocks: Clocks = field(default_factory=lambda: Clocks(resolution_s=0.001))
    tps: Most = field(default_factory=Most)
    tflops: Most = field(default_factory=Most)
    mfu: Most = field(default_factory=Most)
    memory: Most = field(default_factory=Most)
    tokens: int | None = None
    """Of a step, over all ranks."""
    batch: int | None = None
    world_size: int | None = None
    peak: str | None = None
    device: str | None = None
    ranks: set[int] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        return False

    def take(self, line: str) -> None:
        found = STEP.search(line)
        if found is not None:
            self._take_step(line, found)
        elif "Trainer is initialized with" in line:
            if told := TOKENS.search(line):
                self.tokens = int(told[1])
            elif told := BATCH.search(line):
                self.batch, self.tokens = int(told[1]), int(told[1]) * int(told[2])
        elif "device mesh with" in line:
            self._take_mesh(line)
        elif told := PEAK.search(line):
            self.peak = told[1]
        elif "[titan]" in line and (told := CAPACITY.search(line)):
            self.device = f"{told[1]}, {told[2]} GiB"

    def _take_step(self, line: str, found: re.Match[str]) -> None:
        step, rank = int(found[1]), rank_of(line, found.start())
        seconds = seconds_of(line, found.start())
        if seconds is not None:
            self.clocks.add(rank, step, seconds)
        self.series.add(step, None, number(found[2]))
        if rank is not None and len(self.ranks) < MAX_RANKS_KEPT:
            self.ranks.add(rank)
        for name, value, unit, _ in FIELD.findall(found["rest"]):
            amount = number(value)
            if name == "memory" and unit == "GiB":
                self.memory.add(None if amount is None else amount * 2**30)
            elif name in ("tps", "wps"):
                self.tps.add(amount)
            elif name == "tflops":
                self.tflops.add(amount)
            elif name == "mfu" and unit == "%" and amount is not None:
                self.mfu.add(amount / 100)

    def _take_mesh(self, line: str) -> None:
        sizes = [int(size) for _, size in MESH.findall(line)]
        if not sizes and (told := OLD_MESH.search(line)):
            sizes = [int(size) for size in told[1].split(",") if size.strip().isdecimal()]
        if sizes and 0 < prod(sizes) <= MAX_WORLD:
            self.world_size = prod(sizes)

    def finished(self, path: str) -> FrameworkLog | None:
        if not self.series.num:
            return None
        step_ns, num = self.clocks.steady()
        source: str | None = CLOCK
        tps = self.tps.steady()
        if (
            step_ns is None
            and tps
            and self.tokens
            and self.world_size
            and len(self.tps.values) >= LEAST_STEPS
        ):
            step_ns, num, source = (
                round(self.tokens / (tps * self.world_size) * 1e9),
                self.series.num,
                RATE,
            )
        tflops, mfu = self.tflops.steady(), self.mfu.steady()
        peak = "of the BF16 peak" if self.peak is None else f"of a peak of {self.peak} FLOP/s"
        return FrameworkLog(
            framework=NAME,
            path=path,
            step_ns=step_ns,
            step_source=None if step_ns is None else source,
            num_steps=num,
            first_step=self.series.first_step,
            last_step=self.series.last_step,
            steps=self.series.logged(),
            num_lines=self.series.num,
            tokens_per_s=None
            if tps is None
            else Figure(value=tps, convention="of one device, as it is written (tps)"),
            tflops=None
            if tflops is None
            else Figure(value=tflops, convention="TFLOP/s of one device, of the model's FLOPs"),
            mfu=None
            if mfu is None
            else Figure(value=mfu, convention=f"the model's FLOPs (PaLM, appendix B), {peak}"),
            memory_bytes=None
            if self.memory.most is None
            else Figure(
                value=self.memory.most,
                convention="most reserved by the allocator, of the ranks that wrote it",
            ),
            first_loss=self.series.first_loss,
            last_loss=self.series.last_loss,
            global_batch=self.batch,
            world_size=self.world_size,
            ranks=tuple(sorted(self.ranks)),
            remarks=(
                *(() if self.tokens is None else (("tokens of a step", f"{self.tokens}"),)),
                *(() if self.device is None else (("device", self.device),)),
            ),
        )
