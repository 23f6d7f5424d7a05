"""Lightning's profilers (simple, advanced) and its progress bars.

    FIT Profiler Report
    |  Action                                  |  Mean duration (s) |  Num calls  |  Total time (s) |  Percentage %  |
    |  run_training_batch                      |  0.002805          |  160        |  0.4488         |  69.831        |
    |  [LightningModule]M.optimizer_step       |  0.0027284         |  160        |  0.43655        |  67.925        |

    Profile stats for: run_training_batch
             11200 function calls (10880 primitive calls) in 0.015 seconds

Times are the host's, over the whole run, its first steps too. Actions stand inside one another:
run_training_batch has optimizer_step in it, which has training_step and backward in it. A bar
counts batches, not optimizer steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepscope.core.recordings.training_log import RATE, SUM, Action, FrameworkLog, Phase
from stepscope.readers.frameworks.lines import NUMBER, bars, number, whole
from stepscope.readers.frameworks.parser import LEAST_MEAN_STEPS, Clocks

NAME = "Lightning"
BAR_NAME = "progress bar, as Lightning draws it"
SIGN = re.compile(
    rb"^(?:[^\n]{0,80} )?Profiler Report\s{0,8}\n(?:\s{0,8}\n)?(?:-{20,2000}\s{0,4}\n\|  "
    rb"Action\s|Profile stats for: )"
    rb"|(?:^|[\r\n])[^\r\n|]{0,40}Epoch \d{1,9}: {1,4}\d{1,3}%\|[^|\r\n]{0,300}\|"
    rb" \d{1,12}/\d{1,12} \[[\d:]{4,12}<[^\]\r\n]{0,20}(?:it/s|s/it), ",
    re.MULTILINE,
)
SIGN_MARKS = (b"Profiler Report", b"it/s, ", b"s/it, ")
"""One of them is in whatever SIGN finds; they are sought faster."""
MARKS = ("Profiler Report", "|  ", "Profile stats for: ", " function calls ", "Epoch ")
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
    *NEXT,
    ".training_step",
    ".backward",
    ".batch_to_device",
    ".optimizer_zero_grad",
    ".configure_gradient_clipping",
)


@dataclass(slots=True)
class Draft:
    actions: dict[str, Action] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=lambda: Clocks(resolution_s=1.0))
    is_table: bool = False
    is_advanced: bool = False
    name: str | None = None
    total_s: float | None = None
    is_named: bool = False
    """A bar has the number of Lightning's logger in it: other loops draw such bars too."""
    num_left_out: int = 0

    @property
    def is_open(self) -> bool:
        return False

    def take(self, line: str) -> None:
        if "%|" in line and "Epoch " in line:
            self._take_bars(line)
        elif "|  " in line:
            self._take_row(line)
        elif "Profile stats for: " in line and (found := ADVANCED.search(line)):
            self.name, self.is_advanced = found[1], True
        elif self.name is not None and (found := SECONDS.search(line)):
            seconds = number(found[1])
            if seconds is not None and 0 <= seconds < MAX_SECONDS:
                self._keep(
                    Action(
                        name=self.name, num_calls=None, total_ns=round(seconds * 1e9), mean_ns=None
                    )
                )
            self.name = None

    def _take_bars(self, line: str) -> None:
        for name, at, total, gone in bars(line):
            if EPOCH.search(name):
                self.is_named = self.is_named or "v_num=" in line
                self.clocks.add(total, at, float(gone))

    def _take_row(self, line: str) -> None:
        cells = tuple(cell.strip() for cell in line.split("|")[1:-1])
        if cells[:2] == HEADER:
            self.is_table = True
            return
        if not self.is_table or len(cells) not in (3, 5) or not 0 < len(cells[0]) <= MAX_NAME:
            return
        mean, total = number(cells[1]), number(cells[-1] if len(cells) == 3 else cells[3])
        if cells[:2] == ("Total", "-"):
            self.total_s = total
        elif (
            mean is not None
            and total is not None
            and 0 <= total < MAX_SECONDS
            and 0 <= mean < MAX_SECONDS
        ):
            num = whole(cells[2]) if len(cells) == 5 else None
            self._keep(
                Action(
                    name=cells[0],
                    num_calls=num,
                    total_ns=round(total * 1e9),
                    mean_ns=round(mean * 1e9),
                )
            )

    def _keep(self, action: Action) -> None:
        if action.name in self.actions or len(self.actions) < MAX_ACTIONS:
            self.actions[action.name] = action
        else:
            self.num_left_out += 1

    def _calls(self, ending: str) -> int | None:
        """Of the one action whose name ends so; None where there is none, or several: a run with
        several optimizers."""
        found = [
            action for name, action in self.actions.items() if name.rpartition(".")[2] == ending
        ]
        return found[0].num_calls if len(found) == 1 else None

    def _step(self) -> tuple[int | None, int, str | None]:
        """Over the whole run: what the epochs took, or without that what batches and the loader
        took, by optimizer step."""
        num, batch = self._calls("optimizer_step"), self.actions.get("run_training_batch")
        if (
            num is None
            or num < LEAST_MEAN_STEPS
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
        told = [
            action
            for action in self.actions.values()
            if action.name.endswith(LEAVES) and action.total_ns
        ]
        made = (
            [Phase(name=action.name, ns=round(action.total_ns / num)) for action in told]
            if num
            else []
        )
        return tuple(sorted(made, key=lambda phase: -phase.ns))

    def finished(self, path: str) -> FrameworkLog | None:
        if not self.actions and not self.clocks.by_key:
            return None
        step_ns, num, source = self._step()
        batch_ns, num_batches = self.clocks.steady()
        batches = (
            ()
            if batch_ns is None
            else (
                ("batch", f"{batch_ns / 1e6:.4g} ms, by the progress bar ({num_batches} batches)"),
            )
        )
        whole_run = () if self.total_s is None else (("profiled", f"{self.total_s:g} s"),)
        is_bar = not self.actions
        notes = (
            ["the progress bar counts batches: how many an optimizer step takes it does not say"]
            if is_bar
            else []
        )
        if self.is_advanced:
            notes.append(
                "the advanced profiler (cProfile) slows the host: its times are shares, not the "
                "run's"
            )
        if step_ns is not None:
            notes.append("the step is a mean of the whole run, its first steps too")
        if self.num_left_out:
            notes.append(f"{self.num_left_out} further action(s) were left out")
        return FrameworkLog(
            framework=NAME if self.actions or self.is_named else BAR_NAME,
            path=path,
            step_ns=step_ns,
            step_source=None if step_ns is None else source,
            num_steps=num,
            phases=self._phases(num),
            actions=tuple(sorted(self.actions.values(), key=lambda action: -action.total_ns)),
            remarks=(*batches, *whole_run),
            notes=tuple(notes),
        )
