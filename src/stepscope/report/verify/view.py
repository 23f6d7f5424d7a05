"""What verify proved: the verdict, both sides, the runs, and what they computed."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.experiments.experiment import (
    DIVERGES,
    LOSS_BASELINE,
    LOSS_UNSEEN,
    NO_GAIN,
    PROVEN,
    REFUSED,
    UNSETTLED,
    WORSE,
    Interval,
    NumericsCheck,
    Prediction,
    Run,
    Side,
    SideSummary,
    Verified,
)
from stepscope.core.experiments.trials import Change
from stepscope.experiments.verify.numerics_check import DIFFERS
from stepscope.report.document.blocks import (
    Block,
    Code,
    Column,
    Headline,
    Prose,
    Section,
    Table,
    Tone,
    as_document,
    notes,
    numbers,
)
from stepscope.report.words import NBSP, capital, percent, plural, short_time

VERDICT_WORDS = {
    PROVEN: "Gain proven", NO_GAIN: "No gain", WORSE: "Worse", UNSETTLED: "Not settled",
    DIVERGES: "Diverges", REFUSED: "Refused",
}  # fmt: skip
TONES: dict[str, Tone] = {PROVEN: "good", WORSE: "bad", DIVERGES: "bad", REFUSED: "bad"}
MAX_TAIL_LINES = 12
MAX_SHOWN = 3.0
"""A smallest gain beyond this says that nothing could have been shown."""
LARGE = 1000.0
"""A ratio above this is not written out."""


def summary_words(verified: Verified) -> str:
    """The verdict in a sentence or two."""
    head = VERDICT_WORDS[verified.verdict]
    if verified.speedup is None:
        return f"{head}: {verified.because}."
    unit = verified.unit
    times = [side.ms for _, side in verified.sides]
    step_times = ""
    if None not in times:
        step_times = f", {_took(times[0] or 0)} a {unit} before, {_took(times[1] or 0)} after"
    words = f"{head}: {interval_words(verified.speedup)}{step_times}."
    other = ""
    if verified.is_gain and computes_else(verified):
        other = " But the two do not compute the same."
    return f"{words}{other}{_loss_doubt(verified)} {_after(verified)}"


def _loss_doubt(verified: Verified) -> str:
    """Where nothing trains, a gain is one of a job that does not: the verdict itself says so."""
    loss = verified.loss
    if verified.is_gain and loss is not None and loss.verdict == LOSS_BASELINE:
        return f" But {loss.because}."
    return ""


def loss_words(verified: Verified) -> str | None:
    """How the loss went; None where it was not seen, or the verdict says it."""
    loss = verified.loss
    if loss is None or loss.verdict == LOSS_UNSEEN or verified.verdict == DIVERGES:
        return None
    return loss.because


def computes_else(verified: Verified) -> bool:
    """Whether the check saw other numbers than the baseline's."""
    return verified.check is not None and verified.check.verdict == DIFFERS


def interval_words(interval: Interval) -> str:
    """`1.53x faster (1.49-1.58)`: before / after, with the interval."""
    direction = " the speed" if interval.value < 1 else " as fast"
    if interval.low is None or interval.high is None or interval.high > LARGE:
        return f"{interval.value:.3g}x{direction} (how sure that is, is not known)"
    decimals = 2 if interval.high / interval.low > 1.05 else 3
    low, high = f"{interval.low:.{decimals}f}", f"{interval.high:.{decimals}f}"
    return (
        f"{interval.value:.{decimals}f}x{direction} ({low}-{high}, "
        f"{interval.level * 100:.0f}{NBSP}%)"
    )


def span_words(interval: Interval) -> str:
    """` (1.49-1.58)`; that it has hardly an end, where that is so."""
    if interval.low is None or interval.high is None or interval.high > LARGE:
        return " (how sure that is, is not known)"
    return f" ({interval.low:.2f}-{interval.high:.2f})"


def smallest_words(verified: Verified) -> str:
    """What the runs could have shown."""
    if verified.smallest is None or verified.smallest > MAX_SHOWN:
        more = "give more of them (--max-rounds), or longer ones (--steps)"
        return f"These runs differ too much among themselves to show anything: {more}"
    runs = plural(verified.baseline.num_runs, "run")
    return (
        f"The smallest gain that {runs} a side would have shown is about "
        f"{percent(verified.smallest - 1)}"
    )


def prediction_words(prediction: Prediction, speedup: Interval | None) -> str:
    span = ""
    if prediction.low is not None and prediction.high is not None:
        span = f" ({prediction.low:.2f}-{prediction.high:.2f})"
    said = f"{prediction.source} predicted {prediction.value:.2f}x{span}"
    if speedup is None:
        return f"{said}; there is no interval to hold it against"
    gave = f"it gave {speedup.value:.2f}x{span_words(speedup)}"
    if prediction.verdict == "open":
        return (
            f"{said}; {gave}, in which no gain at all lies, too: nothing is known of the prediction"
        )
    return (
        f"{said}; {gave}: the prediction "
        f"{'held' if prediction.verdict == 'held' else f'was {prediction.verdict}'}"
    )


def change_words(change: Change) -> str:
    """`num_workers=2, persistent_workers=True, OMP_NUM_THREADS=1`."""
    return ", ".join(
        [f"{name}={value}" for name, value in change.knobs.items()]
        + [f"{name}={value}" for name, value in change.environment.items()]
        + list(change.arguments)
    )


def _after(verified: Verified) -> str:
    if verified.verdict == UNSETTLED:
        return f"{capital(verified.because)}. {smallest_words(verified)}."
    if verified.verdict == NO_GAIN:
        return f"{capital(verified.because)}."
    spent = f"{plural(verified.num_rounds, 'round')} of 4 runs, {verified.wall_s:.0f}{NBSP}s"
    return f"{capital(verified.because)}: {spent}."


@as_document
def verified_document(verified: Verified) -> Iterator[Block]:
    is_doubtful = computes_else(verified) and verified.is_gain
    yield Headline(
        command="stepscope verify",
        text=summary_words(verified),
        about=tuple(f"{side}: {_side_words(summary)}" for side, summary in verified.sides),
        tone="" if is_doubtful else TONES.get(verified.verdict, ""),
    )
    if verified.tail.strip():
        yield Section(title="What it said last", blocks=(Code(tuple(_last_lines(verified.tail))),))
    if any(run.round is not None for run in verified.runs):
        yield _runs_section(verified)
    if (loss := loss_words(verified)) is not None:
        aside = "of every run, over its first and its last steps"
        yield Section(title="Loss", aside=aside, blocks=(Prose(f"{capital(loss)}."),))
    if verified.check is not None:
        yield _check_section(verified.check)
    if verified.prediction is not None:
        words = capital(prediction_words(verified.prediction, verified.speedup))
        yield Section(title="Predicted", aside="and what it gave", blocks=(Prose(f"{words}."),))
    kept = [f"the runs are kept in {verified.folder}"] if verified.folder else []
    yield from notes([*verified.notes, *kept], aside="")


def _side_words(summary: SideSummary) -> str:
    command, change = summary.command or "", change_words(summary.change)
    return f"{command} with {change}" if change and command else command or change or "as it is"


def _last_lines(tail: str) -> list[str]:
    """Lines of carets point at nothing once a line is cut."""
    lines = [line for line in tail.rstrip().splitlines() if not line.strip() or line.strip(" ^~")]
    return lines[-MAX_TAIL_LINES:]


def _runs_section(verified: Verified) -> Section:
    unit = verified.unit
    aside = f"time a {unit}, the longest and shortest twentieth of the steps left out"
    if verified.is_by_mean:
        aside = (
            f"time a {unit} with all of them counted; of each run without the longest and "
            "shortest twentieth"
        )
    columns = (
        Column(title="side"),
        *numbers("runs", f"a {unit}", "runs differ by"),
        Column(title="each run, in order", fit="wrap"),
    )
    rows = tuple(_row(verified, side, summary) for side, summary in verified.sides)
    return Section(title="Runs", aside=aside, blocks=(Table(columns=columns, rows=rows),))


def _row(verified: Verified, side: Side, summary: SideSummary) -> tuple[str, ...]:
    runs = [run for run in verified.runs if run.side == side and run.round is not None]
    each = ", ".join(_short(run, verified.unit) for run in runs)
    step = "not measured" if summary.ms is None else _took(summary.ms)
    spread = "-" if summary.run_spread is None else percent(summary.run_spread)
    return (side, str(summary.num_runs), step, spread, each)


def _short(run: Run, unit: str) -> str:
    if run.ms is None:
        return "-"
    samples = (run.samples or 1.0) if unit == "sample" else 1.0
    return _took(run.ms / samples).partition(NBSP)[0]


def _took(ms: float) -> str:
    return short_time(ms * 1e6)


def _check_section(check: NumericsCheck) -> Section:
    blocks: list[Block] = [Prose(f"{capital(check.verdict)}: {check.because}.")]
    if check.is_deterministic is not None:
        same = "the same bits" if check.is_deterministic else "different bits"
        blocks.append(Prose(f"Two runs of the baseline gave {same}.", "quiet"))
    if check.num_parameters_equal is not None:
        counts = (
            f"{check.num_parameters_equal} of the {check.num_parameters_compared} steps compared"
        )
        blocks.append(Prose(f"Every parameter had the same bits after {counts}.", "quiet"))
    steps = plural(max(check.loss.num, check.grad_norm.num), "step")
    return Section(title="What was computed", aside=f"over {steps}", blocks=tuple(blocks))
