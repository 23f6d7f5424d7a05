"""Lines of the Hugging Face Trainer: its dictionaries, and its progress bar.

     50%|#####     | 30/60 [00:12<00:12,  2.45it/s]
    {'loss': 1.311, 'grad_norm': 0.88, 'learning_rate': 2.583e-05, 'epoch': 0.3}
    {'train_runtime': 20.51, 'train_samples_per_second': 23.4, 'train_steps_per_second': 2.926,
        'train_loss': 1.34, 'epoch': 0.6}

The bar counts optimizer steps, and its time has seconds. The last line is the mean of the run, with
its first steps, evaluations and saves; of a run that was resumed, it is wrong (it counts the steps
of the runs before). From transformers 5 on, numbers stand in quotes.
"""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec.structs import replace

from stepscope.core.recordings.training_log import CLOCK, RATE, Figure, FrameworkLog
from stepscope.readers.text_lines import NUMBER, bars, number
from stepscope.recordings.frameworks.parser import FrameworkParser
from stepscope.recordings.frameworks.series import MAX_CLOCKS, MIN_MEAN_STEPS, Clock

PAIR = re.compile(rf"'([\w/]{{1,80}})': '?({NUMBER}|nan|inf)'?(?=[,}}])")
WRITER = re.compile(r"(?:\[[\w ]{1,20}\]:?)?")
"""A bar of the Trainer has no name; a launcher may put a rank before it."""
DICTIONARY = re.compile(r"\{'[\w/]{1,80}': [^{}]{1,4000}\}")


class HuggingFaceParser(FrameworkParser):
    NAME = "Hugging Face Trainer"
    SIGN = re.compile(
        rb"\{'(?:train_runtime|eval_runtime)': '?[\d.]"
        rb"|\{'(?:loss|eval_loss)': [^{}\n]{1,400}'epoch': '?[\d.]"
    )
    SIGN_MARKS = (b"{'train_runtime'", b"{'eval_runtime'", b"{'loss'", b"{'eval_loss'")
    MARKS = ("'epoch': ", "'train_runtime': ", "%|")
    CONVENTIONS: ClassVar = {
        "tokens_per_s": "as it is written",
        "samples_per_s": "of the job, over the whole run with its evaluations and saves",
    }
    STEP_SOURCE = CLOCK
    RESOLUTION_S = 1.0

    def __init__(self) -> None:
        super().__init__()
        # Clocks are by the bar's total: an evaluation has a bar of its own.
        self.losses: list[float] = []
        """The first and the last."""
        self.num_lines = 0
        self.evaluated_s = 0.0
        self.num_evaluations = 0
        self.summary: dict[str, float] = {}
        self.first_shown: dict[int, int] = {}
        """First step above 0 that each bar showed, by the bar's total."""

    def take(self, line: str) -> None:
        if "%|" in line:
            for name, step, total, seconds in bars(line):
                if WRITER.fullmatch(name):
                    self.clocks.add(total, step, float(seconds))
                    if step > 0 and len(self.first_shown) < MAX_CLOCKS:
                        self.first_shown.setdefault(total, step)
        if "{'" in line:
            for text in DICTIONARY.findall(line)[:16]:
                pairs = {name: number(value) for name, value in PAIR.findall(text)}
                self._take_metrics(
                    {name: value for name, value in pairs.items() if value is not None}
                )

    def _take_metrics(self, metrics: dict[str, float]) -> None:
        if "train_runtime" in metrics:
            self.summary = metrics
        elif "eval_runtime" in metrics:
            self.evaluated_s += max(0.0, min(metrics["eval_runtime"], 1e9))
            self.num_evaluations += 1
        elif "epoch" in metrics and "loss" in metrics:
            self.num_lines += 1
            self.losses = [*self.losses[:1], metrics["loss"]]
            self.figures["tokens_per_s"].add(metrics.get("train_tokens_per_second"))

    def _bar(self) -> tuple[int | None, Clock | None]:
        """The training bar's total, and its clock: the bar that ran longest."""
        shown = {
            total: clock.last[1]
            for total, clock in self.clocks.by_key.items()
            if isinstance(total, int) and clock.last
        }
        if not shown:
            return None, None
        total = max(shown, key=lambda total: (shown[total], total))
        return total, self.clocks.by_key[total]

    def _mean(self) -> tuple[int | None, int]:
        """Mean step of the whole run, without its evaluations."""
        runtime = self.summary.get("train_runtime")
        rate = self.summary.get("train_steps_per_second")
        if runtime is None or runtime <= 0:
            return None, 0
        total, clock = self._bar()
        if total is not None and clock is not None and clock.last and clock.last[0] == total:
            num = float(total)
        elif rate is not None and rate >= 0.1:  # it has three decimals
            num = rate * runtime
        else:
            return None, 0
        training_s = runtime - self.evaluated_s
        if round(num) < MIN_MEAN_STEPS or training_s <= 0:
            return None, 0
        return round(training_s / num * 1e9) or None, round(num)

    def _was_resumed(self) -> bool:
        """A bar that begins far into its total: only the bar's own rate is right then."""
        total, _ = self._bar()
        return total is not None and self.first_shown.get(total, 0) > max(10, total // 10)

    def step_time(self) -> tuple[int | None, int, str | None]:
        _, clock = self._bar()
        step_ns, num = (None, 0) if clock is None else clock.steady()
        if step_ns is None and not self._was_resumed():
            return (*self._mean(), RATE)
        return step_ns, num, CLOCK

    def is_empty(self) -> bool:
        return not self.num_lines and not self.summary

    def figure(self, name: str) -> Figure | None:
        samples = self.summary.get("train_samples_per_second")
        if name == "samples_per_s" and samples is not None:
            return Figure(value=samples, convention=self.CONVENTIONS[name])
        return super().figure(name)

    def finished(self, path: str) -> FrameworkLog | None:
        log = super().finished(path)
        if log is None:
            return None
        _, clock = self._bar()
        return replace(
            log,
            last_step=clock.last[0] if clock is not None and clock.last is not None else None,
            num_lines=self.num_lines,
            first_loss=self.losses[0] if self.losses else None,
            last_loss=self.losses[-1] if self.losses else self.summary.get("train_loss"),
        )

    def notes(self) -> tuple[str, ...]:
        if not self._was_resumed() or not self.summary:
            return ()
        return ("the run was resumed: its mean over the whole run is not its pace",)

    def remarks(self) -> tuple[tuple[str, str], ...]:
        remarks = []
        if "train_runtime" in self.summary:
            remarks.append(("run time", f"{self.summary['train_runtime']:g} s"))
        if "train_steps_per_second" in self.summary:
            rate = self.summary["train_steps_per_second"]
            remarks.append(("steps/s", f"{rate:g}, the mean of the run as it is written"))
        if self.num_evaluations:
            seconds = f"{self.evaluated_s:g} s together"
            remarks.append(("evaluations", f"{self.num_evaluations}, {seconds}"))
        return tuple(remarks)
