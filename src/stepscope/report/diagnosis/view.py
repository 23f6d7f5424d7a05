"""What every form of a diagnosis shows of it: the verdict, the step's time, warnings, notes, and a
finding in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from stepscope.core.diagnosis import CodeChange, Diagnosis, Finding, MemoryChange, Verdict
from stepscope.core.facts import PARTS, Facts, Phases, RankFacts, Roofline
from stepscope.core.numbers import gain_words, number_ranges, size_words
from stepscope.core.predicted_steps import all_steps_ms, is_of_rare_steps, unprofiled_ms
from stepscope.report.document.blocks import (
    Bar,
    Cell,
    Code,
    Column,
    Headline,
    Part,
    Prose,
    Section,
    Table,
    Tone,
    Warn,
    numbers,
)
from stepscope.report.document.blocks import Facts as FactsBlock
from stepscope.report.words import (
    digits_after_point,
    in_column,
    ms,
    percent,
    plural,
    shorten,
    teraflops,
)

PART_WORDS = {
    "compute": "compute", "comms_wait": "waiting for other ranks",
    "comms_transfer": "exposed communication", "transfer": "copies",
    "idle_input": "waiting for input", "idle_sync": "waiting in syncs",
    "idle_launch": "launching (host-bound)", "idle_allocator": "allocator",
    "idle_compile": "compiling", "idle_io": "file i/o", "idle_other": "idle, cause not seen",
}  # fmt: skip
ON_HOST_WORDS = {"compute": "operators", "idle_other": "outside operators"}
"""Words where there is no device: the host's operators are the work."""
UNSPLIT_COMMS = "communication, not hidden"
"""What exposed communication is called when waiting and moving bytes could not be separated."""

BAR_PARTS: dict[str, Part] = {
    "compute": "compute",
    "comms_wait": "comms",
    "comms_transfer": "comms",
    "transfer": "copies",
    "idle_input": "input",
}
MIN_KNOWN_SHARE = 0.8
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
        yield Section(
            title="Device", blocks=(FactsBlock(tuple(_device_facts(rank))),), is_folded=True
        )
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
        if roof.modelled_share is not None and roof.modelled_share < MIN_KNOWN_SHARE:
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


LINE = 80
MAX_PATH = 76
MAX_RANKS = 20
MIN_PATH = 28
"""Cells: of a line, and of what stands on the first one: a file's path, the ranks' number before
their folder, the name of a file where there is little room."""

MAX_WARNINGS = 2
DAMAGE = re.compile(
    r"damaged|ends before|ends inside|cut off|could not be read|read only in part|left out: "
    r"|of one run\b|clock ran back|clocks of host and device|clock jumped|events are missing"
    r"|do not resemble one another"
)
"""Signs in a note that a file is not whole, so that less was judged than was recorded; or that the
files may not belong together; or that its times are not those of one clock, or of one kind of
step."""

OTHER_TRAINING = "Changes the training"
OF_TRAINING = "another batch or precision: what is learned may change"
"""Heading of the findings that stand last, and what it means."""

UNEVEN = 2.0
"""Times the median step that the mean is, from which both are told: then most of the time is in
steps that most steps are not."""

OF_THE_RUN = "of the run: a usual step stays as it is"

BOUND_WORDS = {
    "data": "Waiting for input limits this run.",
    "host": "The host limits this run.",
    "transfer": "Copies between host and device limit this run.",
    "comms": "Communication limits this run.",
    "imbalance": "Waiting for other ranks limits this run.",
    "compute": "Compute limits this run.",
    "memory": "Memory bandwidth limits this run.",
}
SOURCE_WORDS = {
    "given": "as given",
    "measured": "measured without the profiler",
    "log": "as the job's own log tells",
    "trace": "from the trace, while profiled",
}


def limit_words(verdict: Verdict) -> str:
    """What limits the run, without numbers."""
    if verdict.second is not None:
        return "No one thing limits this run."
    return BOUND_WORDS.get(verdict.bound, "What limits this run is not known.")


def damage_warnings(notes: Sequence[str]) -> Iterator[Warn]:
    """Warnings of the notes that files are not whole, or not of one run: to be read before the
    verdict."""
    damage = [note for note in notes if DAMAGE.search(note)]
    for note in damage[:MAX_WARNINGS]:
        yield Warn(f"{note[:1].upper()}{note[1:]}{'' if note[-1:] in '.?!' else '.'}")


def headline(diagnosis: Diagnosis, *, is_tight: bool = False) -> Headline:
    """The verdict, and what was looked at; on one line where it is tight."""
    verdict = diagnosis.verdict
    tones: dict[str, Tone] = {"compute": "good", "unknown": ""}
    return Headline(
        text=verdict.summary.strip() or limit_words(verdict),
        about=(_what_was_read(diagnosis.facts, is_tight=is_tight),),
        tone=tones.get(verdict.bound, "warn"),
        is_tight=is_tight,
    )


def _what_was_read(facts: Facts, *, is_tight: bool) -> str:
    """File or folder, device, steps: `trace.json.gz, NVIDIA H100: 4 steps detected by ProfilerStep,
    3 whole ones measured`."""
    ranks = facts.ranks
    if not ranks and facts.run is None and facts.auxiliary is not None:
        # A job's output is read for several things, and is one file.
        files = {
            path for recording in facts.auxiliary.recordings for path in recording.paths
        } | set(() if facts.nccl is None else facts.nccl.files)
        read = f"{len(files)} recordings"
        if len(files) == 1:
            read = shorten(files.pop(), MAX_PATH - len(", no trace"))
        return f"{read}, no trace"
    if not ranks:
        if facts.run is None:
            return "No rank was read."
        return f"{facts.run.path}: the profiler recorded no step"
    rest = f", {_device_words(ranks)}: {_step_words(facts.median_rank, is_tight=is_tight)}"
    room = max(MIN_PATH, LINE - len(rest)) if is_tight else MAX_PATH
    if len(ranks) == 1:
        path = ranks[0].path if facts.run is None else facts.run.path
        if is_tight and len(path) > room:
            path = path.rpartition("/")[2]
        return shorten(path, room) + rest
    folder = shorten(_common_folder([rank.path for rank in ranks]), room - MAX_RANKS)
    return f"{len(ranks)} ranks" + (f" in {folder}" if folder else "") + rest


def _device_words(ranks: Sequence[RankFacts]) -> str:
    names = Counter(rank.device_name for rank in ranks if rank.device_name)
    devices = " and ".join(shorten(name, 40) for name, _ in names.most_common(2))
    if len(names) > 2:
        devices += f" and {len(names) - 2} other kinds of device"
    if devices:
        return devices
    is_named = any(rank.steps.where == "device" for rank in ranks)
    return "no device named" if is_named else "no device"


def _step_words(rank: RankFacts, *, is_tight: bool) -> str:
    steps = rank.steps
    if steps.source == "whole trace":
        return "no steps could be detected" if rank.num_events else "no events"
    source = shorten(steps.source, 30)
    if steps.windows and not steps.num_seen:
        return f"no whole step detected by {source}"
    seen = f"{plural(steps.num_seen, 'step')} detected by {source}"
    if not steps.windows:
        return f"{seen}, none of them whole"
    is_all = len(steps.windows) == steps.num_seen
    if is_tight:
        num = plural(steps.num_seen, "step")
        return num if is_all else f"{len(steps.windows)} of {num}"
    return seen if is_all else f"{seen}, {len(steps.windows)} measured"


def _common_folder(paths: list[str]) -> str:
    """The folder all paths begin with; they may be addresses in object storage."""
    first, last = min(paths), max(paths)
    same = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    return first[: first.rfind("/", 0, same) + 1]


def source_words(diagnosis: Diagnosis) -> str:
    """How the step time is known."""
    source, run = diagnosis.step.source, diagnosis.facts.run
    if source == "measured" and run is not None and run.is_kept_off:
        return "measured with a profiler of the job's own on"
    return SOURCE_WORDS.get(source, source)


def time_words(diagnosis: Diagnosis) -> str:
    """How long a step takes, and how that is known."""
    step = diagnosis.step
    if step.ms is None:
        return "The step time was not measured."
    words = f"A step takes {ms(step.ms * 1e6)} ({source_words(diagnosis)}"
    words += _uneven_words(diagnosis)
    usual_ms = unprofiled_ms(step, diagnosis.replay)
    if step.profiled_ms is not None and step.source != "trace":
        words += f"; {ms(step.profiled_ms * 1e6)} while profiled"
    elif usual_ms is not None and diagnosis.findings:
        words += f"; about {ms(usual_ms * 1e6)} without the profiler, and gains are of that"
    return f"{words})."


def _uneven_words(diagnosis: Diagnosis) -> str:
    """What half of the steps take at most, where a few long ones make up most of the mean."""
    run = diagnosis.facts.run
    steps = None if run is None else next((rank.steps for rank in run.ranks if rank.steps), None)
    if diagnosis.step.source != "measured" or steps is None or not steps.median_ns:
        return ""
    if steps.step_ns < UNEVEN * steps.median_ns:
        return ""
    return f", the mean; half of them take {ms(steps.median_ns)} at most"


def together_words(diagnosis: Diagnosis) -> str:
    """What all the fixes give; empty where there are fewer than two."""
    if diagnosis.together is None:
        return ""
    findings = [finding for finding in diagnosis.findings if not finding.changes_training]
    left_ms = all_steps_ms(findings, diagnosis.replay) / diagnosis.together
    is_any = any(finding.excludes for finding in findings)
    which = "All that go together" if is_any else "All of them together"
    gain = f"{which}: {diagnosis.together:.{2 if diagnosis.together < 10 else 0}f}x"
    return f"{gain}, {_after_words(left_ms, 1.0)}; they do not multiply."


def finding_title(finding: Finding, diagnosis: Diagnosis) -> str:
    """The gain with its range, the step after it, and the ranks that have the fault."""
    gain = gain_words(finding.predicted_speedup, finding.predicted_low, finding.predicted_high)
    which = "rank" if len(finding.ranks) == 1 else "ranks"
    many_ranks = len(diagnosis.facts.ranks) > 1
    ranks = f", {which} {number_ranges(finding.ranks)}" if many_ranks and finding.ranks else ""
    after = _after_words(finding.predicted_step_ms, finding.samples_times)
    if not many_ranks and is_of_rare_steps(finding, diagnosis.replay):
        after = OF_THE_RUN
    return f"{gain}, {after}{ranks}"


def _after_words(step_ms: float, samples_times: float) -> str:
    """`then 31.2 ms a step`, with how many samples where they are more than today; `step_ms` is for
    as many as today."""
    step = f"then {ms(step_ms * samples_times * 1e6)} a step"
    return step if samples_times == 1 else f"{step} of {samples_times:.0f} times the samples"


def change_code(change: CodeChange) -> Code:
    """The lines as they are and as they should be, under their file and line."""
    indent = min(
        (
            len(line) - len(line.lstrip())
            for line in (*change.before, *change.after)
            if line.strip()
        ),
        default=0,
    )
    lines = [f"- {line[indent:]}" for line in change.before]
    lines += [f"+ {line[indent:]}" for line in change.after]
    return Code((f"{change.path}:{change.line}", *lines), is_change=True)


def memory_words(change: MemoryChange) -> str:
    """`Memory's peak: 5.26 GB today, 15.6 GB after.`"""
    before, after = size_words(change.before_bytes), size_words(change.after_bytes)
    return f"Memory's peak: {before} today, {after} after."


def all_notes(diagnosis: Diagnosis) -> list[str]:
    """The run's notes, then those of its ranks that are not among them."""
    facts = diagnosis.facts
    lines = [*diagnosis.notes, *facts.notes] + ([facts.unknown_note] if facts.unknown_note else [])
    return list(dict.fromkeys(lines))
