"""A comparison in words: its headline, and what its terms are called."""

from __future__ import annotations

from stepscope.core.comparison import OVERLAP, Changed, ComparedRun, Comparison, Held, Speedup
from stepscope.core.scaling import RANK_SPREAD, UNPROFILED
from stepscope.report.names import kernel_name, op_name
from stepscope.report.step_view import PART_WORDS
from stepscope.report.units import fixed, ms, percent, plural

PART_NAMES = PART_WORDS | {RANK_SPREAD: "median rank less the mean", UNPROFILED: "without the profiler, less recorded"}
SOURCE_WORDS = {
    "unprofiled": "no profiler",
    "given": "as given",
    "kept": "as its diagnosis has it",
    "recorded": "while profiled",
}
HOW_WORDS = {
    "came": "new",
    "went": "gone",
    "replaced": "replaced",
    "launcher": "launched otherwise",
    "precision": "precision",
    "shape": "shapes",
    "count": "calls",
    "kernels": "kernels",
    "time": "time alone",
}
STATUS_WORDS = {"gone": "gone", "still there": "still there", "not judged": "not judged in the second", "new": "new"}
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letter(place: int) -> str:
    """What the run at this place is called: A is the first."""
    return LETTERS[place] if place < len(LETTERS) else f"run {place + 1}"


def ratio(value: float) -> str:
    """0.003, 1.003, 2.08, 288."""
    if 0 < value < 0.1:
        return f"{value:.2g}x"
    digits = 0 if value >= 99.5 else 1 if value >= 9.95 else 2 if abs(value - 1) >= 0.05 else 3
    return f"{value:.{digits}f}x"


def interval_words(speedup: Speedup) -> str:
    """The ratio, and between what it lies."""
    if speedup.value is None:
        return "not measured"
    if speedup.low is None or speedup.high is None:
        return ratio(speedup.value)
    return f"{ratio(speedup.value)} ({ratio(speedup.low)} to {ratio(speedup.high)})"


def headline(comparison: Comparison, name: str) -> str:
    """The answer in a sentence; `name` is the second run's letter."""
    speedup, before, after = comparison.speedup, comparison.before, comparison.after
    if speedup.value is None or before.step_ns is None or after.step_ns is None:
        if not comparison.accounts:
            return f"Nothing to compare between A and {name}: {speedup.why}."
        return f"The steps of A and {name} cannot be compared: {speedup.why}."
    steps = f"a step takes {ms(after.step_ns)} instead of {ms(before.step_ns)}"
    sure = interval_words(speedup)
    if speedup.verdict == "faster":
        return f"{name} is {sure} as fast as A: {steps}."
    if speedup.verdict == "slower":
        return f"{name} is slower than A, {sure} as fast: {steps}."
    if speedup.verdict == "no difference seen":
        return f"No difference seen between A and {name}: {sure}; {steps}."
    return f"{name} seems {sure} as fast as A: {steps}."


def sure_words(comparison: Comparison) -> str | None:
    """How sure the answer is, where there is one."""
    speedup = comparison.speedup
    if speedup.value is None:
        return None
    if speedup.low is None:
        return f"How sure that is, is not known: {speedup.why}."
    return f"The interval holds 19 times in 20, over steps. {smallest_words(comparison)}"


def smallest_words(comparison: Comparison) -> str:
    smallest = comparison.speedup.smallest
    if smallest is None:
        return "What these samples could have shown is not known."
    change = percent(smallest - 1)
    steps = f"{fixed(comparison.before.num_steps, 0)} and {fixed(comparison.after.num_steps, 0)} steps"
    return f"A change of less than {change} could not have been shown by {steps}."


def throughput_words(comparison: Comparison, name: str) -> str | None:
    """Where the two do not do the same work a step: how much work is done in a second."""
    told = comparison.throughput
    if told is None or told.value is None:
        return None
    unit = comparison.throughput_unit
    return f"Of work in a second, which is what can be compared, {name} does {interval_words(told)} as many {unit} as A."


def step_words(run: ComparedRun) -> str:
    """`31.5 ms, no profiler, median of 40 steps`."""
    if run.step_ns is None:
        return "not measured"
    num = f", {'mean' if run.is_mean else 'median'} of {plural(run.num_steps, 'step')}" if run.num_steps else ""
    return f"{ms(run.step_ns)}, {SOURCE_WORDS[run.source]}{num}"


def row_name(by: str, name: str) -> str:
    """A row of an account as it is shown."""
    if name == OVERLAP:
        return "less what ran at once"
    if by == "part":
        return PART_NAMES.get(name, name)
    return kernel_name(name) if by == "kernel" else name


def changed_name(one: Changed) -> str:
    """The operators before; those after, where they are new."""
    if one.how == ("launcher",):
        return op_name(one.name)
    work = one.before or one.after
    return "" if work is None else _ops_words(work.ops)


def _ops_words(ops: tuple[str, ...], most: int = 4) -> str:
    names = list(dict.fromkeys(kernel_name(op_name(name)) for name in ops))
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def how_words(one: Changed) -> str:
    """What is different: `precision fp32 to bf16, kernels`, `replaced by triton_poi_fused`."""
    told = []
    for how in one.how:
        word = HOW_WORDS[how]
        if how == "precision" and one.before is not None and one.after is not None:
            word += f" {'/'.join(one.before.precisions) or 'not known'} to {'/'.join(one.after.precisions) or 'not known'}"
        if how == "replaced" and one.after is not None:
            word += f" by {_ops_words(one.after.ops, most=2)}"
        told.append(word)
    return ", ".join(told)


def held_words(one: Held) -> str:
    if one.agrees is None:
        return "-"
    return "yes" if one.agrees else "no"


def calls_words(one: Changed) -> str:
    """`60 to 12`, or one number where it did not change."""
    first, second = (None if work is None else work.count for work in (one.before, one.after))
    counts = [_count(value) for value in (first, second) if value is not None]
    return counts[0] if len(set(counts)) == 1 else " to ".join(counts)


def _count(value: float) -> str:
    return fixed(value, 0) if abs(value - round(value)) < 0.005 or value >= 99.5 else f"{value:.1f}"
