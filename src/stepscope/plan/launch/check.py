"""What is wrong with a configuration: first what cannot run, then what costs time or memory, each
with its price where the planner can give one.

A price is the planned step as it is, less the planned step after that one change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec import Struct

from stepscope.plan.contract.launch import ERROR, MEMORY, NOTE, SLOW, Fault, Range
from stepscope.plan.estimate import Choice, choice_of
from stepscope.plan.framework import Framework, with_grads
from stepscope.plan.job import VALUE_BYTES, TrainingJob
from stepscope.plan.launch.settings import Settings
from stepscope.plan.layout import Layout
from stepscope.plan.network import Group, Network
from stepscope.plan.ranges import ranges_of
from stepscope.plan.validate import memory_fit, problems
from stepscope.plan.what_if import fastest

GIB = 2**30
WORTH = 0.01
"""Share of a step: what gains less is not named."""
FULL_BUCKET = 100e6
"""Bytes of a bucket that keeps a link busy: its transfer is many times its latency."""
LARGE_BUFFERS = 0.05
"""Share of a device's memory: buckets that take more are named."""


class Checked(Struct, frozen=True, kw_only=True):
    """One configuration on one cluster."""

    settings: Settings
    job: TrainingJob | None
    """None where model or cluster are not known: nothing is estimated then."""
    layout: Layout | None
    choice: Choice | None
    step: Range | None
    memory: Range | None
    faults: tuple[Fault, ...]
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        if self.choice is None or self.job is None:
            return None
        return self.choice.memory_bytes <= self.job.cluster.usable_bytes

    @property
    def mfu(self) -> float | None:
        """MFU of the step with what its buckets cost."""
        if self.choice is None or self.step is None:
            return None
        return self.choice.mfu * self.choice.step_s / self.step.value

    @property
    def runs(self) -> bool:
        return not any(fault.kind == ERROR for fault in self.faults)


def framework_of(settings: Settings, framework: Framework) -> Framework:
    """The framework with what the file switches on or off of it."""
    if settings.overlaps_data is not None:
        framework = replace(framework, overlaps_data=settings.overlaps_data)
    if settings.overlaps_tensor is not None:
        framework = replace(framework, overlaps_tensor=settings.overlaps_tensor)
    if settings.grads is not None:
        framework = with_grads(framework, settings.grads)
    return replace(framework, **settings.conventions)  # type: ignore[arg-type]


def check(settings: Settings, job: TrainingJob | None) -> Checked:
    """All that is wrong with it, the errors first, then the most costly."""
    faults = [
        *(Fault("value", ERROR, each, "") for each in settings.refused),
        *_batch_faults(settings, job),
    ]
    layout = None if job is None else layout_of(settings, job)
    if job is None or layout is None:
        return Checked(
            settings=settings, job=job, layout=None, choice=None, step=None, memory=None,
            faults=(*faults, *_plain_faults(settings)), notes=settings.notes,
        )  # fmt: skip
    job = replace(job, global_batch=layout.global_batch)
    faults += [
        Fault("cannot-be-cut", ERROR, each.what, each.instead)
        for each in problems(job, layout)
        if not ("batch of" in each.what and any(fault.code == "batch" for fault in faults))
    ]
    if any(fault.kind == ERROR for fault in faults):
        return Checked(
            settings=settings, job=job, layout=layout, choice=None, step=None, memory=None,
            faults=tuple(faults), notes=settings.notes,
        )  # fmt: skip
    choice, spans = choice_of(job, layout), ranges_of(job)
    faults += _memory_faults(job, layout, choice)
    faults += _slow_faults(settings, job, layout, choice)
    faults += _refill_faults(settings, job, layout, choice)
    buckets = _bucket_faults(settings, job, layout, choice)
    faults += buckets
    lost_s = sum(fault.seconds or 0.0 for fault in buckets)
    faults.sort(key=lambda fault: (fault.kind != ERROR, -(fault.seconds or 0.0)))
    return Checked(
        settings=settings,
        job=job,
        layout=layout,
        choice=choice,
        step=spans.step.range_of(choice.step_s + lost_s),
        memory=spans.memory.range_of(choice.memory_bytes),
        faults=tuple(faults),
        notes=settings.notes,
    )


# Sizes.


def layout_of(settings: Settings, job: TrainingJob) -> Layout | None:
    """The layout on the job's cluster; None where the devices cannot be cut so."""
    cut = settings.layout
    others = cut.tp * cut.pp * cut.cp
    if job.cluster.num_devices % others:
        return None
    dp = job.cluster.num_devices // others
    micro = settings.micro_batch or 1
    if settings.accumulation is not None:
        num_micro = settings.accumulation
    else:
        num_micro = max(1, (settings.global_batch or dp * micro) // (dp * micro))
    shard = cut.shard
    if settings.copies is not None and settings.copies > 1 and cut.zero_stage == 3:
        shard = dp * cut.cp // settings.copies if dp % settings.copies == 0 else 0
    per_node = job.cluster.devices_per_node
    if settings.has_node_shards and dp > per_node and dp % per_node == 0:
        shard = per_node
    return replace(cut, dp=dp, micro_batch=micro, num_micro=num_micro, shard=shard)


def _batch_faults(settings: Settings, job: TrainingJob | None) -> Iterator[Fault]:
    if job is None:
        return
    cut, num = settings.layout, job.cluster.num_devices
    others = cut.tp * cut.pp * cut.cp
    if num % others:
        yield Fault(
            "devices",
            ERROR,
            f"tp{cut.tp} x pp{cut.pp} x cp{cut.cp} = {others} does not divide {num} devices",
            "change a degree, or the number of devices",
        )
        return
    dp = num // others
    batch, micro, times = settings.global_batch, settings.micro_batch, settings.accumulation
    if batch is None or micro is None:
        return
    if times is not None and _num_runs(settings, dp * micro * times) is None:
        yield Fault(
            "batch",
            ERROR,
            f"the batch sizes do not multiply: {micro} x {times} x {dp} data ranks = "
            f"{micro * times * dp}, and the global batch is {batch}",
            _batch_fix(batch, micro, dp),
        )
    elif times is None and batch % (dp * micro):
        yield Fault(
            "batch",
            ERROR,
            f"a global batch of {batch} is not a multiple of {micro} x {dp} data ranks",
            _batch_fix(batch, micro, dp),
        )


def _num_runs(settings: Settings, batch: int) -> int | None:
    """How often a step takes such a batch; None where that does not come to the global one."""
    whole = settings.global_batch or batch
    runs, rest = divmod(whole, batch)
    return None if rest or (runs > 1 and not settings.is_repeated) else runs


def _batch_fix(batch: int, micro: int, dp: int) -> str:
    if batch % (micro * dp) == 0:
        return f"{batch // (micro * dp)} accumulation steps"
    return f"a global batch of {-(-batch // (micro * dp)) * micro * dp}"


def _plain_faults(settings: Settings) -> Iterator[Fault]:
    """What can be said without a model and a cluster."""
    if settings.precision == "fp32":
        yield Fault(
            "precision",
            NOTE,
            "half precision is not switched on",
            "bf16 where the device has it; give --model and --cluster for the price",
        )
    if settings.overlaps_data is False:
        yield Fault(
            "overlap-off",
            NOTE,
            "gradients are not reduced behind the backward pass",
            "switch the overlap on; give --model and --cluster for the price",
        )


# Memory.


def _memory_faults(job: TrainingJob, layout: Layout, choice: Choice) -> Iterator[Fault]:
    has, fills = job.cluster.memory_bytes, job.cluster.usable_bytes
    if choice.memory_bytes <= fills:
        # What a plan recommends is not called tight.
        if choice.memory_bytes > job.cluster.roomy_bytes:
            high = ranges_of(job).memory.high
            nearest = memory_fit(job, layout).nearest
            yield Fault(
                "tight",
                NOTE,
                f"{choice.memory_bytes / has:.0%} of the memory is planned for, and such "
                f"plans are exceeded by up to {high - 1:.0%}",
                f"{nearest} has room" if nearest else "try it before you count on it",
            )
        return
    fit = memory_fit(job, layout)
    fix = "more devices, or a smaller model"
    if fit.nearest is not None:
        fix = f"{fit.nearest} fits and changes least"
    elif (other := fastest(job)) is not None:
        fix = f"another cut: {other.layout} fits"
    yield Fault(
        "does-not-fit",
        ERROR,
        f"{choice.memory_bytes / GIB:.1f} GiB of {has / GIB:.1f} GiB, of which a job can fill "
        f"{fills / GIB:.1f}; {choice.memory[fit.largest_part] / GIB:.1f} GiB of it are "
        f"{fit.largest_part.replace('_', ' ')}",
        fix,
        num_bytes=choice.memory_bytes - fills,
    )


# Time.


def _slow_faults(
    settings: Settings, job: TrainingJob, layout: Layout, choice: Choice
) -> Iterator[Fault]:
    best: dict[str, Fault] = {}
    for code, what, fix, changed, cut in _changes(settings, job, layout):
        if problems(changed, cut):
            continue
        after = choice_of(changed, cut)
        # Where the batch grows with data ranks, the time of as many sequences counts.
        gain = choice.step_s - after.step_s * job.global_batch / changed.global_batch
        room = max(job.cluster.roomy_bytes, choice.memory_bytes)
        is_roomy = after.memory_bytes <= room
        known = best.get(code)
        is_better = known is None or gain > (known.seconds or 0.0)
        if gain > WORTH * choice.step_s and is_roomy and is_better:
            best[code] = Fault(code, SLOW, what, fix, seconds=gain)
    yield from best.values()


def _refill_faults(
    settings: Settings, job: TrainingJob, layout: Layout, choice: Choice
) -> Iterator[Fault]:
    """A pipeline that is emptied before the step is over; prices are of one such run."""
    runs = _num_runs(settings, layout.global_batch) or 1
    if runs == 1:
        return
    num = runs * layout.num_micro
    # All forwards first would hold as many micro-batches.
    at_once = replace(layout, num_micro=num, schedule="1f1b")
    after = choice_of(replace(job, global_batch=runs * job.global_batch), at_once)
    gain = choice.step_s - after.step_s / runs
    if gain > WORTH * choice.step_s:
        yield Fault(
            "pipeline-refilled",
            SLOW,
            f"{layout.pp} stages fill and empty {runs} times a step, with "
            f"{layout.num_micro} micro-batches each time; what is planned here is one of them",
            f"local_batch_size {num * layout.micro_batch} and a 1F1B schedule",
            seconds=gain,
        )


Change = tuple[str, str, str, TrainingJob, Layout]


def _changes(settings: Settings, job: TrainingJob, layout: Layout) -> Iterator[Change]:
    """One thing changed at a time: what it is called, why, what to do, and the job then."""
    if settings.overlaps_data is False and layout.dp * layout.cp > 1:
        overlapping = replace(job, framework=replace(job.framework, overlaps_data=True))
        what = "gradients are not reduced behind the backward pass"
        yield "overlap-off", what, OVERLAP_FIX[settings.kind], overlapping, layout
    if settings.overlaps_tensor is False and layout.is_sequence_parallel:
        overlapping = replace(job, framework=replace(job.framework, overlaps_tensor=True))
        what = "gathers and scatters of tensor ranks are not behind their products"
        yield "tensor-overlap-off", what, "--tp-comm-overlap", overlapping, layout
    if job.precision == "fp32":
        for precision in ("bf16", "fp16"):
            if precision in job.cluster.peak_flops:
                what = f"products run in fp32, and {job.cluster.device.name} has {precision}"
                yield "precision", what, precision, replace(job, precision=precision), layout
                break
    bigger = _bigger_micro(layout)
    if bigger is not None:
        what = f"a micro-batch of {layout.micro_batch} is small for the device"
        yield "micro-batch", what, f"a micro-batch of {bigger.micro_batch}", job, bigger
    if layout.recompute != "none":
        for less in ("none", "selective")[: 2 if layout.recompute == "full" else 1]:
            what = f"{layout.recompute} recompute, and there is room without it"
            yield "recompute", what, f"{less} recompute", job, replace(layout, recompute=less)
    if layout.offload != "none":
        what = f"offload of {layout.offload} to the host, and it fits without"
        yield "offload", what, "no offload", job, replace(layout, offload="none")
    for stage in (1, 2):
        if layout.zero_stage > stage and stage in job.framework.zero_stages:
            what = f"ZeRO-{layout.zero_stage} gathers what would fit under ZeRO-{stage}"
            cut = replace(layout, zero_stage=stage, shard=0)
            yield "zero-stage", what, f"ZeRO-{stage}", job, cut
            break
    per_node = job.cluster.devices_per_node
    if layout.tp > per_node and layout.tp % per_node == 0:
        what = f"tp{layout.tp} leaves the node: its collectives cross the network in every layer"
        stages = layout.pp * layout.tp // per_node
        is_parted = layout.is_sequence_parallel or job.framework.has_sequence
        cut = replace(layout, tp=per_node, pp=stages, is_sequence_parallel=is_parted)
        fix = f"tp{per_node} and pp{stages}"
        if is_parted and not layout.is_sequence_parallel:
            fix += ", with sequence parallelism"
        yield "tensor-over-nodes", what, fix, job, cut
        times = layout.tp // per_node
        if layout.num_micro == 1:
            wide = replace(cut, pp=layout.pp, dp=layout.dp * times)
            larger = replace(job, global_batch=job.global_batch * times)
            fix = f"tp{per_node} and dp{wide.dp}, a batch of {larger.global_batch}"
            yield "tensor-over-nodes", what, fix, larger, wide
    if layout.tp > 1 and not layout.is_sequence_parallel and job.framework.has_sequence:
        what = f"tp{layout.tp} without sequence parallelism"
        cut = replace(layout, is_sequence_parallel=True)
        yield "sequence-parallel", what, "sequence parallelism", job, cut
    if not layout.is_flash:
        what = "attention writes its scores to memory"
        yield "attention", what, "flash attention", job, replace(layout, is_flash=True)


OVERLAP_FIX = {
    "deepspeed": '"overlap_comm": true',
    "megatron": "--overlap-grad-reduce",
    "torchtitan": "FSDP overlaps by itself",
    "transformers": '"overlap_comm": true in DeepSpeed\'s file',
}


def _bigger_micro(layout: Layout) -> Layout | None:
    """Twice the micro-batch, half as many of them; under a pipeline as many as it has stages must
    stay."""
    if layout.num_micro % 2 or layout.num_micro // 2 < layout.pp:
        return None
    return replace(layout, micro_batch=2 * layout.micro_batch, num_micro=layout.num_micro // 2)


# Buckets.


def _bucket_faults(
    settings: Settings, job: TrainingJob, layout: Layout, choice: Choice
) -> list[Fault]:
    """Small buckets pay a collective's start and hops each time; large ones are memory."""
    elements, width = settings.bucket_elements, layout.dp * layout.cp
    if settings.has_square_buckets:
        elements = job.model.hidden**2
    if elements is None or width == 1:
        return []
    value_bytes, faults = VALUE_BYTES[job.precision], []
    size = elements * value_bytes
    held = job.model.num_params / (layout.tp * layout.pp) * value_bytes
    each_s = float(Network(job.cluster, job.constants).around_s(Group(width, layout.tp)))
    each_s += job.constants.collective_s
    # Every micro-batch reduces on its own under ZeRO-2 and 3.
    times = layout.num_micro if layout.zero_stage >= 2 else 1
    lost = max(0.0, held / size - held / FULL_BUCKET) * each_s * times
    lost = max(0.0, lost - _hiding_s(settings, job, choice))
    if lost > WORTH * choice.step_s:
        what = (
            f"buckets of {size / 1e6:.3g} MB: {held / size * times:.0f} collectives a step, each "
            f"{each_s * 1e6:.0f} us before a byte moves"
        )
        fix = f"buckets of {FULL_BUCKET / value_bytes:.0f} elements or more"
        faults.append(Fault("small-buckets", SLOW, what, fix, seconds=lost))
    buffers = size * (2 if settings.overlaps_data else 1)
    if buffers > LARGE_BUFFERS * job.cluster.memory_bytes:
        what = f"buckets of {size / GIB:.1f} GiB are {buffers / GIB:.1f} GiB of buffers"
        fix = f"buckets of {2 * FULL_BUCKET / value_bytes:.0f} elements keep a link as busy"
        saved = buffers - 2 * FULL_BUCKET
        faults.append(Fault("large-buckets", MEMORY, what, fix, num_bytes=saved))
    return faults


def _hiding_s(settings: Settings, job: TrainingJob, choice: Choice) -> float:
    """Time of the backward passes, two thirds of the work, that can hide collectives."""
    if not settings.overlaps_data:
        return 0.0
    work = sum(choice.times.get(name, 0.0) for name in ("gemm", "attention", "stream", "recompute"))
    return job.constants.overlap * work * 2 / 3
