"""Where the device's peak goes, in words and as a table."""

from __future__ import annotations

from stepscope.core.peak import ACHIEVED, PeakPart, PeakWaterfall
from stepscope.report.diagnosis.view import BAR_PARTS, PART_WORDS, UNSPLIT_COMMS
from stepscope.report.document.blocks import Bar, Cell, Column, Part, Prose, Section, Table, numbers
from stepscope.report.words import in_column, percent, plural, teraflops

TITLE = "Where the peak goes"
KERNEL_WORDS = {
    "recomputation": "recomputed work",
    "precision": "precision with a lower peak",
    "memory_bound": "memory-bound kernels",
    "below_bandwidth": "memory-bound, below full bandwidth",
    "vector_arithmetic": "arithmetic outside the matrix units",
    "not_filled": "shapes and tiles that do not fill",
    "clock": "clock below the peak's",
    "below_peak": "kernels below peak, cause not known",
    "unknown_work": "kernels whose work is not known",
    "unexplained": "all else, which no log tells",
    ACHIEVED: "achieved by the model's FLOPs",
}
KERNEL_BARS: dict[str, Part] = {ACHIEVED: "compute", "memory_bound": "copies"}


def peak_sections(waterfall: PeakWaterfall | None) -> tuple[Section, ...]:
    """The waterfall as a table; nothing where none was measured."""
    if waterfall is None or not waterfall.total_ns:
        return ()
    rows: list[tuple[str | Cell | Bar, ...]] = [(Cell("the peak", "strong"), "", "100.0", "")]
    left = waterfall.total_ns
    for part in waterfall.parts:
        if not part.ns or part.what == ACHIEVED:
            continue
        left -= part.ns
        rows.append(_row(part, waterfall, left / waterfall.total_ns))
    achieved = waterfall.parts[-1]
    if achieved.what == ACHIEVED:
        share = Cell(in_column(achieved.share * 100, 1), "strong")
        name = Cell(peak_part_words(ACHIEVED, waterfall), "strong")
        rows.append((name, "", share, Bar(achieved.share, "compute")))
    table = Table(columns=(Column(), *numbers("lost %", "left %"), Column()), rows=tuple(rows))
    return (
        Section(
            title=TITLE,
            aside=reference_words(waterfall) + _when(waterfall),
            blocks=(table, *_remarks(waterfall)),
            is_folded=True,
        ),
    )


def _when(waterfall: PeakWaterfall) -> str:
    return ", while profiled" if waterfall.source == "trace" else ""


def _row(part: PeakPart, waterfall: PeakWaterfall, left: float) -> tuple[str | Cell | Bar, ...]:
    colour = KERNEL_BARS.get(part.what, BAR_PARTS.get(part.what, "idle"))
    return (
        peak_part_words(part.what, waterfall),
        in_column(part.share * 100, 1),
        in_column(left * 100, 1),
        Bar(part.share, colour),
    )


def peak_part_words(what: str, waterfall: PeakWaterfall) -> str:
    """What a part of the waterfall is called."""
    if what == "comms_transfer" and all(part.what != "comms_wait" for part in waterfall.parts):
        return UNSPLIT_COMMS
    if what == ACHIEVED and waterfall.is_least:
        return "achieved, as far as work is known"
    if what == "precision" and waterfall.precision is not None:
        return f"precision slower than {waterfall.precision}"
    return KERNEL_WORDS.get(what) or PART_WORDS.get(what, what)


def reference_words(waterfall: PeakWaterfall) -> str:
    """What the whole is: `100 % is the dense bf16 peak of NVIDIA H100 SXM, 989 TFLOP/s`."""
    ranks = "" if waterfall.num_ranks == 1 else f"; {plural(waterfall.num_ranks, 'rank')} together"
    if waterfall.peak_flops is None or waterfall.device is None:
        return f"100 % is the device at its peak{ranks}"
    peak = f"the dense {waterfall.precision} peak of {waterfall.device}"
    return f"100 % is {peak}, {teraflops(waterfall.peak_flops)}/s{ranks}"


def _remarks(waterfall: PeakWaterfall) -> tuple[Prose, ...]:
    if waterfall.achieved is None:
        return (Prose("What was achieved is not known: no work of matrix kernels is.", "quiet"),)
    if waterfall.source == "log":
        words = f"{percent(waterfall.achieved)} were achieved; a trace tells where the rest goes."
        return (Prose(words, "quiet"),)
    return ()
