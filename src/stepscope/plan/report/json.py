"""A plan as JSON: the document `stepscope.plan/1`."""

from __future__ import annotations

from msgspec import UNSET

from stepscope.core.contract.codec import encode, filled
from stepscope.plan.contract import plan as document
from stepscope.plan.contract.plan import PlanContract, RecordedMemory
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout_words import spelled_out
from stepscope.plan.report.account import Plan


def plan_json(plan: Plan, measured: RecordedMemory | None = None) -> str:
    """The document as indented text; `recorded_memory` is there where it was asked for."""
    return encode(plan_contract(plan, measured))


def plan_contract(plan: Plan, measured: RecordedMemory | None = None) -> PlanContract:
    """What is not known is null, never 0."""
    named = plan.explained or plan.best
    return filled(
        PlanContract,
        plan,
        job=_job(plan.job),
        judged_by=document.JudgedBy(
            kind="calibrated" if plan.is_calibrated else "datasheet",
            hardware=plan.hardware or None,
        ),
        layout_words=None if named is None else spelled_out(named.layout),
        recorded_memory=UNSET if measured is None else measured,
    )


def _job(job: TrainingJob) -> document.Job:
    model, cluster = job.model, job.cluster
    return filled(
        document.Job,
        job,
        model=filled(
            document.Model,
            model,
            params=model.num_params,
            experts=None if model.experts is None else model.experts.num,
        ),
        cluster=filled(
            document.Cluster,
            cluster,
            device=cluster.device.name,
            tiers=tuple(filled(document.Tier, tier) for tier in cluster.tiers),
        ),
        framework=job.framework.name,
        optimizer=job.optimizer.name,
        adapters=job.is_adapter,
    )
