"""What `plan` answers: searched, then put together for the reports."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from msgspec import structs

from stepscope.errors import UsageError
from stepscope.plan import validate, what_if
from stepscope.plan.cli.job import job_of
from stepscope.plan.cli.options import ALL, Options, Pins, Questions
from stepscope.plan.compression import WORDS, wire_bytes
from stepscope.plan.contract.plan import Account, Budget, Failures, FrameworkRow, JudgedBy, Variant
from stepscope.plan.estimate import Choice, choice_of, why
from stepscope.plan.failures import failures
from stepscope.plan.framework import grads_setting
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.compare import (
    Candidate,
    bare,
    candidates,
    chosen,
    first_that_writes,
    nearest,
    refusal,
    writable,
)
from stepscope.plan.launch.emit import COMPARED, PYTORCH, TARGETS, restricted, target_of
from stepscope.plan.layout import OFFLOAD, Layout
from stepscope.plan.layout_words import parse_layout
from stepscope.plan.ranges import ranges_of
from stepscope.plan.report.account import MEMORY_WORDS, Plan, account_of, described
from stepscope.plan.report.words import gib, short_count
from stepscope.plan.search import SearchResult, search
from stepscope.plan.space import Space

MAX_OF_FRONT = 6
PINNED = ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "zero_stage", "recompute", "schedule")
ZERO = "zero"
"""Word in place of a layout to explain: every ZeRO stage."""
EVERY_STAGE = 4
WORTH = 0.01
"""Share of a step: what gains less is not worth a change of the training."""
WIDEST = "megatron"
"""What writes most ways to cut a model."""
LARGEST = "fsdp2"
"""What a model of any size is looked for with, where no framework is named."""
SLOWEST = 2.0
"""Times the best step: what is slower than this is no choice, however little memory it needs."""


def answer(options: Options, target: str | None = None) -> Plan:
    """With a target, what is not pinned is searched among what can be written for it."""
    questions = options.questions
    job, notes = job_of(options)
    asked = space_of(options.pins)
    one = target or (None if options.framework is None else target_of(options.framework, job))
    compares = target is None and options.framework in (None, ALL)
    sized = bare(job, asked, LARGEST) if compares else one_of(job, asked, one)
    largest = what_if.largest_model(sized.job, sized.space) if questions.largest else None
    if options.model is None and largest is not None and largest.model is not None:
        job = replace(job, model=largest.model)
    start = time.perf_counter()
    if compares:
        compared, answered = compare(job, asked, options)
    else:
        compared, answered = (), searched(one_of(job, asked, one), questions.layouts)
    took = time.perf_counter() - start
    job, space, result = answered.job, answered.space, answered.found
    accounts = tuple(account_of(job, choice) for choice in result.best)
    explained = None
    if questions.explain not in (None, ZERO):
        explained = explained_of(job, questions.explain, result, space)
    best = result.best[0] if result.best else None
    measured_by = options.run.paths[0] if options.run.paths else str(options.hardware or "")
    spent = None
    if questions.tokens is not None and best is not None:
        spent = what_if.budget(job, best, questions.tokens)
    return Plan(
        job=described(job),
        training=job,
        best=accounts[0] if accounts else None,
        layouts=accounts,
        pareto=tuple(account_of(job, choice) for choice in thinned(result)),
        zero_stages=zero_stages_of(answered, asked) if questions.explain == ZERO else (),
        frameworks=tuple(framework_row(each, answered) for each in compared),
        counts=(
            {"tried": result.num_layouts, "fit": result.num_fit}
            | {f"too large: {name}": num for name, num in result.too_large.items()}
        ),
        search_s=took,
        explained=explained,
        budget=spent,
        failures=failures_of(questions, job, best, spent),
        what_ifs=what_ifs_of(job, space, asked, questions.what_if),
        scaling=scaling_of(job, space, questions.scaling or ()),
        largest=None if largest is None else largest_of(job, largest),
        smallest=smallest_of(job, space) if questions.smallest else None,
        is_pinned=asked != Space(offload=asked.offload),
        judged_by=JudgedBy(
            kind="calibrated" if measured_by else "datasheet", hardware=measured_by or None
        ),
        assumptions=(
            *notes,
            *assumed(options, job),
            *grads_words(options, answered),
            *failure_words(questions),
            *([answered.reason] if answered.reason and accounts else []),
            *warned(job, explained or (accounts[0] if accounts else None)),
            *job.model.notes,
            *job.cluster.notes,
        ),
        advice=(
            *(() if accounts else advice_of(job, space)),
            *(() if explained is None else room_advice(job, explained)),
        ),
    )


def failures_of(
    questions: Questions, job: TrainingJob, best: Choice | None, spent: Budget | None
) -> Failures | None:
    """Where a time between failures was given, or a run's length."""
    if best is None or (spent is None and questions.mtbf is None):
        return None
    return failures(
        job,
        best,
        mtbf_h=questions.mtbf,
        write_s=questions.checkpoint,
        restart_s=questions.restart,
        days=None if spent is None else spent.days,
    )


def failure_words(questions: Questions) -> list[str]:
    """What nobody said of failures."""
    assumed_s = {"restart": questions.restart, "checkpoint": questions.checkpoint}
    unsaid = [name for name, value in assumed_s.items() if value is None]
    if questions.tokens is None and questions.mtbf is None:
        return []
    lines = [f"what a {name} takes is assumed: --{name} S says it" for name in unsaid]
    if questions.mtbf is None:
        lines.append("the time between failures is that of Llama 3's run: --mtbf says yours")
    return lines


def grads_words(options: Options, answered: Candidate) -> list[str]:
    """The setting that keeps gradients as asked, of a framework that nobody named."""
    grads, framework = options.grads, answered.job.framework
    if grads is None or options.framework not in (None, ALL):
        return []
    return [f"gradients in {grads}: {grads_setting(framework, grads)}"]


def one_of(job: TrainingJob, space: Space, target: str | None) -> Candidate:
    """The job's own framework, restricted to what can be written for it where anything can."""
    if target is None:
        return Candidate(target="", job=job, space=space)
    return Candidate(target=target, job=job, space=restricted(space, target))


def searched(candidate: Candidate, top: int) -> Candidate:
    """With its layouts: those that can be written, or all with the reason where none can."""
    check(candidate.job, candidate.space)
    found = search(candidate.job, candidate.space, top=top, num_workers=None)
    if not candidate.target or not found.best:
        return replace(candidate, found=found)
    return writable(candidate, found, top) or replace(
        candidate, found=found, reason=refusal(candidate, found.best[0]) or ""
    )


def compare(
    job: TrainingJob, space: Space, options: Options
) -> tuple[tuple[Candidate, ...], Candidate]:
    """The job under each framework, and the one that is answered by: the fastest that runs on
    PyTorch alone, or of all with `--framework all`."""
    check(job, space)
    top, explain = options.questions.layouts, options.questions.explain
    explain = None if explain == ZERO else explain
    compared = candidates(job, space, COMPARED, top=top)
    wanted = COMPARED if options.framework == ALL else PYTORCH
    if explain is not None:
        named = first_that_writes(job, space, parse_layout(explain, job), COMPARED)
        widest = next(each for each in compared if each.target == WIDEST)
        target = WIDEST if named is None else named.target
        return compared, next((each for each in compared if each.target == target), widest)
    answered = chosen(compared, wanted) or nearest(compared)
    if answered is None:
        answered = searched(replace(bare(job, space, WIDEST), space=space), top)
        answered = replace(answered, reason=f"no --emit writes this: {compared[-1].reason}")
    return compared, answered


def zero_stages_of(answered: Candidate, asked: Space) -> tuple[Variant, ...]:
    """One layout under every ZeRO stage: the best of the framework that is answered by where it has
    all of them, else DeepSpeed's; of plain data ranks where nothing fits."""
    candidate = answered
    if len(answered.job.framework.zero_stages) < EVERY_STAGE:
        candidate = bare(answered.job, asked, "deepspeed")
    job = candidate.job
    if candidate.best is None:
        found = search(job, candidate.space, top=1).best
    else:
        found = candidate.found.best[:1]
    dp = job.cluster.num_devices
    layout = Layout(dp=dp, num_micro=max(1, job.global_batch // dp))
    if found and not found[0].layout.shard:
        layout = found[0].layout
    if layout.dp * layout.cp == 1:
        raise UsageError(
            f"ZeRO shares states over data ranks and {layout} has one: --explain zero is for two "
            "or more"
        )
    variants = []
    for stage in range(EVERY_STAGE):
        cut = replace(layout, zero_stage=stage, offload="none")
        name, faults = f"{job.framework.name}, ZeRO-{stage}", validate.problems(job, cut)
        has = job.framework.staged_zero_stages if cut.pp > 1 else range(EVERY_STAGE)
        if faults or stage not in has:
            note = str(faults[0]) if faults else "not with stages"
            variants.append(Variant(name=name, num_devices=dp, best=None, note=note))
            continue
        variants.append(_variant(name, job, choice_of(job, cut)))
    return tuple(variants)


def framework_row(candidate: Candidate, answered: Candidate) -> FrameworkRow:
    best, target = candidate.best, TARGETS[candidate.target]
    return FrameworkRow(
        name=candidate.job.framework.name,
        emit=candidate.target,
        best=None if best is None else account_of(candidate.job, best),
        is_answered=candidate.target == answered.target,
        adoption=target.adoption,
        reason=candidate.reason or None,
    )


def space_of(given: Pins) -> Space:
    """What was given is pinned; the rest is free."""
    names = ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "recompute", "schedule")
    pins: dict[str, Any] = {
        name: (value,) for name in names if (value := getattr(given, name)) is not None
    }
    if given.recompute_every is not None:
        pins |= {"recompute": ("full",), "recompute_every": (given.recompute_every,)}
    if given.zero is not None:
        pins["zero_stage"] = (given.zero,)
    if given.sp is not None:
        pins["is_sequence_parallel"] = (given.sp,)
    if given.offload is not None:
        pins["offload"] = (given.offload,)
    elif given.allow_offload:
        pins["offload"] = OFFLOAD
    if given.no_flash:
        pins["is_flash"] = (False,)
    if given.tp is not None:
        pins["spans_nodes"] = True
    return Space(**pins)


def explained_of(job: TrainingJob, word: str, result: SearchResult, space: Space) -> Account:
    """The layout of a name, whether the search showed it or not. What the name leaves open is as
    pinned."""
    layout, plain = parse_layout(word, job), Layout()
    for name in (
        "recompute",
        "schedule",
        "offload",
        "zero_stage",
        "is_sequence_parallel",
        "is_flash",
    ):
        pinned = getattr(space, name)
        if (
            pinned is not None
            and len(pinned) == 1
            and getattr(layout, name) == getattr(plain, name)
        ):
            layout = replace(layout, **{name: pinned[0]})
    validate.check_layout(job, layout)
    choice = choice_of(job, layout)
    return account_of(job, replace(choice, why=why(choice, result.best[0]) if result.best else ""))


def what_ifs_of(
    job: TrainingJob, space: Space, asked: Space, words: list[str]
) -> tuple[Variant, ...]:
    """The best layout after each change; under another framework of what can be written for it."""
    variants = []
    for change in map(what_if.parse_change, words):
        changed, free = what_if.changed_job(job, change), space
        if changed.framework.name != job.framework.name:
            free = one_of(changed, asked, target_of(changed.framework.name, changed)).space
        if changed.compression is None:
            variants.append(_variant(change.words, changed, what_if.fastest(changed, free)))
            continue
        # Of gradients that every data rank keeps whole, beside the same uncompressed.
        free = replace(free, zero_stage=(0,))
        best = what_if.fastest(changed, free)
        plain = what_if.fastest(replace(changed, compression=None), free)
        note = f"nothing fits with whole gradients on every rank ({changed.framework.name})"
        if best is not None and plain is not None:
            note = compression_words(changed, best, plain)
        variants.append(structs.replace(_variant(change.words, changed, best), note=note))
    return tuple(variants)


def compression_words(job: TrainingJob, best: Choice, plain: Choice) -> str:
    """What crosses and what it gains, and whether that is worth it."""
    how, copies = job.compression, best.layout.dp * best.layout.cp
    assert how is not None
    params = job.model.num_params / best.layout.tp / best.layout.pp
    sent = wire_bytes(how, job.model, params, copies)
    before = params * job.framework.comm_grad_bytes
    gain = plain.step_s - best.step_s
    worth = "worth it" if gain > WORTH * plain.step_s else "not worth it"
    sizes = f"{before / 1e9:.3g} GB of gradients as {sent / 1e9:.2g} GB"
    steps = f"{plain.step_s:.3g} s a step without, {best.step_s:.3g} s with"
    return f"{job.framework.name}, {sizes}: {steps}, {worth} ({WORDS[how.kind]})"


def scaling_of(job: TrainingJob, space: Space, nums: tuple[int, ...]) -> tuple[Variant, ...]:
    points = what_if.scaling(job, replace(space, dp=None), nums)
    return tuple(
        _variant(str(each.num_devices), job, each.choice, each.num_devices) for each in points
    )


def largest_of(job: TrainingJob, largest: what_if.Largest) -> Variant:
    if largest.model is None:
        return Variant(
            name="none: not even the smallest fits", num_devices=job.cluster.num_devices, best=None
        )
    shape = f"{largest.model.layers} layers of {largest.model.hidden}"
    named = (
        None
        if largest.named is None
        else f"of the built-in ones {largest.named.name}, {short_count(largest.named.num_params)}"
    )
    return Variant(
        name=f"{short_count(largest.model.num_params)} parameters, a llama of {shape}",
        num_devices=job.cluster.num_devices,
        best=None if largest.choice is None else account_of(job, largest.choice),
        note=named,
    )


def smallest_of(job: TrainingJob, space: Space) -> Variant:
    free = replace(space, dp=None)
    smallest = what_if.smallest_cluster(job, free)
    if smallest is None:
        return Variant(name=f"none of up to {what_if.MAX_NODES} nodes", num_devices=0, best=None)
    high = ranges_of(job).memory.high
    # A device as much smaller as memory may come to more than is planned.
    full = replace(job, cluster=replace(job.cluster, memory_bytes=job.cluster.memory_bytes / high))
    most = what_if.smallest_cluster(full, free)
    note = f"none of up to {what_if.MAX_NODES} nodes is sure to hold it"
    if most is not None:
        note = f"{smallest.num_devices} to {most.num_devices} devices"
    note += f": so much where memory comes to {high:.2f} times what is planned, as one in ten did"
    nodes = smallest.job.cluster.num_nodes
    name = (
        f"{smallest.num_devices} x {job.cluster.device.name}, in {nodes} "
        f"node{'' if nodes == 1 else 's'}"
    )
    variant = _variant(name, smallest.job, smallest.choice, smallest.num_devices)
    return structs.replace(variant, note=note)


def _variant(
    name: str, job: TrainingJob, choice: Choice | None, num_devices: int | None = None
) -> Variant:
    best = None if choice is None else account_of(job, choice)
    return Variant(name=name, num_devices=num_devices or job.cluster.num_devices, best=best)


def thinned(result: SearchResult) -> list[Choice]:
    """A few of the front, spread over its memory: neighbours differ by little."""
    front = [each for each in result.front if each.step_s <= SLOWEST * result.front[0].step_s]
    if len(front) <= MAX_OF_FRONT:
        return front
    step = (len(front) - 1) / (MAX_OF_FRONT - 1)
    return [front[index] for index in sorted({round(i * step) for i in range(MAX_OF_FRONT)})]


def assumed(options: Options, job: TrainingJob) -> list[str]:
    """What nobody said."""
    notes = []
    if options.seq is None:
        notes.append(f"no --seq was given: {job.seq_len} tokens")
    if options.global_batch is None:
        notes.append(
            f"no --global-batch was given: {job.global_batch} sequences, 4 for each device"
        )
    return notes


def warned(job: TrainingJob, account: Account | None) -> list[str]:
    return [] if account is None else validate.warnings(job, account.layout)


def advice_of(job: TrainingJob, space: Space) -> tuple[str, ...]:
    """What to do where nothing fits: how near the smallest comes, and what was tried and helps."""
    short = validate.shortfall(job, space)
    if short is None:
        return ()
    lines = [
        (
            f"The least memory is {gib(short.memory_bytes)}, {gib(short.missing_bytes)} too much, "
            f"with {short.layout}."
        )
    ]
    lines += [f"It fits with this: {each}." for each in short.helps]
    if not any("smallest cluster" in each for each in short.helps):
        lines.append(
            f"No cluster of up to {what_if.MAX_NODES} nodes of this device was found to hold it "
            f"with a batch of {job.global_batch}."
        )
    if any("offload" in each for each in short.helps):
        lines.append(
            "--allow-offload lets the search offload; --host-memory GIB says what a node has."
        )
    return tuple(lines)


def room_advice(job: TrainingJob, account: Account) -> tuple[str, ...]:
    """The layout next to one that does not fit."""
    if account.fits:
        return ()
    room = validate.memory_fit(job, account.layout)
    part = MEMORY_WORDS[room.largest_part]
    near = "" if room.nearest is None else f" Nearest that fits: {room.nearest}."
    return (
        (
            f"{account.layout} needs {gib(room.missing_bytes)} more than there is; most of it is "
            f"{part}.{near}"
        ),
    )


def check(job: TrainingJob, space: Space) -> None:
    """Raise what cannot be, by the pin that makes it so where one does."""
    try:
        validate.check_job(job, space)
    except UsageError:
        pinned = {
            name: values[0]
            for name in PINNED
            if (values := getattr(space, name)) and len(values) == 1
        }
        if validate.job_problems(job) or not pinned.keys() & {"tp", "pp", "cp", "ep", "dp", "vpp"}:
            raise
        layout = Layout(**pinned)
        if "dp" not in pinned:
            layout = replace(
                layout, dp=max(1, job.cluster.num_devices // (layout.tp * layout.cp * layout.pp))
            )
        validate.check_layout(
            job,
            replace(layout, num_micro=max(1, job.global_batch // (layout.dp * layout.micro_batch))),
        )
        raise
