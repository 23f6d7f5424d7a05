"""Lightning's profilers (simple, advanced) and its progress bars.

    FIT Profiler Report
    |  Action                            |  Mean duration (s) |  Num calls  |  Total time (s) |...
    |  run_training_batch                |  0.002805          |  160        |  0.4488         |...
    |  [LightningModule]M.optimizer_step |  0.0027284         |  160        |  0.43655        |...

    Profile stats for: run_training_batch
             11200 function calls (10880 primitive calls) in 0.015 seconds

Times are the host's, over the whole run, its first steps too. Actions stand inside one another:
run_training_batch has optimizer_step in it, which has training_step and backward in it. A bar
counts batches, not optimizer steps.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from stepscope.core.recordings.training_log import RATE, SUM, Action, FrameworkLog, Phase
from stepscope.readers.text_lines import NUMBER, bars, number, whole
from stepscope.recordings.frameworks.parser import FrameworkParser
from stepscope.recordings.frameworks.series import MIN_MEAN_STEPS

BAR_NAME = "progress bar, as Lightning draws it"
HEADER = ("Action", "Mean duration (s)")
ADVANCED = re.compile(r"Profile stats for: (.{1,300}?)(?: rank: \d{1,7})?\s*$")
SECONDS = re.compile(
    rf"\d function calls (?:\(\d{{1,15}} primitive calls\) )?in ({NUMBER}) seconds"
)
EPOCH = re.compile(r"Epoch \d{1,9}:$")
MAX_ACTIONS = 1024
MAX_NAME = 300
MAX_SECONDS = 1e9
VALIDATION = ("validation_step", "val_next", "val_dataloader_next", "on_validation")
NEXT = ("train_dataloader_next", "get_train_batch", "fetch_next_train_batch")
LEAVES = (
    *NEXT, ".training_step", ".backward", ".batch_to_device", ".optimizer_zero_grad",
    ".configure_gradient_clipping",
)  # fmt: skip


class LightningParser(FrameworkParser):
    NAME = "Lightning"
    SIGN = re.compile(
        rb"^(?:[^\n]{0,80} )?Profiler Report\s{0,8}\n(?:\s{0,8}\n)?"
        rb"(?:-{20,2000}\s{0,4}\n\|  Action\s|Profile stats for: )"
        rb"|(?:^|[\r\n])[^\r\n|]{0,40}Epoch \d{1,9}: {1,4}\d{1,3}%\|[^|\r\n]{0,300}\|"
        rb" \d{1,12}/\d{1,12} \[[\d:]{4,12}<[^\]\r\n]{0,20}(?:it/s|s/it), ",
        re.MULTILINE,
    )
    SIGN_MARKS = (b"Profiler Report", b"it/s, ", b"s/it, ")

    RESOLUTION_S = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.actions: dict[str, Action] = {}
        self.is_table = False
        self.is_advanced = False
        self.action: str | None = None
        """Action whose seconds follow, in the advanced profiler's report."""
        self.total_s: float | None = None
        self.is_named = False
        """A bar has the number of Lightning's logger in it: other loops draw such bars too."""
        self.num_left_out = 0

    def _take_bars(self, line: str, _match: re.Match[str]) -> None:
        for name, step, total, seconds in bars(line):
            if EPOCH.search(name):
                self.is_named = self.is_named or "v_num=" in line
                self.clocks.add(total, step, float(seconds))

    def _take_row(self, line: str, _match: re.Match[str]) -> None:
        cells = tuple(cell.strip() for cell in line.split("|")[1:-1])
        if cells[:2] == HEADER:
            self.is_table = True
            return
        if not self.is_table or len(cells) not in (3, 5) or not 0 < len(cells[0]) <= MAX_NAME:
            return
        has_calls = len(cells) == 5
        total = cells[3] if has_calls else cells[2]
        if cells[:2] == ("Total", "-"):
            self.total_s = number(total)
            return
        num_calls = whole(cells[2]) if has_calls else None
        mean_ns, total_ns = _nanoseconds(cells[1]), _nanoseconds(total)
        if mean_ns is not None and total_ns is not None:
            self._keep(
                Action(name=cells[0], num_calls=num_calls, total_ns=total_ns, mean_ns=mean_ns)
            )

    def _take_action(self, _line: str, match: re.Match[str]) -> None:
        self.action, self.is_advanced = match[1], True

    def _take_seconds(self, _line: str, match: re.Match[str]) -> None:
        total_ns = _nanoseconds(match[1])
        if self.action is not None and total_ns is not None:
            self._keep(Action(name=self.action, num_calls=None, total_ns=total_ns, mean_ns=None))
        self.action = None

    LINES = (
        ("Epoch ", re.compile(r"%\|"), _take_bars),
        ("|  ", re.compile(r"\|  "), _take_row),
        ("Profile stats for: ", ADVANCED, _take_action),
        (" function calls ", SECONDS, _take_seconds),
    )

    def _keep(self, action: Action) -> None:
        if action.name in self.actions or len(self.actions) < MAX_ACTIONS:
            self.actions[action.name] = action
        else:
            self.num_left_out += 1

    def _calls(self, ending: str) -> int | None:
        """Calls of the one action whose name ends so; None where there is none, or several: a run
        with several optimizers."""
        actions = [
            action for name, action in self.actions.items() if name.rpartition(".")[2] == ending
        ]
        return actions[0].num_calls if len(actions) == 1 else None

    def step_time(self) -> tuple[int | None, int, str | None]:
        """Step time over the whole run: what the epochs took, or without that what batches and the
        loader took, by optimizer step."""
        num, batch = self._calls("optimizer_step"), self.actions.get("run_training_batch")
        if (
            num is None
            or num < MIN_MEAN_STEPS
            or batch is None
            or batch.num_calls is None
            or num > batch.num_calls
        ):
            return None, 0, None
        epoch = self.actions.get("run_training_epoch")
        is_validated = any(word in name for name in self.actions for word in VALIDATION)
        if epoch is not None and epoch.total_ns >= batch.total_ns and not is_validated:
            return round(epoch.total_ns / num) or None, num, RATE
        loader = sum(
            action.total_ns for name, action in self.actions.items() if name.endswith(NEXT)
        )
        return round((batch.total_ns + loader) / num) or None, num, SUM

    def _phases(self, num: int) -> tuple[Phase, ...]:
        """The innermost actions of a step, by step."""
        phases = [
            Phase(name=action.name, ns=round(action.total_ns / num))
            for action in self.actions.values()
            if num and action.name.endswith(LEAVES) and action.total_ns
        ]
        return tuple(sorted(phases, key=lambda phase: -phase.ns))

    def is_empty(self) -> bool:
        return not self.actions and not self.clocks.by_key

    def remarks(self) -> tuple[tuple[str, str], ...]:
        remarks = []
        batch_ns, num = self.clocks.steady()
        if batch_ns is not None:
            words = f"{batch_ns / 1e6:.4g} ms, by the progress bar ({num} batches)"
            remarks.append(("batch", words))
        if self.total_s is not None:
            remarks.append(("profiled", f"{self.total_s:g} s"))
        return tuple(remarks)

    def notes(self) -> tuple[str, ...]:
        notes = []
        if not self.actions:
            notes.append(
                "the progress bar counts batches: how many an optimizer step takes it does not say"
            )
        if self.is_advanced:
            notes.append(
                "the advanced profiler (cProfile) slows the host: its times are shares, not the "
                "run's"
            )
        if self.step_time()[0] is not None:
            notes.append("the step is a mean of the whole run, its first steps too")
        if self.num_left_out:
            notes.append(f"{self.num_left_out} further action(s) were left out")
        return tuple(notes)

    def finished(self, path: str) -> FrameworkLog | None:
        log = super().finished(path)
        if log is None:
            return None
        return replace(
            log,
            framework=self.NAME if self.actions or self.is_named else BAR_NAME,
            phases=self._phases(log.num_steps),
            actions=tuple(sorted(self.actions.values(), key=lambda action: -action.total_ns)),
        )


def _nanoseconds(seconds: str) -> int | None:
    value = number(seconds)
    return round(value * 1e9) if value is not None and 0 <= value < MAX_SECONDS else None
