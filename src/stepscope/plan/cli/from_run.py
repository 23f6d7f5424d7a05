"""What `plan --from RUN` does: read a recorded run, and say what its step becomes on more nodes."""

from __future__ import annotations

import sys
from collections import Counter

from stepscope.analyses.run.width import width_run
from stepscope.cli.printing import progress_bar
from stepscope.cli.report import put_document, put_or_write
from stepscope.core.comms import CollectiveRow, CommsFacts, LinkFit
from stepscope.errors import InputError, UsageError
from stepscope.pipeline.options import Options as ReadingOptions
from stepscope.pipeline.recording import measure
from stepscope.plan.cli.job import cluster_of
from stepscope.plan.cli.options import Options, RecordedRun
from stepscope.plan.contract.plan import Device
from stepscope.plan.from_run import COMPUTE, MeasuredCollective, MeasuredRun, extrapolate
from stepscope.plan.other_device import on_device
from stepscope.plan.report.run import RunPlan, run_plan_document, run_plan_html, run_plan_json
from stepscope.plan.what_if import Change, parse_change
from stepscope.rules.job_case import Job

WIDE = 16
"""Sizes of messages that a fit's latency is believed from: the largest over the smallest."""
MISFIT = 0.25


def run_from(options: Options, paths: list[str]) -> int:
    asked, output = options.run, options.output
    changes = [parse_change(word) for word in options.questions.what_if]
    if asked.nodes is None and not changes:
        raise UsageError(
            "--from needs the widths to predict for (--nodes 2,4,8), another device (--what-if "
            "device=B200), or a --model to plan with the run's own rates"
        )
    if any(change != Change(words=change.words, device=change.device) for change in changes):
        raise UsageError("of a recorded run --what-if takes device=NAME alone; give --model too")
    job, run = read_run(asked, paths)
    cluster, notes = (
        (None, ()) if options.cluster is None else cluster_of(options.cluster, options.hardware)
    )
    per_node = asked.ranks_per_node or (cluster.devices_per_node if cluster is not None else None)
    made = extrapolate(
        run, asked.nodes or (), per_node=per_node, is_strong=asked.strong, cluster=cluster
    )
    plan = RunPlan(
        path=paths,
        made=made,
        global_batch=options.global_batch,
        seq_len=options.seq,
        step_source=job.facts.step_source,
        devices=tuple(device_of(job, run, change.device or "") for change in changes),
        notes=(*made.notes, *notes, *job.notes),
    )
    if output.format == "json":
        put_or_write(run_plan_json(plan) + "\n", output.out)
    elif output.format == "html":
        put_or_write(run_plan_html(plan), output.out)
    else:
        put_document(run_plan_document(plan), output.out)
    sys.stdout.flush()
    return 0


def device_of(job: Job, run: MeasuredRun, word: str) -> Device:
    """The recorded step on another device: kernels as they scale, all else as it was."""
    rank = job.facts.median_rank
    other = on_device(rank.kernels, rank.device_name, word)
    parts = dict(run.parts_s)
    parts[COMPUTE] = parts.get(COMPUTE, 0.0) * other.ratio
    step_s = sum(parts.values())
    return Device(
        device=other.device,
        step_s=step_s,
        parts_s=parts,
        speedup=run.step_s / step_s,
        share_known=other.share_known,
    )


def read_run(asked: RecordedRun, paths: list[str]) -> tuple[Job, MeasuredRun]:
    reading = ReadingOptions(
        step_ms=asked.step_ms, use_cache=not asked.no_cache, progress=progress_bar
    )
    job = measure(paths, reading)
    counts = Counter(rank.rank for rank in job.facts.ranks)
    rank, num = max(counts.items(), key=lambda each: each[1])
    if num > 1:
        raise InputError(
            f"rank {rank} is told by {num} traces: a step is carried from one run; name the traces "
            "of one"
        )
    run = width_run(paths[0], job.facts, job.world_size)
    if run.parts_ns is None:
        raise InputError(
            f"{paths[0]}: no whole step was recorded, so there is nothing to carry to other widths"
        )
    comms = job.facts.comms
    return job, MeasuredRun(
        width=run.width,
        parts_s={part: ns / 1e9 for part, ns in run.parts_ns.items() if ns is not None},
        collectives=() if comms is None else collectives_of(comms, run.width),
        num_data=num_data_of(comms, run.width),
    )


def num_data_of(comms: CommsFacts | None, width: int) -> int:
    """Ranks that hold the same weights: the data dimension's, else all of them."""
    if comms is None:
        return 1
    sizes = [
        each.size
        for each in comms.shape
        if each.kind == "data" and each.size and width % each.size == 0
    ]
    if sizes:
        return max(sizes)
    cut = [each.size or 1 for each in comms.shape if each.kind in ("tensor", "pipeline", "context")]
    return max(1, width // max(cut)) if cut else width


def collectives_of(comms: CommsFacts, width: int) -> tuple[MeasuredCollective, ...]:
    """Collectives whose number, size and time were measured."""
    data = {each.group for each in comms.shape if each.kind == "data"}
    fits = {(fit.op, fit.group, fit.num_ranks): fit for fit in comms.fits if _is_wide(fit)}
    collectives = []
    for row in comms.rows:
        num_ranks, size = row.num_ranks, row.bytes
        if not row.on_device and row.num_groups == 1 and num_ranks is None:
            # The host's own (gloo) name neither group nor size: one group is all ranks.
            num_ranks, size = width, size or 0
        if row.count_per_step is None or size is None or num_ranks is None or num_ranks < 2:
            continue
        fit = fits.get((row.op, row.group, num_ranks))
        collectives.append(
            MeasuredCollective(
                op=row.op,
                num_ranks=num_ranks,
                size_bytes=size,
                count=row.count_per_step,
                seconds=row.moving_ns / 1e9,
                is_data=_is_data(row, data, num_ranks == width),
                alpha_s=None if fit is None else fit.alpha_ns / 1e9,
                beta_bytes_per_s=None if fit is None else fit.beta_bytes_per_s,
            )
        )
    return tuple(collectives)


def _is_wide(fit: LinkFit) -> bool:
    """Whether a latency can be separated from a bandwidth: it grows with the ranks, so one that
    is mere noise must not."""
    return fit.max_bytes >= WIDE * fit.min_bytes and fit.worst <= MISFIT


def _is_data(row: CollectiveRow, data: set[str], is_of_all: bool) -> bool:
    """Whether it is the data group by the shape where it is known; else a group of all ranks."""
    return row.group in data if data else is_of_all
