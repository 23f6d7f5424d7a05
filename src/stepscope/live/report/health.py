"""A health check: the answer, and a line for each question."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.live.judge_health import PARTS
from stepscope.live.shapes.triage import BAD, OK, Health, RankTimes
from stepscope.report.document.blocks import Document, Facts, Headline, Section, Table, numbers
from stepscope.report.words import ms

MARKS = {OK: "ok", BAD: "BAD"}
ANSWERS = {OK: "Healthy.", BAD: "Not healthy."}


def health_document(answer: Health) -> Document:
    rows = tuple(
        (f"{MARKS.get(check.state, '?'):<3}  {check.name}", check.words) for check in answer.checks
    )
    head = Headline(command="stepscope health", text=ANSWERS.get(answer.state, "Could not tell."))
    if not answer.ranks:
        return (head, Facts(rows))
    return (head, Facts(rows), _ranks(answer.ranks))


def _ranks(ranks: Sequence[RankTimes]) -> Section:
    titles = ("rank", "steps", "mean", "shortest", "longest", *PARTS)
    rows = tuple(
        (
            str(rank.rank),
            str(rank.num_steps),
            ms(rank.mean_ns),
            ms(rank.low_ns),
            ms(rank.high_ns),
            *(ms(rank.parts_ns[name]) if name in rank.parts_ns else "-" for name in PARTS),
        )
        for rank in ranks
    )
    table = Table(columns=numbers(*titles), rows=rows)
    return Section(title="Ranks", aside="steps without the profiler", blocks=(table,))
