"""A comparison in words: its headline, and what its terms are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from stepscope.core.experiments.comparison import (
    OVERLAP,
    Changed,
    ComparedRun,
    Comparison,
    PredictionOutcome,
    Speedup,
)
from stepscope.core.scaling import RANK_SPREAD, UNPROFILED
from stepscope.experiments.compare.speed import is_host_slowed
from stepscope.report.diagnosis.view import ON_HOST_WORDS, PART_WORDS
from stepscope.report.words import MAX_CHARS, NBSP, fixed, kernel_name, ms, op_name, percent, plural

PART_NAMES = PART_WORDS | {
    RANK_SPREAD: "median rank less the mean",
    UNPROFILED: "without the profiler, less recorded",
}
SOURCE_WORDS = {
    "unprofiled": "no profiler",
    "given": "as given",
    "kept": "as its diagnosis has it",
    "recorded": "while profiled",
}
HOW_WORDS = {
    "came": "new", "went": "gone", "replaced": "replaced", "launcher": "launched otherwise",
    "precision": "precision", "shape": "shapes", "count": "calls", "kernels": "kernels",
    "time": "time alone",
}  # fmt: skip
WORD = re.compile(r"[A-Za-z_]\w{2,}")
NO_TELLING = frozenset(
    {"anonymous", "c10", "const", "double", "float", "lambda", "namespace", "native", "std", "void"}
)
"""Words of kernels' names that tell nothing of what they do."""
MIN_TOLD = 0.005
"""Distance from 1 within which a ratio without an interval is not called faster or slower."""
MAX_DIGITS = 6
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letter(index: int) -> str:
    """What the run at this index is called: A is the first."""
    return LETTERS[index] if index < len(LETTERS) else f"run {index + 1}"


def ratio(value: float, *, is_sure: bool = False) -> str:
    """0.003, 1.003, 2.08, 288. With `is_sure`, what is not 1 does not look like it: 1.0002."""
    if 0 < value < 0.1:
        return f"{value:.2g}x"
    digits = 2 if abs(value - 1) >= 0.05 else 3
    if value >= 9.95:
        digits = 0 if value >= 99.5 else 1
    while is_sure and digits < MAX_DIGITS and value != 1 and float(f"{value:.{digits}f}") == 1:
        digits += 1
    return f"{value:.{digits}f}x"


def interval_words(speedup: Speedup) -> str:
    """The ratio, and between what it lies."""
    if speedup.value is None:
        return "not measured"
    if speedup.low is None or speedup.high is None:
        return ratio(speedup.value)
    ends = (speedup.value, speedup.low, speedup.high)
    value, low, high = (ratio(end, is_sure=True) for end in ends)
    return f"{value} ({low} to {high})"


def headline(comparison: Comparison, name: str) -> str:
    """The answer in a sentence; `name` is the second run's letter."""
    speedup, before, after = comparison.speedup, comparison.before, comparison.after
    if speedup.value is None or before.step_ms is None or after.step_ms is None:
        if not comparison.accounts:
            return f"Nothing to compare between A and {name}: {speedup.why}."
        return f"The steps of A and {name} cannot be compared: {speedup.why}."
    steps = _steps_words(before.step_ms * 1e6, after.step_ms * 1e6)
    steps += ", while profiled" if before.source == "recorded" else ""
    sure = interval_words(speedup)
    if speedup.verdict == "faster":
        return f"{name} is {sure} as fast as A: {steps}."
    if speedup.verdict == "slower":
        return f"{name} is slower than A, {sure} as fast: {steps}."
    if speedup.verdict == "no difference seen":
        return f"No difference seen between A and {name}: {sure}; {steps}."
    if abs(speedup.value - 1) < MIN_TOLD:
        return f"{name} seems about as fast as A, {sure}: {steps}."
    if speedup.value < 1:
        return f"{name} seems slower than A, {sure} as fast: {steps}."
    return f"{name} seems {sure} as fast as A: {steps}."


def _steps_words(before_ns: float, after_ns: float) -> str:
    """Both times, with digits enough to tell them apart where they differ."""
    first, second = ms(before_ns), ms(after_ns)
    for digits in range(1, MAX_DIGITS + 1):
        if first != second or before_ns == after_ns:
            break
        first, second = (f"{fixed(ns / 1e6, digits)}{NBSP}ms" for ns in (before_ns, after_ns))
    if first == second:
        return f"a step takes {second} in both"
    return f"a step takes {second} instead of {first}"


def host_words(comparison: Comparison, name: str) -> str | None:
    """Words that the ratio is not that of the steps without a profiler, where a device waits for
    the host."""
    runs = {"A": comparison.before, name: comparison.after}
    if comparison.speedup.value is None or any(run.source != "recorded" for run in runs.values()):
        return None
    account = comparison.accounts.get("part")
    waits: tuple[int | None, int | None] = (None, None)
    for row in () if account is None else account.rows:
        if row.name == "idle_launch":
            waits = (row.before_ns, row.after_ns)
    limited = [
        word
        for (word, run), wait in zip(runs.items(), waits, strict=True)
        if is_host_slowed(wait, None if run.step_ms is None else run.step_ms * 1e6, run.bound)
    ]
    if not limited:
        return None
    return (
        "The profiler slows the host, and the device waits for the host in "
        f"{' and '.join(limited)}: without it the ratio may be quite another. "
        "--step-ms gives the times without it."
    )


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
    steps = (
        f"{fixed(comparison.before.num_steps, 0)} and {fixed(comparison.after.num_steps, 0)} steps"
    )
    return f"The smallest change that {steps} show four times in five is {change}."


def throughput_words(comparison: Comparison, name: str) -> str | None:
    """Where the two do not do the same work a step: how much work is done in a second."""
    throughput = comparison.throughput
    if throughput is None or throughput.value is None:
        return None
    return (
        f"Of work in a second, which is what can be compared, {name} does "
        f"{interval_words(throughput)} as many {throughput.unit} as A."
    )


def step_words(run: ComparedRun) -> str:
    """`31.5 ms, no profiler, median of 40 steps`."""
    if run.step_ms is None:
        return "not measured"
    num = ""
    if run.num_steps:
        num = f", {'mean' if run.is_mean else 'median'} of {plural(run.num_steps, 'step')}"
    return f"{ms(run.step_ms * 1e6)}, {SOURCE_WORDS[run.source]}{num}"


def part_names(comparison: Comparison) -> dict[str, str]:
    """What the rows of the account of parts are called."""
    device = comparison.device
    on_host = device is not None and device.where == "host"
    return PART_NAMES | ON_HOST_WORDS if on_host else PART_NAMES


def row_name(name: str) -> str:
    """A row of an account, but for that of parts, as it is shown."""
    return "less what ran at once" if name == OVERLAP else name


def distinct_kernels(names: Sequence[str]) -> list[str]:
    """Kernels as they are shown; those that look alike when short have with them the first word
    that only theirs has.

    vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, ...>(...)
    vectorized_elementwise_kernel<4, ...> MulFunctor
    """
    shown = [kernel_name(name) for name in names]
    alike: dict[str, list[int]] = {}
    for index, short in enumerate(shown):
        alike.setdefault(short, []).append(index)
    for indices in alike.values():
        if len(indices) > 1:
            words = [
                [word for word in WORD.findall(names[index][:MAX_CHARS]) if word not in NO_TELLING]
                for index in indices
            ]
            spread = Counter(word for own in words for word in set(own))
            for index, own in zip(indices, words, strict=True):
                rarest = min(own, key=lambda word: spread[word], default="")
                shown[index] += f" {rarest}" if rarest and spread[rarest] < len(indices) else ""
    return shown


def changed_name(changed: Changed) -> str:
    """The operators before; those after, where they are new."""
    if changed.how == ("launcher",):
        return ", ".join(map(op_name, changed.name.split(", ")))
    work = changed.before or changed.after
    return "" if work is None else _ops_words(work.ops)


def _ops_words(ops: tuple[str, ...], most: int = 4) -> str:
    names = list(dict.fromkeys(kernel_name(op_name(name)) for name in ops))
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def how_words(changed: Changed) -> str:
    """What is different: `precision fp32 to bf16, kernels`, `replaced by triton_poi_fused`."""
    differences = []
    for how in changed.how:
        word = HOW_WORDS[how]
        if how == "precision" and changed.before is not None and changed.after is not None:
            if set(changed.before.precisions) == set(changed.after.precisions):
                differences.append(f"{word} of a part")
                continue
            word += (
                f" {'/'.join(changed.before.precisions) or 'not known'} to "
                f"{'/'.join(changed.after.precisions) or 'not known'}"
            )
        if how == "replaced" and changed.after is not None:
            word += f" by {_ops_words(changed.after.ops, most=2)}"
        differences.append(word)
    return ", ".join(differences)


def held_words(held: PredictionOutcome) -> str:
    if held.agrees is None:
        return "-"
    return "yes" if held.agrees else "no"


def calls_words(changed: Changed) -> str:
    """`60 to 12`, or one number where it did not change."""
    first, second = (
        None if work is None else work.count for work in (changed.before, changed.after)
    )
    counts = [_count(value) for value in (first, second) if value is not None]
    return counts[0] if len(set(counts)) == 1 else " to ".join(counts)


def _count(value: float) -> str:
    return fixed(value, 0) if abs(value - round(value)) < 0.005 or value >= 99.5 else f"{value:.1f}"
