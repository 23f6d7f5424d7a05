"""Lines of the Hugging Face Trainer: its dictionaries, and its progress bar.

     50%|#####     | 30/60 [00:12<00:12,  2.45it/s]
    {'loss': 1.311, 'grad_norm': 0.88, 'learning_rate': 2.583e-05, 'epoch': 0.3}
    {'train_runtime': 20.51, 'train_samples_per_second': 23.4, 'train_steps_per_second': 2.926, 'train_loss': 1.34, 'epoch': 0.6}

The bar counts optimizer steps, and its time has seconds. The last line is the mean of the run, with
its first steps, evaluations and saves; of a run that was resumed, it is wrong (it counts the steps
of the runs before). From transformers 5 on, numbers stand in quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepscope.core.recordings.training_log import CLOCK, RATE, Figure, FrameworkLog
from stepscope.readers.frameworks.lines import NUMBER, bars, number
from stepscope.readers.frameworks.parser import LEAST_MEAN_STEPS, MAX_CLOCKS, Clocks, Most

NAME = "Hugging Face Trainer"
SIGN = re.compile(
    rb"\{'(?:train_runtime|eval_runtime)': '?[\d.]|\{'(?:loss|eval_loss)': [^{}\n]{1,400}'epoch': "
    rb"'?[\d.]"
)
SIGN_MARKS = (b"{'train_runtime'", b"{'eval_runtime'", b"{'loss'", b"{'eval_loss'")
"""One of them is in whatever SIGN finds; they are sought faster."""
MARKS = ("'epoch': ", "'train_runtime': ", "%|")
PAIR = re.compile(rf"'([\w/]{{1,80}})': '?({NUMBER}|nan|inf)'?(?=[,}}])")
WRITER = re.compile(r"(?:\[[\w ]{1,20}\]:?)?")
"""A bar of the Trainer has no name; a launcher may put a rank before it."""
DICTIONARY = re.compile(r"\{'[\w/]{1,80}': [^{}]{1,4000}\}")


@dataclass(slots=True)
class Draft:
    clocks: Clocks = field(default_factory=lambda: Clocks(resolution_s=1.0))
    """By the bar's total: an evaluation has a bar of its own."""
    num_lines: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    evaluated_s: float = 0.0
    num_evaluations: int = 0
    summary: dict[str, float] = field(default_factory=dict)
    tokens_per_s: Most = field(default_factory=Most)
    first_at: dict[int, int] = field(default_factory=dict)
    """By the bar's total: the first step above 0 that it showed."""

    @property
    def is_open(self) -> bool:
        return False

    def take(self, line: str) -> None:
        if "%|" in line:
            for name, at, total, gone in bars(line):
                if WRITER.fullmatch(name):
                    self.clocks.add(total, at, float(gone))
                    if at > 0 and len(self.first_at) < MAX_CLOCKS:
                        self.first_at.setdefault(total, at)
        if "{'" in line:
            for text in DICTIONARY.findall(line)[:16]:
                self._take_pairs({name: number(value) for name, value in PAIR.findall(text)})

    def _take_pairs(self, pairs: dict[str, float | None]) -> None:
        told = {name: value for name, value in pairs.items() if value is not None}
        if "train_runtime" in told:
            self.summary = told
        elif "eval_runtime" in told:
            self.evaluated_s += max(0.0, min(told["eval_runtime"], 1e9))
            self.num_evaluations += 1
        elif "epoch" in told and "loss" in told:
            self.num_lines += 1
            self.first_loss = told["loss"] if self.first_loss is None else self.first_loss
            self.last_loss = told["loss"]
            self.tokens_per_s.add(told.get("train_tokens_per_second"))

    def _total(self) -> int | None:
        """The training bar's: the one that ran longest."""
        shown = {
            total: clock.last[1]
            for total, clock in self.clocks.by_key.items()
            if isinstance(total, int) and clock.last
        }
        return max(shown, key=lambda total: (shown[total], total)) if shown else None

    def _mean(self, total: int | None) -> tuple[int | None, int]:
        """Of the whole run, without its evaluations."""
        runtime, rate = (
            self.summary.get("train_runtime"),
            self.summary.get("train_steps_per_second"),
        )
        if runtime is None or runtime <= 0:
            return None, 0
        clock = None if total is None else self.clocks.by_key.get(total)
        if clock is not None and clock.last is not None and clock.last[0] == total:
            num = float(total)
        elif rate is not None and rate >= 0.1:  # it has three decimals
            num = rate * runtime
        else:
            return None, 0
        own = runtime - self.evaluated_s
        if round(num) < LEAST_MEAN_STEPS or own <= 0:
            return None, 0
        return round(own / num * 1e9) or None, round(num)

    def finished(self, path: str) -> FrameworkLog | None:
        if not self.num_lines and not self.summary:
            return None
        total = self._total()
        clock = None if total is None else self.clocks.by_key[total]
        step_ns, num = (None, 0) if clock is None else clock.steady()
        source = CLOCK
        # A bar that begins far into its total is of a run that was resumed: only the bar's own pace
        # is right then.
        was_resumed = total is not None and self.first_at.get(total, 0) > max(10, total // 10)
        if step_ns is None and not was_resumed:
            (step_ns, num), source = self._mean(total), RATE
        samples, tokens = self.summary.get("train_samples_per_second"), self.tokens_per_s.steady()
        return FrameworkLog(
            framework=NAME,
            path=path,
            step_ns=step_ns,
            step_source=None if step_ns is None else source,
            num_steps=num,
            last_step=clock.last[0] if clock is not None and clock.last is not None else None,
            num_lines=self.num_lines,
            tokens_per_s=None
            if tokens is None
            else Figure(value=tokens, convention="as it is written"),
            samples_per_s=None
            if samples is None
            else Figure(
                value=samples,
                convention="of the job, over the whole run with its evaluations and saves",
            ),
            first_loss=self.first_loss,
            last_loss=self.last_loss
            if self.last_loss is not None
            else self.summary.get("train_loss"),
            remarks=self._remarks(),
            notes=("the run was resumed: its mean over the whole run is not its pace",)
            if was_resumed and self.summary
            else (),
        )

    def _remarks(self) -> tuple[tuple[str, str], ...]:
        told = []
        if "train_runtime" in self.summary:
            told.append(("run time", f"{self.summary['train_runtime']:g} s"))
        if "train_steps_per_second" in self.summary:
            told.append(
                (
                    "steps/s",
                    (
                        f"{self.summary['train_steps_per_second']:g}, the mean of the run as it is "
                        "written"
                    ),
                )
            )
        if self.num_evaluations:
            told.append(("evaluations", f"{self.num_evaluations}, {self.evaluated_s:g} s together"))
        return tuple(told)
