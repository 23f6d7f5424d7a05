"""The cores of the host stand still in their own programs: for memory, or after wrong guesses.

What it sees: `perf stat` with less than one instruction for each cycle, beside the cache misses and
the branch misses that it counted.

Why it costs: a core of the last ten years finishes four instructions in a cycle. One that finishes
less than one is on a core and does nothing: no fewer lines of Python and no further thread shorten
that, but data that lies closer together does.

Evidence it needs: `perf stat -e cycles,instructions,cache-references,cache-misses,branches,
branch-misses -p PID -- sleep 10`. Virtual machines often have none of these counters.

What to do: for memory, arrays in place of lists and dictionaries, rows read in the order in which
they lie, smaller types, threads and memory on one socket (`numactl --cpunodebind=0 --membind=0`).
For branches, whole arrays (numpy, torch) in place of tests item by item. `perf record -g` names the
function.

Example: (for illustration, not measured) a loader that follows a list of two million Python objects
ran 0.5 instructions a cycle, with 34 % of its cache references missed.
"""

from __future__ import annotations

from msgspec import Struct

from stepscope.api import Abstention, Advice, Auxiliary, Rule
from stepscope.core.recordings.system import HostCounters

CODE = "stalled-cores"
BOUND = "host"
NEEDS = "perf stat -e cycles,instructions,cache-misses,branches,branch-misses -p PID -- sleep 10"


class Policy(Struct, frozen=True, kw_only=True):
    most_per_cycle: float = 1.0
    """Instructions. Wider cores finish four and more; chosen by the width, by no recording."""
    least_misses: float = 5.0
    """Cache misses for a thousand instructions: at 200 cycles each that is a cycle an instruction,
    one after the other (by the arithmetic, by no recording)."""
    least_wrong: float = 0.05
    """Share of all branches that are guessed wrong: one in five instructions is a branch, and a
    wrong one is some 20 cycles, so that this is a fifth of a cycle an instruction (by the
    arithmetic, by no recording)."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Advice | Abstention | None:
    counters = () if auxiliary.system is None else auxiliary.system.counters
    if not counters:
        return None
    counted = [each for each in counters if each.instructions_per_cycle is not None]
    if not counted:
        reason = "perf stat counted no instructions and cycles"
        return Abstention(code=CODE, reason=reason, needs=NEEDS)
    worst = min(counted, key=_per_cycle)
    if _per_cycle(worst) >= POLICY.most_per_cycle:
        return None
    for_memory = (worst.misses_per_1000 or 0.0) >= POLICY.least_misses
    for_branches = (worst.branch_miss_share or 0.0) >= POLICY.least_wrong
    if not for_memory and not for_branches:
        finished = f"{_per_cycle(worst):.2f} instructions a cycle"
        reason = f"the cores finish {finished}, and no counter says why"
        return Abstention(code=CODE, reason=reason, needs=NEEDS)
    causes = [
        words
        for words, is_so in (("memory", for_memory), ("wrongly guessed branches", for_branches))
        if is_so
    ]
    actions = (
        "arrays in place of Python's lists and dicts, rows read in the order they lie in",
        "whole arrays in place of tests item by item",
    )
    named = [
        words for words, is_so in zip(actions, (for_memory, for_branches), strict=True) if is_so
    ]
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The cores finish {_per_cycle(worst):.2f} instructions a cycle: they wait for "
        f"{' and '.join(causes)}.",
        action=f"{'; '.join(named)}; perf record -g -p PID names the function",
        evidence=(f"{worst.path}: {'; '.join(_figures(worst))}",),
    )


def _per_cycle(counters: HostCounters) -> float:
    return counters.instructions_per_cycle or 0.0


def _figures(counters: HostCounters) -> list[str]:
    figures = (
        (counters.misses_per_1000, "{:.0f} cache misses for 1,000 instructions"),
        (counters.cache_miss_share, "{:.0%} of cache references missed"),
        (counters.branch_miss_share, "{:.0%} of branches missed"),
    )
    return [form.format(value) for value, form in figures if value is not None]


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
