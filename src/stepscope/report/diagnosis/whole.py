"""A diagnosis as one document: every section that has something to show."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.diagnosis import Alternative, Diagnosis, Finding
from stepscope.core.gate import Gate
from stepscope.core.numbers import gain_words
from stepscope.report.diagnosis.auxiliary import auxiliary_sections
from stepscope.report.diagnosis.comms import comms_sections, late_ranks
from stepscope.report.diagnosis.host import host_sections
from stepscope.report.diagnosis.kernels import kernel_sections
from stepscope.report.diagnosis.memory import memory_sections
from stepscope.report.diagnosis.nccl import nccl_section
from stepscope.report.diagnosis.out_of_memory import out_of_memory_sections
from stepscope.report.diagnosis.peak import peak_sections
from stepscope.report.diagnosis.ranks import ranks_section
from stepscope.report.diagnosis.run import run_section
from stepscope.report.diagnosis.view import (
    OF_TRAINING,
    OTHER_TRAINING,
    all_notes,
    change_code,
    damage_warnings,
    device_sections,
    finding_title,
    headline,
    memory_words,
    step_section,
    time_words,
    together_words,
)
from stepscope.report.diagnosis.whole_run import whole_run_section
from stepscope.report.document.blocks import (
    Action,
    Block,
    Card,
    Details,
    Prose,
    Section,
    as_document,
    more,
    notes,
)
from stepscope.report.gate import gate_section
from stepscope.report.words import percent

MAX_FINDINGS = 8


@as_document
def diagnosis_document(diagnosis: Diagnosis, gate: Gate | None = None) -> Iterator[Block]:
    """The whole of it; with what became of a gate, where there is one."""
    facts = diagnosis.facts
    yield headline(diagnosis)
    yield Prose(time_words(diagnosis))
    yield from damage_warnings(all_notes(diagnosis))
    if gate is not None:
        yield gate_section(gate)
    yield from out_of_memory_sections(facts.out_of_memory)
    if facts.whole_run is not None:
        yield whole_run_section(facts.whole_run)
    if facts.ranks:
        yield from _rank_blocks(diagnosis)
    else:
        yield from peak_sections(facts.peak_waterfall)
    yield from memory_sections(facts.memory)
    if facts.run is not None:
        yield run_section(facts.run)
    if facts.nccl is not None:
        yield nccl_section(facts.nccl)
    yield from auxiliary_sections(diagnosis)
    yield from notes(all_notes(diagnosis))


def _rank_blocks(diagnosis: Diagnosis) -> Iterator[Block]:
    ranks, comms, rank = diagnosis.facts.ranks, diagnosis.facts.comms, diagnosis.facts.median_rank
    if len(ranks) > 1:
        below = [] if comms is None else list(late_ranks(diagnosis, comms))
        yield ranks_section(ranks, comms, below)
        yield Prose(f"From here on: rank {rank.rank}, the one with the median step.", "quiet")
    yield step_section(rank)
    yield from _findings(diagnosis)
    if comms is not None:
        yield from comms_sections(comms)
    yield from device_sections(rank)
    yield from peak_sections(diagnosis.facts.peak_waterfall)
    compiler = None if diagnosis.facts.auxiliary is None else diagnosis.facts.auxiliary.compiler
    yield from kernel_sections(rank, None if compiler is None else compiler.kernel_lines)
    yield from host_sections(rank)


def _findings(diagnosis: Diagnosis) -> Iterator[Section]:
    findings = diagnosis.findings
    if not findings:
        return
    cards = {
        number: _card(number, finding, diagnosis)
        for number, finding in enumerate(findings[:MAX_FINDINGS], start=1)
    }
    others = {number for number in cards if findings[number - 1].changes_training}
    blocks: list[Block] = [card for number, card in cards.items() if number not in others]
    blocks += more(len(findings) - MAX_FINDINGS, "finding")
    together = together_words(diagnosis)
    if together:
        blocks.append(Prose(together))
    if diagnosis.replay is not None:
        error = diagnosis.replay.error
        off = f"{percent(abs(error))} {'above' if error > 0 else 'below'} the real one"
        if percent(abs(error)) == percent(0.0):
            off = "as long as the real one"
        words = f"Gains come from replaying the step; the replay is {off}."
        blocks.append(Prose(words, "quiet"))
    aside = "predicted gain, with its range"
    training = tuple(card for number, card in cards.items() if number in others)
    if blocks:
        yield Section(title="What to do", aside=aside, blocks=tuple(blocks))
    if training:
        yield Section(title=OTHER_TRAINING, aside=OF_TRAINING, blocks=training)


def _card(number: int, finding: Finding, diagnosis: Diagnosis) -> Card:
    blocks: list[Block] = [Prose(finding.summary), Action(finding.action)]
    if finding.code_change is not None:
        blocks.append(change_code(finding.code_change))
    if finding.memory is not None:
        blocks.append(Prose(memory_words(finding.memory)))
    if finding.changes_numerics:
        blocks.append(
            Prose("It can change the numbers: compare the loss before and after.", "warn")
        )
    blocks += (Prose(f"Or: {_alternative_words(each)}") for each in finding.alternatives)
    if finding.excludes:
        others = " or ".join(finding.excludes)
        blocks.append(Prose(f"Not together with {others}: one or the other.", "warn"))
    locations = (
        f"{percent(location.share)} at {location.words}" for location in finding.source_locations
    )
    blocks.append(Details(title="Evidence", lines=(*finding.evidence, *locations)))
    title = finding_title(finding, diagnosis)
    return Card(number=number, code=finding.code, title=title, blocks=tuple(blocks))


def _alternative_words(each: Alternative) -> str:
    gain = gain_words(each.predicted_speedup, each.predicted_low, each.predicted_high)
    words = f"{each.action}: {gain}, {each.code}"
    return f"{words}; it can change the numbers" if each.changes_numerics else words
