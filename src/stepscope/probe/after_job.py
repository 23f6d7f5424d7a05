"""What `run` does after its job, and `fix` before its first trial: times the heaviest operators
where the device is free, so that the gains are measured and not modelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.additions import AfterJob
from stepscope.cli.options import int_in_range
from stepscope.cli.printing import say
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.core.hardware import ProbedTimes

BUDGET_S = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is timed, and for how long."""

    budget_s: int = declare.option(
        "--probe SECONDS",
        f"time the heaviest operators for so long while no job runs (default: {BUDGET_S})",
        int_in_range("a number of seconds: 1 to 3600", 1, 3600),
        BUDGET_S,
    )
    is_on: bool = declare.option(
        "--no-probe", "time no operators on the device", action="store_false"
    )


def time_after(devices: dict[str, ProbedTimes], command: Sequence[str], options: Options) -> bool:
    """Whether anything was timed. A failure is one line, and the diagnosis stands as it is."""
    from stepscope.probe.probing import asked_of
    from stepscope.probe.process import python_of, time_cases
    from stepscope.probe.store import keep

    if not options.is_on or not devices:
        return False
    device, cases, _ = asked_of(devices)
    if not cases:
        return False
    say(f"timing {len(cases)} cases of operators on {device}, for {options.budget_s} s at most")
    try:
        probed = time_cases(python_of(command), device, cases, options.budget_s)
    except StepscopeError as problem:
        say(f"{problem}; gains are modelled")
        return False
    keep(probed)
    return True


ADDITION = AfterJob(Options, time_after)
