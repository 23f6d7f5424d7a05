"""Why a layout or a job cannot be, and the nearest that can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from stepscope.errors import UsageError
from stepscope.plan.cluster import USABLE
from stepscope.plan.estimate import choice_of
from stepscope.plan.framework import FSDP
from stepscope.plan.job import PRECISIONS, TrainingJob
from stepscope.plan.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout, Layouts
from stepscope.plan.memory import host_bytes
from stepscope.plan.parameters import interleaves, parameters
from stepscope.plan.search import least_memory
from stepscope.plan.space import Grid, Space, divisors
from stepscope.plan.step_time import has_stalled_sends
from stepscope.plan.what_if import fitting, smallest_cluster

GIB = 2**30
_MAX_TRIES = 200
TIGHT = 0.88
"""Share of a device's memory from which a plan is called tight."""


class Problem(NamedTuple):
    """Something that cannot be, and what could be instead."""

    what: str
    instead: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.instead}" if self.instead else self.what


# One layout.


def problems(job: TrainingJob, layout: Layout) -> list[Problem]:
    """All that is wrong with a layout of a job but its memory; empty where it can run."""
    parts = (_device_problems, _cut_problems, _pipe_problems)
    return [*job_problems(job), *(fault for part in parts for fault in part(job, layout))]


def check_layout(job: TrainingJob, layout: Layout) -> None:
    """Raise what is wrong with it."""
    faults = problems(job, layout)
    if faults:
        raise UsageError(f"{layout} cannot run:" + "".join(f"\n  - {fault}" for fault in faults))


def _device_problems(job: TrainingJob, layout: Layout) -> Iterator[Problem]:
    num, others = job.cluster.num_devices, layout.tp * layout.cp * layout.pp
    if layout.num_devices != num:
        product = " x ".join(f"{name}{getattr(layout, name)}" for name in ("tp", "cp", "pp", "dp"))
        if num % others == 0:
            instead = f"dp{num // others} fills them"
        else:
            near = _near(divisors(num), others)
            instead = f"tp x cp x pp must divide {num}: {_listed(near)} do, {others} does not"
        yield Problem(
            f"{product} are {layout.num_devices} devices and the cluster has {num}",
            instead,
        )
    rank_batch = layout.dp * layout.micro_batch
    if layout.global_batch != job.global_batch:
        below = job.global_batch // rank_batch * rank_batch
        above = -(-job.global_batch // rank_batch) * rank_batch
        near_batches = {batch for batch in (below, above) if batch}
        fitting_micro = [
            micro
            for micro in divisors(job.global_batch)
            if job.global_batch % (layout.dp * micro) == 0
        ]
        micro = f", or mb{_near(fitting_micro, layout.micro_batch)[0]}" if fitting_micro else ""
        yield Problem(
            f"a batch of {job.global_batch} is not a multiple of dp{layout.dp} x "
            f"mb{layout.micro_batch} = {rank_batch}",
            f"{_listed(sorted(near_batches))} would be{micro}",
        )
    copies = layout.dp * layout.cp
    if layout.shard and copies % layout.shard and layout.shard < copies:
        yield Problem(
            f"{copies} data ranks cannot be cut into shards of {layout.shard}",
            _could(copies, layout.shard),
        )


def _cut_problems(job: TrainingJob, layout: Layout) -> Iterator[Problem]:
    model, tp = job.model, layout.tp
    kv_heads = model.kv_heads
    widths = [n for n in divisors(model.heads) if kv_heads % n == 0 or n % kv_heads == 0]
    if tp not in widths:
        what = (
            f"{model.heads} heads ({model.kv_heads} of keys and values) cannot be shared by {tp} "
            "tensor ranks"
        )
        yield Problem(what, f"{_listed(_near(widths, tp))} can")
    for width, whose in (
        (model.ffn_hidden, "the MLP's"),
        (model.experts.ffn_hidden if model.experts else 0, "an expert's"),
    ):
        if width and width % tp:
            yield Problem(
                f"{whose} width of {width} cannot be shared by {tp} tensor ranks",
                _could(width, tp),
            )
    if layout.is_sequence_parallel and tp == 1:
        yield Problem(
            "sequence parallelism is among tensor ranks and there is one",
            "leave sp out, or use tp2",
        )
    if layout.cp > 1 and job.seq_len % (2 * layout.cp):
        # Rank i takes the i-th piece from both ends.
        nearest = [n for n in divisors(job.seq_len) if job.seq_len % (2 * n) == 0] or [1]
        what = (
            f"{job.seq_len} tokens cannot be cut into two pieces for each of {layout.cp} context "
            "ranks"
        )
        yield Problem(what, f"{_listed(_near(nearest, layout.cp))} can")
    if layout.ep > 1 and model.experts is None:
        yield Problem(f"{model.name} has no experts to spread over ep{layout.ep}", "leave ep out")
    elif model.experts is not None and (
        model.experts.num % layout.ep or (layout.dp * layout.cp) % layout.ep
    ):
        copies = layout.dp * layout.cp
        possible = [n for n in divisors(model.experts.num) if copies % n == 0]
        what = f"ep{layout.ep} must divide {model.experts.num} experts and dp x cp = {copies}"
        yield Problem(what, f"{_listed(_near(possible, layout.ep))} would")


def _pipe_problems(job: TrainingJob, layout: Layout) -> Iterator[Problem]:
    layers, pp, vpp = job.model.layers, layout.pp, layout.vpp
    every, in_stage = layout.recompute_every, max(1, layers // pp)
    if every > 1 and (layout.recompute != "full" or layout.recompute_layers):
        yield Problem(f"every{every} is of full recomputation of all layers", "leave it out")
    elif in_stage % every:
        what = f"{in_stage} layers of a stage have no checkpoint every {every}"
        yield Problem(what, _could(in_stage, every))
    if pp > layers or (layers % pp and not job.framework.balances_stages):
        yield Problem(f"{layers} layers cannot be cut into {pp} equal stages", _could(layers, pp))
    elif vpp > 1 and not interleaves(job, pp, vpp):
        possible = [pieces for pieces in divisors(layers) if layers % (pp * pieces) == 0] or [1]
        what = f"{layers} layers cannot be cut into {pp} stages of {vpp} pieces"
        yield Problem(what, f"pieces of a stage can be {_listed(_near(possible, vpp))}")
    if vpp > 1 and (pp == 1 or layout.schedule != "1f1b"):
        yield Problem(
            f"v{vpp} interleaves the stages of 1f1b",
            "leave it out, or use pp2 or more with 1f1b",
        )
    elif vpp > 1 and layout.num_micro % pp:
        batch = layout.dp * layout.micro_batch
        near = sorted(
            {max(1, layout.num_micro // pp) * pp * batch, -(-layout.num_micro // pp) * pp * batch}
        )
        what = (
            f"interleaving needs micro-batches in groups of pp{pp} and there are {layout.num_micro}"
        )
        yield Problem(what, f"a batch of {_listed(near)} has them")
    if layout.schedule != "1f1b" and pp == 1:
        yield Problem(
            f"{layout.schedule} is a pipeline's schedule and there is one stage",
            "leave it out",
        )
    least = {"zb1p": pp, "zb2p": 2 * pp, "zbv": 2 * pp}.get(layout.schedule, 1)
    if layout.num_micro < least and pp > 1:
        what = (
            f"{layout.schedule} fills its bubbles with {least} micro-batches or more and there "
            f"are {layout.num_micro}"
        )
        yield Problem(what, f"use 1f1b, or a batch of {least * layout.dp * layout.micro_batch}")


def warnings(job: TrainingJob, layout: Layout) -> list[str]:
    """What can run but seldom should."""
    texts = []
    per_node = job.cluster.devices_per_node
    if layout.tp > per_node:
        texts.append(
            f"tp{layout.tp} is wider than a node of {per_node}: its collectives leave the node"
        )
    elif per_node % layout.tp:
        texts.append(
            f"tp{layout.tp} does not divide a node of {per_node}: some groups lie in two nodes; "
            f"{_could(per_node, layout.tp)}"
        )
    if layout.zero_stage == 2 and layout.pp > 1:
        texts.append(
            "ZeRO-2 under a pipeline reduces gradients after each micro-batch; ZeRO-1 does it once"
        )
    texts += _stall_warnings(job, layout)
    share = choice_of(job, layout).memory_bytes / job.cluster.memory_bytes
    if TIGHT < share <= USABLE:
        texts.append(
            f"{share:.0%} of the memory is taken and such estimates are off by some 10 %: try it "
            "before you count on it"
        )
    if layout.offload != "none":
        host = job.cluster.host_memory_bytes / 2**30
        if layout.offload == "nvme":
            disks = job.cluster.disk_bytes_per_s / 1e9
            texts.append(f"a node's disks are taken to move {disks:g} GB/s; --nvme says otherwise")
        texts.append(
            f"a node's own memory is taken to be {host:.0f} GiB; --host-memory says otherwise"
        )
        if layout.offload not in job.framework.offloads:
            kinds = {"all": "all", "nvme": "to disks"}
            what = kinds.get(layout.offload, "the optimizer alone")
            texts.append(
                f"{job.framework.name} does not offload {what}: this is what a framework that does "
                "would give"
            )
    return texts


def _stall_warnings(job: TrainingJob, layout: Layout) -> list[str]:
    send_s, name = job.framework.stalled_send_s, job.framework.name
    if not send_s or layout.pp == 1:
        return []
    took = f"{send_s:.2g} s a send"
    if has_stalled_sends(job, Layouts.of([layout]))[0]:
        wide = f"most published runs of {name} that are as wide stall between stages"
        return [f"{wide}, {took}: that is in the plan"]
    if job.cluster.num_nodes > 1:
        some = f"one in five published runs of {name} with such stages stalls"
        return [f"{some}, {took}: that is not in the plan or its range"]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """Whether one layout fits its device, and by how much it does not."""

    memory_bytes: float
    missing_bytes: float
    """0 where it fits."""
    largest_part: str
    nearest: Layout | None
    """The same with as little as possible changed, such that it fits;
    None where nothing tried does, or it fits already."""


def memory_fit(job: TrainingJob, layout: Layout) -> MemoryFit:
    """Whether a layout fits, and what would make it."""
    choice = choice_of(job, layout)
    missing = max(0.0, choice.memory_bytes - job.cluster.usable_bytes)
    return MemoryFit(
        memory_bytes=choice.memory_bytes,
        missing_bytes=missing,
        largest_part=max(choice.memory, key=lambda name: choice.memory[name]),
        nearest=_nearest_fitting(job, layout) if missing or not _host_holds(job, layout) else None,
    )


def _host_holds(job: TrainingJob, layout: Layout) -> bool:
    """Whether a node's memory has room for what a layout offloads."""
    columns = Layouts.of([layout])
    needed = np.max(host_bytes(job, columns, parameters(job, columns)))
    return bool(needed <= job.cluster.host_memory_bytes)


def _nearest_fitting(job: TrainingJob, layout: Layout) -> Layout | None:
    """Nearest layout that fits, by what changes least, each on top of the last.

    Sequence parallelism, shards, recompute, a smaller micro-batch, offload.
    """
    tried = layout
    shared = (*job.framework.zero_stages, layout.zero_stage)
    steps: list[dict[str, Any]] = [
        {"is_sequence_parallel": layout.tp > 1},
        *[{"zero_stage": stage} for stage in shared if layout.zero_stage < stage < 3],
        {"recompute": "full", "recompute_layers": 0, "recompute_every": 1},
        *[{"micro_batch": micro} for micro in reversed(divisors(layout.micro_batch)[:-1])],
        {"zero_stage": max(shared)},
        *[{"offload": kind} for kind in job.framework.offloads],
    ]
    for change in steps:
        tried = replace(tried, **change)
        tried = replace(tried, num_micro=max(1, job.global_batch // (tried.dp * tried.micro_batch)))
        fits = choice_of(job, tried).memory_bytes <= job.cluster.usable_bytes
        if tried != layout and fits and _host_holds(job, tried) and not problems(job, tried):
            return tried
    return None


# A whole job.


def job_problems(job: TrainingJob) -> list[Problem]:
    """What no layout can fix."""
    faults = []
    for name, value in (("sequence", job.seq_len), ("batch", job.global_batch)):
        if value < 1:
            faults.append(Problem(f"a {name} of {value} is none", "give at least 1"))
    if job.precision not in job.cluster.peak_flops:
        faults.append(_no_unit(job))
    reach = job.model.max_positions
    if reach and job.seq_len > reach:
        what = f"{job.model.name} has learned positions for {reach} tokens, not {job.seq_len}"
        faults.append(
            Problem(what, f"use a sequence of {reach}, or a model with rotated positions")
        )
    return faults


def _no_unit(job: TrainingJob) -> Problem:
    has = [precision for precision in PRECISIONS if precision in job.cluster.peak_flops]
    rank = PRECISIONS.index(job.precision) if job.precision in PRECISIONS else 0
    nearest = sorted(has, key=lambda precision: abs(PRECISIONS.index(precision) - rank))[:2]
    what = f"{job.cluster.device.name} has no unit for {job.precision[:20]!a}"
    instead = "its datasheet here has no rate that we know"
    if nearest:
        instead = f"use {' or '.join(nearest)}"
    return Problem(what, instead)


def check_space(space: Space) -> None:
    """Raise where a space has a value that none of its options has."""
    for name in ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch"):
        values = getattr(space, name)
        if values is not None and (not values or min(values) < 1):
            raise UsageError(
                f"{name} must be 1 or more, not {', '.join(map(str, values)) or 'nothing'}"
            )
    words = {
        "recompute": RECOMPUTE,
        "schedule": SCHEDULES,
        "offload": OFFLOAD,
        "zero_stage": (0, 1, 2, 3),
    }
    for name, allowed in words.items():
        chosen = getattr(space, name)
        for value in allowed if chosen is None else chosen or ("nothing",):
            if value not in allowed:
                listed = ", ".join(map(str, allowed))
                raise UsageError(
                    f"{name.replace('_', ' ')} is one of {listed}, not {str(value)[:40]!a}"
                )
    if space.shard is not None and (not space.shard or min(space.shard) < 0):
        raise UsageError("a shard is of so many ranks, or 0 for all of them")


def check_job(job: TrainingJob, space: Space | None = None) -> None:
    """Raise what no layout can fix, and what leaves none to choose from."""
    space = space or Space()
    check_space(space)
    faults = job_problems(job)
    if faults:
        raise UsageError("\n".join(str(fault) for fault in faults))
    grid = Grid(job, space)
    if len(grid):
        return
    reasons = [reason for reason, num in grid.dropped.items() if num]
    why = f" (what does not divide: {', '.join(reasons)})" if reasons else ""
    batches = _nearest_batches(job, space)
    instead = "loosen what is pinned, or change the number of devices"
    if batches:
        instead = f"a batch of {_listed(batches)} would do"
    raise UsageError(
        f"no layout fills {job.cluster.num_devices} devices with a batch of {job.global_batch} as "
        f"it is pinned{why}; {instead}"
    )


def _nearest_batches(job: TrainingJob, space: Space) -> list[int]:
    """The next smaller and the next larger batch that some layout divides, if they are near."""
    nearest: list[int] = []
    batch = job.global_batch
    smaller = range(batch - 1, max(0, batch - _MAX_TRIES), -1)
    larger = range(batch + 1, batch + _MAX_TRIES)
    for batches in (smaller, larger):
        for batch in batches:
            if len(Grid(replace(job, global_batch=batch), space)):
                nearest.append(batch)
                break
    return nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Shortfall of a cluster that is too small for a job, and what would help."""

    layout: Layout
    """The one with the least memory."""
    memory_bytes: float
    missing_bytes: float
    helps: tuple[str, ...]
    """Each tried: it makes the job fit."""


def shortfall(job: TrainingJob, space: Space | None = None) -> Shortfall | None:
    """None where some layout fits, or none divides the job (see `check_job`)."""
    space = space or Space()
    least = least_memory(job, space)
    has = job.cluster.usable_bytes
    if least is None or least.memory_bytes <= has:
        return None
    return Shortfall(
        layout=least.layout,
        memory_bytes=least.memory_bytes,
        missing_bytes=least.memory_bytes - has,
        helps=tuple(_helps(job, space)),
    )


def _helps(job: TrainingJob, space: Space) -> Iterator[str]:
    wider = replace(space, recompute=RECOMPUTE)
    if "full" not in space.recompute and fitting(job, wider) is not None:
        yield "recompute activations (full)"
    if space.zero_stage is not None and fitting(job, replace(space, zero_stage=None)) is not None:
        yield "shard weights too (ZeRO-3)"
    if 3 not in job.framework.zero_stages:
        sharding = replace(job, framework=FSDP)
        if fitting(sharding, replace(space, zero_stage=None)) is not None:
            yield "shard weights and gradients too, as FSDP does (--framework fsdp, --emit fsdp2)"
    if not space.spans_nodes and fitting(job, replace(space, spans_nodes=True)) is not None:
        yield "tensor ranks over more than a node"
    yield from _offload_helps(job, space)
    if not job.is_adapter and fitting(replace(job, is_adapter=True), space) is not None:
        yield "train adapters (LoRA) beside frozen weights"
    more = smallest_cluster(job, space)
    if more is not None:
        per_node = more.job.cluster.devices_per_node
        nodes = f" in nodes of {per_node}" if more.num_devices > per_node else ""
        yield (
            f"{more.num_devices} device{'s' if more.num_devices > 1 else ''}{nodes} instead of "
            f"{job.cluster.num_devices}, the smallest cluster that holds it"
        )


def _offload_helps(job: TrainingJob, space: Space) -> Iterator[str]:
    host = job.cluster.host_memory_bytes
    has = {"none", *(job.framework.offloads or OFFLOAD)}
    kinds = (tuple(kind for kind in OFFLOAD[:num] if kind in has) for num in (2, 3, 4))
    wider = [each for each in kinds if not set(each) <= set(space.offload)]
    roomy = replace(job, cluster=replace(job.cluster, host_memory_bytes=float("inf")))
    for candidate in (job, roomy):
        for each in wider:
            least = fitting(candidate, replace(space, offload=each))
            if least is not None:
                need = f"{least.layout} needs {least.memory_bytes / GIB:.1f} GiB a device"
                short = f", of which a node has {host / GIB:.0f}" if least.host_bytes > host else ""
                yield (
                    f"offload to the host: {need} and {least.host_bytes / GIB:.0f} GiB of the "
                    f"host{short}"
                )
                return


# Words.


def _near(values: Sequence[int], wanted: int) -> list[int]:
    """The nearest below and the nearest above."""
    below = [value for value in values if value <= wanted]
    above = [value for value in values if value >= wanted]
    return sorted({*([max(below)] if below else []), *([min(above)] if above else [])})


def _could(whole: int, wanted: int) -> str:
    return f"{_listed(_near(divisors(whole), wanted))} can"


def _listed(values: Sequence[int]) -> str:
    return " or ".join(str(value) for value in values)
