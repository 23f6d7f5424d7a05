"""Where one rank's step goes, and what its device made of it."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.facts import PARTS, Phases, RankFacts, Roofline
from stepscope.report.document.blocks import (
    Bar,
    Cell,
    Column,
    Facts,
    Part,
    Prose,
    Section,
    Table,
    numbers,
)
from stepscope.report.words import digits_after_point, in_column, ms, percent, plural, teraflops

PART_WORDS = {
    "compute": "compute",
    "comms_wait": "waiting for other ranks",
    "comms_transfer": "exposed communication",
    "transfer": "copies",
    "idle_input": "waiting for input",
    "idle_sync": "waiting in syncs",
    "idle_launch": "launching (host-bound)",
    "idle_allocator": "allocator",
    "idle_compile": "compiling",
    "idle_io": "file i/o",
    "idle_other": "idle, cause not seen",
}
ON_HOST_WORDS = {"compute": "operators", "idle_other": "outside operators"}
"""Without a device the host's operators are the work."""
UNSPLIT_COMMS = "communication, not hidden"
"""What exposed communication is called when waiting and moving bytes could not be separated."""

BAR_PARTS: dict[str, Part] = {
    "compute": "compute",
    "comms_wait": "comms",
    "comms_transfer": "comms",
    "transfer": "copies",
    "idle_input": "input",
}
MOST = 0.8
"""Share of compute with known work from which a statement about it stands for all of it."""


def step_section(rank: RankFacts) -> Section:
    """The median step as a table of bars that sums to the step."""
    title, parts = "Where the step goes", rank.typical_parts_ns
    if rank.partition is None or parts is None:
        return Section(title=title, blocks=(Prose("not measured: the trace has no whole step"),))
    total = sum(parts.values())
    # A decimal up to a second, as the percentages have: the small parts are to be seen too.
    decimals = max(digits_after_point(total / 1e6), 1 if total < 1e9 else 0)
    rows: list[tuple[str | Cell | Bar, ...]] = []
    for part in PARTS:
        ns = parts[part]
        if ns > 0:
            words = part_words(
                part, is_split=rank.partition.waits_split, on_host=rank.steps.where == "host"
            )
            bar = Bar(ns / total, BAR_PARTS.get(part, "idle"))
            rows.append((words, in_column(ns / 1e6, decimals), in_column(ns / total * 100, 1), bar))
    whole = Cell(in_column(total / 1e6, decimals), "strong")
    rows.append((Cell("total", "strong"), whole, "100.0" if total else "", ""))
    table = Table(columns=(Column(), *numbers("ms", "%"), Column()), rows=tuple(rows))
    return Section(title=title, aside=_which_step(rank), blocks=(table,))


def part_words(part: str, *, is_split: bool, on_host: bool) -> str:
    """What a part is called. `is_split`: waiting for ranks is told from moving bytes; `on_host`:
    nothing ran on a device."""
    if part == "comms_transfer" and not is_split:
        return UNSPLIT_COMMS
    if on_host and part in ON_HOST_WORDS:
        return ON_HOST_WORDS[part]
    return PART_WORDS[part]


def _which_step(rank: RankFacts) -> str:
    num = len(rank.steps.windows)
    if not rank.steps.is_step_interval:
        if rank.steps.source == "whole trace":
            return "all that was recorded"
        return "the only step, from its first work to its last"
    if num == 1:
        return "the only whole step, while profiled"
    return f"the median step of {num}, while profiled"


def device_sections(rank: RankFacts) -> Iterator[Section]:
    """How much of the device the step used."""
    if rank.steps.where != "host":
        yield Section(title="Device", blocks=(Facts(tuple(_device_facts(rank))),), is_folded=True)
    elif rank.num_events:
        used = "No device was used" if rank.device_name is None else "No device work was recorded"
        words = f"{used}: the parts above are the host's, and its operators are the work."
        yield Section(title="Device", blocks=(Prose(words),), is_folded=True)


def _device_facts(rank: RankFacts) -> Iterator[tuple[str, str]]:
    yield "busy", _busy_words(rank)
    yield from _flops_facts(rank)
    parts, hidden = rank.typical_parts_ns, rank.steps.typical(rank.comms_hidden_ns)
    if parts is not None and hidden is not None:
        comms = hidden + parts["comms_wait"] + parts["comms_transfer"]
        if comms:
            yield (
                "communication",
                f"{ms(comms)}, {percent(hidden / comms)} of it hidden under compute",
            )
    if rank.phases is not None and rank.steps.windows:
        yield "phases", _phase_words(rank.phases, len(rank.steps.windows))


def _busy_words(rank: RankFacts) -> str:
    busy, step = rank.steps.typical(rank.busy_ns), rank.steps.step_interval_ns
    if busy is not None and step:
        return f"{ms(busy)} of {ms(step)}, {percent(busy / step)}"
    totals = rank.device
    if totals.span:
        share = percent(totals.busy / totals.span)
        return f"{ms(totals.busy)} of the {ms(totals.span)} recorded, {share}"
    return "not measured"


def _flops_facts(rank: RankFacts) -> Iterator[tuple[str, str]]:
    roof = rank.roofline
    yield "MFU", _mfu_words(rank)
    if roof.hfu is not None and (roof.mfu is None or percent(roof.hfu) != percent(roof.mfu)):
        yield "HFU", f"{percent(roof.hfu)}, recomputed work counted"
    if roof.tensor_core_share is not None:
        yield "tensor cores", f"{percent(roof.tensor_core_share)} of the time in matrix kernels"
    memory, arithmetic = roof.bandwidth_bound_ns, roof.arithmetic_bound_ns
    if memory is not None and arithmetic is not None and memory + arithmetic:
        modelled = memory + arithmetic
        words = (
            f"memory bandwidth for {percent(memory / modelled)} of their time, arithmetic for "
            f"{percent(arithmetic / modelled)}"
        )
        if roof.modelled_share is not None and roof.modelled_share < MOST:
            words += f" (of the {percent(roof.modelled_share)} whose work is known)"
        yield "kernels' limit", words


def _mfu_words(rank: RankFacts) -> str:
    roof = rank.roofline
    if roof.mfu is None:
        done = f"; its model does {teraflops(roof.model_flops)} a step" if roof.model_flops else ""
        return f"not measured: {_why_no_mfu(rank, roof)}{done}"
    precision = f" {roof.peak_precision}" if roof.peak_precision else ""
    coverage = ""
    if roof.modelled_share is not None:
        coverage = f"; work known for {percent(roof.modelled_share)} of compute"
    device = roof.device or "the device"
    return f"{percent(roof.mfu)} of the dense{precision} peak of {device}{coverage}"


def _why_no_mfu(rank: RankFacts, roof: Roofline) -> str:
    if roof.device is None:
        if rank.device_name:
            return f"no peak is known for {rank.device_name}"
        return "the trace does not name the device"
    if roof.model_flops is None and rank.launches is not None and rank.launches.num_in_graphs:
        return "the work inside CUDA graphs is not recorded with its shapes"
    if roof.model_flops is None:
        return "too little of the matrix work is known (record_shapes=True tells it)"
    if not rank.steps.windows:
        return "the trace has no whole step"
    return "no peak for the precision in use"


def _phase_words(phases: Phases, num_steps: int) -> str:
    named = (
        ("forward", phases.forward_ns),
        ("backward", phases.backward_ns),
        ("optimizer", phases.optimizer_ns),
        ("not known", phases.unknown_ns),
    )
    words = (
        ", ".join(f"{name} {ms(ns / num_steps)}" for name, ns in named if ns)
        or "none of the work could be distinguished"
    )
    if not phases.recomputed_ns:
        return words
    ops = plural(round(phases.num_recomputed_ops / num_steps), "operator")
    return (
        f"{words}; {ms(phases.recomputed_ns / num_steps)} of backward is forward run again ({ops})"
    )
