"""One collective: by each algorithm, as measured, and where another becomes the fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.calibrated import bus_factor, ring_steps
from stepscope.core.codec import encode
from stepscope.plan.cluster import Cluster
from stepscope.plan.collective import Collective, CollectiveRequest
from stepscope.plan.contract.collective import CollectiveContract, Measurement, Way
from stepscope.plan.report.words import seconds
from stepscope.report.document.blocks import (
    Block,
    Column,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    as_document,
    numbers,
)
from stepscope.report.words import number

NO_ADVICE = (
    "No advice on NCCL_ALGO or NCCL_PROTO: nothing was measured that supports one. Calibrate "
    "once as NCCL chooses and once under NCCL_ALGO=Tree, and give both: --hardware own.json "
    "--measured Tree=tree.json."
)
ONLY = "No advice on NCCL_ALGO: NCCL has one algorithm for it here."
EQUAL = (
    "No advice on NCCL_ALGO or NCCL_PROTO: what was measured is no faster than NCCL's own choice "
    "by more than the fits are off."
)


@as_document
def collective_document(
    cluster: Cluster,
    result: Collective,
    measured: Sequence[Measurement],
    said: str | None,
    notes: Sequence[str],
) -> Iterator[Block]:
    asked, picked = result.asked, result.picked
    what = f"{asked.kind} of {size_words(asked.size_bytes)} over {asked.num_ranks} ranks"
    time, rate, how = picked.seconds, picked.bus_bytes_per_s, f"by {_name(picked)}"
    span = result.range_s
    if measured:
        first, span = measured[0], None
        time, rate, how = first.seconds, first.bus_bytes_per_s, f"as measured, {first.name}"
    between = "" if span is None else f" ({seconds(span[0])} to {seconds(span[1])})"
    text = f"{what}: {seconds(time)}{between}, {_rate(rate)} bus bandwidth, {how}."
    yield Headline(command="stepscope plan", text=text, about=(f"{cluster.name}.",))
    yield Prose(_sent_words(asked))
    if measured:
        rows = tuple(
            (each.name, seconds(each.seconds), _rate(each.bus_bytes_per_s), over)
            for each in measured
            for over in [_over(each, asked.num_ranks)]
        )
        columns = (Column(), *numbers("time", "bus bandwidth"), Column())
        yield Section(title="As measured", blocks=(Table(columns=columns, rows=rows),))
    yield _ways(result)
    yield _crossovers(result)
    advice = said or (EQUAL if len(measured) > 1 else NO_ADVICE)
    if not said and len({way.algorithm for way in result.ways}) == 1:
        advice = ONLY
    yield Section(title="Notes", blocks=(Items((advice, *result.notes, *notes)),))


def _sent_words(asked: CollectiveRequest) -> str:
    """What a ring sends, whatever it is sent over."""
    sent = asked.size_bytes * bus_factor(asked.kind, asked.num_ranks)
    steps = ring_steps(asked.kind, asked.num_ranks)
    return f"Round a ring each rank sends {size_words(sent)}, in {steps} steps."


def _ways(result: Collective) -> Section:
    rows = []
    for way in result.ways:
        is_picked = way.algorithm == result.picked.algorithm
        word = "picked, by NCCL's own model" if is_picked else ""
        figures = (seconds(way.seconds), _rate(way.bus_bytes_per_s))
        rows.append((way.algorithm, way.protocol, *figures, word))
    columns = (Column(), Column(title="protocol"), *numbers("time", "bus bandwidth"), Column())
    return Section(
        title="By algorithm",
        aside="estimated, the fastest first",
        blocks=(Table(columns=columns, rows=tuple(rows)),),
    )


def _crossovers(result: Collective) -> Section:
    lines = tuple(
        f"from {size_words(each.size_bytes)} on {each.after}, below {each.before}"
        for each in result.crossovers
    )
    if not lines:
        lines = ("one way is the fastest at every size",)
    return Section(title="Crossover sizes", aside="estimated", blocks=(Items(lines),))


def _name(way: Way) -> str:
    return f"{way.algorithm} ({way.protocol})"


def _over(each: Measurement, num_ranks: int) -> str:
    return "" if each.group_size == num_ranks else f"measured over {each.group_size} ranks"


def _rate(value: float) -> str:
    return f"{number(value / 1e9)} GB/s"


def size_words(size: float) -> str:
    for unit, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{number(size / unit)} {word}"
    return f"{size:.0f} bytes"


def collective_json(
    cluster: Cluster,
    result: Collective,
    measured: Sequence[Measurement],
    said: str | None,
    notes: Sequence[str],
) -> str:
    return encode(
        CollectiveContract(
            kind=result.asked.kind,
            bytes=result.asked.size_bytes,
            ranks=result.asked.num_ranks,
            cluster=cluster.name,
            ways=result.ways,
            picked=result.picked,
            range_s=result.range_s,
            crossovers=result.crossovers,
            measured=tuple(measured),
            advice=said,
            notes=(*result.notes, *notes),
        )
    )
