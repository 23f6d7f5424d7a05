"""A plan as JSON: the document `stepscope.plan/1`."""

from __future__ import annotations

from msgspec import UNSET

from stepscope.core.contract.codec import encode, filled
from stepscope.plan.contract import plan as document
from stepscope.plan.contract.plan import PlanContract, RecordedMemory
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout_words import spelled_out
from stepscope.plan.report.account import Account, Plan, Variant


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
        best=_account_or_none(plan.best),
        layouts=tuple(map(_account, plan.layouts)),
        pareto=tuple(map(_account, plan.pareto)),
        explained=_account_or_none(plan.explained),
        what_ifs=tuple(map(_variant, plan.what_ifs)),
        scaling=tuple(map(_variant, plan.scaling)),
        largest=None if plan.largest is None else _variant(plan.largest),
        smallest=None if plan.smallest is None else _variant(plan.smallest),
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


def _account_or_none(account: Account | None) -> document.Account | None:
    return None if account is None else _account(account)


def _account(account: Account) -> document.Account:
    return filled(
        document.Account,
        account,
        name=str(account.layout),
        layout=filled(document.Layout, account.layout),
        tokens_per_s_per_device=account.tokens_per_s / account.layout.num_devices,
        memory_parts_bytes=account.memory,
        time_parts_s=account.time,
        why=account.why or None,
        ranges=account.ranges or UNSET,
    )


def _variant(variant: Variant) -> document.Variant:
    return filled(
        document.Variant,
        variant,
        best=_account_or_none(variant.best),
        note=variant.note or None,
    )
