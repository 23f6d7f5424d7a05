"""Where the peak of device memory goes, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.memory import BEFORE, MemoryHolder, MemoryUse
from stepscope.core.numbers import size_words
from stepscope.report.document.blocks import (
    Bar,
    Block,
    Column,
    Part,
    Prose,
    Section,
    Table,
    numbers,
)
from stepscope.report.words import in_column, percent, plural

TITLE = "Device memory"
KIND_WORDS = {
    "weights": "parameters", "gradients": "gradients", "optimizer": "optimizer state",
    "activations": "activations", "inputs": "inputs", "temporary": "temporaries",
    "autograd": "made by the backward pass", "workspace": "libraries' workspaces",
    "unknown": "not known",
}  # fmt: skip
PHASE_WORDS = {BEFORE: "before the recorded steps"}
BARS: dict[str, Part] = {"weights": "compute", "optimizer": "comms", "activations": "input"}
MAX_ROWS = 6
MIN_SHARE = 0.0005


def kind_words(kind: str) -> str:
    return KIND_WORDS.get(kind, kind)


def phase_words(phase: str) -> str:
    return PHASE_WORDS.get(phase, phase)


def memory_sections(uses: Sequence[MemoryUse]) -> Iterator[Section]:
    """The fullest device's; nothing where none was recorded, or only counters were."""
    use = fullest(uses)
    if use is None:
        return
    blocks: list[Block] = [Prose(peak_words(use))]
    if use.largest_times is not None:
        blocks.append(Prose(batch_words(use)))
    if use.source == "trace":
        # Of a recording of memory these stand with it.
        blocks.append(kinds_table(use))
    if use.phases:
        blocks.append(phases_table(use))
    if use.modules:
        blocks.append(holders_table("module", use.modules[:MAX_ROWS], use))
    if use.operators and use.source == "trace":
        blocks.append(holders_table("operator", use.operators[:MAX_ROWS], use))
    others = len(uses) - 1
    aside = f"the fullest of {plural(len(uses), 'recording')}" if others else ""
    if use.rank is not None and others:
        aside = f"rank {use.rank}, {aside}"
    yield Section(title=TITLE, aside=aside, blocks=tuple(blocks), is_folded=True)


def fullest(uses: Sequence[MemoryUse]) -> MemoryUse | None:
    """The one with the highest peak of those that say what holds it."""
    return max((use for use in uses if use.kinds), key=lambda use: use.peak_bytes, default=None)


def peak_words(use: MemoryUse) -> str:
    """`7.78 GB of 150 GB at the peak (5.2 %), in backward, in aten::nll_loss_backward; ...`."""
    words, whole = f"{size_words(use.peak_bytes)} at the peak", use.capacity_bytes
    if whole:
        of = f"{size_words(use.peak_bytes)} of {size_words(whole)}"
        words = f"{of} at the peak ({percent(use.peak_bytes / whole)})"
    moment = use.moment
    if moment.phase is not None:
        phase = phase_words(moment.phase)
        words += f", {phase}" if moment.phase == BEFORE else f", in {phase}"
    if moment.step is not None:
        words += f" of recorded step {moment.step + 1}"
    if moment.operator is not None:
        words += f", in {moment.operator}"
    if moment.module is not None:
        words += f" of {moment.module}"
    if use.cache_bytes is not None:
        words += f"; {size_words(use.cache_bytes)} more in the allocator's cache"
    return f"{words}."


def batch_words(use: MemoryUse) -> str:
    """`A batch 42 times as large is the most that fits; x2 peaks at 8.71 GB, x4 at 15.6 GB.`"""
    fits = [batch for batch in use.batches if batch.reserved_bytes is not None]
    peaks = ", ".join(f"x{batch.times:.0f} at {size_words(batch.peak_bytes)}" for batch in fits)
    assert use.largest_times is not None
    words = f"A batch {use.largest_times:.3g} times as large is the most that fits"
    return f"{words}; tensors peak {peaks}." if peaks else f"{words}."


def kinds_table(use: MemoryUse) -> Table:
    """What the peak is for, the most first."""
    return Table(
        columns=(Column(title="what for"), *numbers("GB", "%"), Column()),
        rows=tuple(
            (
                kind_words(kind),
                in_column(size / 1e9, 2),
                in_column(100 * size / max(use.peak_bytes, 1), 1),
                Bar(size / max(use.peak_bytes, 1), BARS.get(kind, "idle")),
            )
            for kind, size in use.by_size
            if size >= MIN_SHARE * use.peak_bytes
        ),
    )


def phases_table(use: MemoryUse) -> Table:
    """The peak of each phase, and what each made of the peak of all."""
    return Table(
        columns=(Column(title="phase"), *numbers("its own peak, GB", "made of the peak, GB")),
        rows=tuple(
            (
                phase_words(phase.phase),
                "" if phase.peak_bytes is None else in_column(phase.peak_bytes / 1e9, 2),
                in_column(phase.at_peak_bytes / 1e9, 2),
            )
            for phase in use.phases
        ),
    )


def holders_table(title: str, holders: Sequence[MemoryHolder], use: MemoryUse) -> Table:
    return Table(
        columns=(
            Column(title=title, fit="shorten"),
            Column(title="mostly"),
            *numbers("tensors", "GB", "%"),
        ),
        rows=tuple(
            (
                holder.name,
                kind_words(holder.kind),
                str(holder.num_tensors),
                in_column(holder.size_bytes / 1e9, 2),
                in_column(100 * holder.size_bytes / max(use.peak_bytes, 1), 1),
            )
            for holder in holders
        ),
    )
