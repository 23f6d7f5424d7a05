"""Lines of nanotron.

    08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: 1 / 15 | consumed_tokens: 512 | elapsed_time_per_iteration_ms: 4.71K |
        tokens_per_sec: 109 | tokens_per_sec_per_gpu: 109 | global_batch_size: 2 | lm_loss: 5.32 | ... model_tflops_per_gpu: 18.7

Numbers have three digits and a letter for thousands (nanotron/logging/base.py, human_format): a
time is known to half a percent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepscope.core.recordings.training_log import TOLD, Figure, FrameworkLog
from stepscope.protocol.untrusted import finite, finite_text
from stepscope.readers.frameworks.lines import MAX_MS, NUMBER, fields
from stepscope.readers.frameworks.parser import Most, Series

NAME = "nanotron"
SIGN = re.compile(rb"iteration: \d{1,12} / \d{1,12} \| [^\n]{0,400}?time_per_iteration_ms: ")
SIGN_MARKS = (b"time_per_iteration_ms: ",)
"""One of them is in whatever SIGN finds; they are sought faster."""
MARKS = ("time_per_iteration_ms: ",)
ITERATION = re.compile(r"iteration: (\d{1,12}) / (\d{1,12}) \|")
HUMAN = re.compile(rf"({NUMBER})([KMBTPE]?)(?![\w.])")
FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def human(text: str) -> float | None:
    """`4.71K` as 4710; None where there is no number, or no finite one."""
    found = HUMAN.match(text)
    value = finite_text(found[1]) if found else None
    return None if found is None or value is None else finite(value * FACTORS[found[2]])


@dataclass(slots=True)
class Draft:
    series: Series = field(default_factory=Series)
    tokens_per_s: Most = field(default_factory=Most)
    tflops: Most = field(default_factory=Most)
    memory: Most = field(default_factory=Most)

    @property
    def is_open(self) -> bool:
        return False

    def take(self, line: str) -> None:
        found = ITERATION.search(line)
        if found is None:
            return
        ns, loss = None, None
        for name, value in fields(line[found.end() :]):
            if name in ("elapsed_time_per_iteration_ms", "time_per_iteration_ms"):
                ms = human(value)
                ns = round(ms * 1e6) if ms is not None and 0 < ms <= MAX_MS else None
            elif name == "tokens_per_sec":
                self.tokens_per_s.add(human(value))
            elif name == "model_tflops_per_gpu":
                self.tflops.add(human(value))
            elif name == "cuda_max_memory_reserved":
                self.memory.add(human(value))
            elif name == "lm_loss":
                loss = human(value)
        if ns is not None:
            self.series.add(int(found[1]), ns, loss)

    def finished(self, path: str) -> FrameworkLog | None:
        if not self.series.num:
            return None
        step_ns, num = self.series.steady()
        tokens, tflops, memory = self.tokens_per_s.steady(), self.tflops.steady(), self.memory.most
        return FrameworkLog(
            framework=NAME,
            path=path,
            step_ns=step_ns,
            step_source=None if step_ns is None else TOLD,
            num_steps=num,
            first_step=self.series.first_step,
            last_step=self.series.last_step,
            steps=self.series.logged(),
            num_lines=self.series.num,
            tokens_per_s=None
            if tokens is None
            else Figure(value=tokens, convention="of the job, as it is written"),
            tflops=None
            if tflops is None
            else Figure(value=tflops, convention="TFLOP/s of one GPU, of the model's FLOPs"),
            memory_bytes=None
            if memory is None
            else Figure(value=memory, convention="most reserved by the allocator"),
            first_loss=self.series.first_loss,
            last_loss=self.series.last_loss,
            notes=(
                *self.series.notes(),
                "nanotron writes three digits: the step time is known to half a percent",
            ),
        )
