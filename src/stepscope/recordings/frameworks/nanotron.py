"""Lines of nanotron.

    08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: 1 / 15 | consumed_tokens: 512 |
        elapsed_time_per_iteration_ms: 4.71K | tokens_per_sec: 109 | tokens_per_sec_per_gpu: 109 |
        global_batch_size: 2 | lm_loss: 5.32 | ... model_tflops_per_gpu: 18.7

Numbers have three digits and a letter for thousands (nanotron/logging/base.py, human_format): a
time is known to half a percent.
"""

from __future__ import annotations

import re
from typing import ClassVar

from stepscope.protocol.untrusted import finite, finite_text
from stepscope.readers.text_lines import NUMBER
from stepscope.recordings.frameworks.parser import LOSS, MEMORY, OF_JOB, STEP_MS, FrameworkParser

ITERATION = re.compile(r"iteration: (?P<step>\d{1,12}) / \d{1,12} \|")
HUMAN = re.compile(rf"({NUMBER})([KMBTPE]?)(?![\w.])")
FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


class NanotronParser(FrameworkParser):
    NAME = "nanotron"
    SIGN = re.compile(rb"iteration: \d{1,12} / \d{1,12} \| [^\n]{0,400}?time_per_iteration_ms: ")
    SIGN_MARKS = (b"time_per_iteration_ms: ",)
    LINES = (("time_per_iteration_ms: ", ITERATION, FrameworkParser.take_step),)
    METRICS: ClassVar = {
        "elapsed_time_per_iteration_ms": STEP_MS,
        "time_per_iteration_ms": STEP_MS,
        "tokens_per_sec": "tokens_per_s",
        "model_tflops_per_gpu": "tflops",
        "cuda_max_memory_reserved": MEMORY,
        "lm_loss": LOSS,
    }
    CONVENTIONS: ClassVar = {
        "tokens_per_s": OF_JOB,
        "tflops": "TFLOP/s of one GPU, of the model's FLOPs",
        MEMORY: "most reserved by the allocator",
    }

    def number(self, text: str) -> float | None:
        """`4.71K` as 4710; None where there is no number, or no finite one."""
        match = HUMAN.match(text)
        value = finite_text(match[1]) if match else None
        return None if match is None or value is None else finite(value * FACTORS[match[2]])

    def notes(self) -> tuple[str, ...]:
        digits = "nanotron writes three digits: the step time is known to half a percent"
        return (*super().notes(), digits)
