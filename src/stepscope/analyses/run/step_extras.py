"""What a run's events and samples say of single steps: epochs begun and compilations in them, and
by how much the host had run ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from stepscope.analyses.run.phases import Phases
from stepscope.analyses.run.slow_steps import net_ns
from stepscope.analyses.steps.unprofiled import Row
from stepscope.protocol.untrusted import finite, whole
from stepscope.readers.run_folder.folder import RankRecord


class Extra(Struct, frozen=True, kw_only=True):
    """Extras of one step."""

    num_epochs: int = 0
    iter_ns: int = 0
    """Time in iter() of the loader that feeds the steps."""
    first_wait_ns: int = 0
    """Wait for the first batch after that."""
    compile_ns: int = 0
    lead_ns: int = 0
    """Time that the host had run ahead of the device: the part of the step that only makes up for
    it."""


def step_extras(record: RankRecord, phases: Phases) -> dict[int, Extra]:
    """Extras by step; those of which nothing is known are not there."""
    extras = epochs_of(record)
    for step, ns in _compiled(record, phases).items():
        extras[step] = replace(extras.get(step, Extra()), compile_ns=ns)
    for step, ns in _leads(record, phases).items():
        extras[step] = replace(extras.get(step, Extra()), lead_ns=ns)
    return extras


def epochs_of(record: RankRecord) -> dict[int, Extra]:
    """Loaders begun. One that does not feed the steps is a part of what it is begun for; of older
    runs that is not known."""
    noted = record.metadata.get("first_step")
    feeding = noted.get("loader") if isinstance(noted, dict) else None
    evaluated = {row["step"] for row in record.rows if row["num_evals"]}
    extras: dict[int, Extra] = {}
    for event in record.events:
        step, loader = whole(event.get("step")), event.get("loader")
        if event.get("kind") != "epoch" or step is None:
            continue
        if step in evaluated and (loader is None or loader != feeding):
            continue
        before = extras.get(step, Extra())
        extras[step] = Extra(
            num_epochs=before.num_epochs + 1,
            iter_ns=before.iter_ns + (whole(event.get("dur_ns")) or 0),
            first_wait_ns=before.first_wait_ns + (whole(event.get("wait_ns")) or 0),
        )
    return extras


def within_epochs(record: RankRecord) -> list[Row]:
    """Steps without those that begin an epoch; all of them where most do."""
    epochs = epochs_of(record)
    within: list[Row] = [row for row in record.rows if row["step"] not in epochs]
    return within if 2 * len(within) >= len(record.rows) else list(record.rows)


def _compiled(record: RankRecord, phases: Phases) -> dict[int, int]:
    """What the compiler took between two samples, in the steps that were longest meanwhile."""
    first = record.metadata.get("first_step")
    at_first = first.get("dynamo_compile_s") if isinstance(first, dict) else None
    known = [(_begun(record.rows), round(1e9 * (finite(at_first) or 0.0)))]
    known += [
        (at_ns, round(1e9 * spent))
        for sample in (*record.samples, record.metadata)
        if (at_ns := _at_ns(sample)) is not None
        and (spent := finite(sample.get("dynamo_compile_s"))) is not None
    ]
    compiled: dict[int, int] = {}
    for (since, before), (until, after) in pairwise(known):
        left = after - before
        meanwhile = [
            row
            for row in record.rows
            if left > 0
            and (row["end_ns"] or 0) > since
            and (row["end_ns"] or 0) - (row["dur_ns"] or 0) < until
        ]
        for row in sorted(meanwhile, key=lambda row: -net_ns(row)):
            step = row["step"] or 0
            room = net_ns(row) - phases.at(step).step_ns - compiled.get(step, 0)
            taken = max(min(left, room), 0)
            left -= taken
            if taken:
                compiled[step] = compiled.get(step, 0) + taken
    return compiled


def _leads(record: RankRecord, phases: Phases) -> dict[int, int]:
    """A host that does not wait for its device takes less than the step, until it has to wait: that
    step is longer by as much, and not slow."""
    machine = record.metadata.get("machine")
    if not isinstance(machine, dict) or not machine.get("devices"):
        return {}
    leads, lead = {}, 0
    for row in record.rows:
        over = net_ns(row) - phases.at(row["step"] or 0).step_ns
        made_up = max(min(lead, over), 0)
        if made_up:
            leads[row["step"] or 0] = made_up
        lead = max(lead - over, 0)
    return leads


def _at_ns(sample: Mapping[str, Any]) -> int | None:
    at_ns = whole(sample.get("at_ns"))
    return whole(sample.get("ended_ns")) if at_ns is None else at_ns


def _begun(rows: Sequence[Row]) -> int:
    return min(((row["end_ns"] or 0) - (row["dur_ns"] or 0) for row in rows), default=0)
