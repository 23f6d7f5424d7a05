"""A plan as JSON: the document `stepscope.plan/1`."""

from __future__ import annotations

from dataclasses import asdict

from msgspec import UNSET

from stepscope.core.contract import plan as document
from stepscope.core.contract.codec import encode
from stepscope.core.contract.plan import PlanContract
from stepscope.planner.job import TrainingJob
from stepscope.planner.layout_words import spelled_out
from stepscope.report.plan.account import Account, Plan, Variant
from stepscope.report.plan.measured_memory import MeasuredMemory, measured_memory_contract


def plan_json(plan: Plan, measured: MeasuredMemory | None = None) -> str:
    """The document as indented text; `beside` is there where it was asked for."""
    return encode(plan_contract(plan, measured))


def plan_contract(plan: Plan, measured: MeasuredMemory | None = None) -> PlanContract:
    """What is not known is null, never 0."""
    named = plan.explained or plan.best
    return PlanContract(
        job=_job(plan.job),
        best=_account_or_none(plan.best),
        layouts=tuple(map(_account, plan.layouts)),
        pareto=tuple(map(_account, plan.pareto)),
        counts=plan.counts,
        explained=_account_or_none(plan.explained),
        budget=None if plan.budget is None else document.Budget(**asdict(plan.budget)),
        what_ifs=tuple(map(_variant, plan.what_ifs)),
        scaling=tuple(map(_variant, plan.scaling)),
        largest=None if plan.largest is None else _variant(plan.largest),
        smallest=None if plan.smallest is None else _variant(plan.smallest),
        judged_by=document.JudgedBy(
            kind="calibrated" if plan.is_calibrated else "datasheet",
            hardware=plan.hardware or None,
        ),
        assumptions=plan.assumptions,
        advice=plan.advice,
        layout_words=None if named is None else spelled_out(named.layout),
        beside=UNSET if measured is None else measured_memory_contract(measured),
    )


def _job(job: TrainingJob) -> document.Job:
    return document.Job(
        model=_model(job),
        cluster=_cluster(job),
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        precision=job.precision,
        framework=job.framework.name,
        optimizer=job.optimizer.name,
        adapters=job.is_adapter,
    )


def _model(job: TrainingJob) -> document.Model:
    model = job.model
    return document.Model(
        name=model.name,
        params=model.num_params,
        active_params=model.active_params,
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_hidden=model.ffn_hidden,
        vocab=model.vocab,
        experts=None if model.experts is None else model.experts.num,
        source=model.source,
    )


def _cluster(job: TrainingJob) -> document.Cluster:
    cluster = job.cluster
    return document.Cluster(
        device=cluster.device.name,
        num_devices=cluster.num_devices,
        devices_per_node=cluster.devices_per_node,
        memory_bytes=cluster.memory_bytes,
        tiers=tuple(
            document.Tier(
                name=tier.name,
                size=tier.size,
                bytes_per_s=tier.bytes_per_s,
                latency_s=tier.latency_s,
            )
            for tier in cluster.tiers
        ),
    )


def _account_or_none(account: Account | None) -> document.Account | None:
    return None if account is None else _account(account)


def _account(account: Account) -> document.Account:
    return document.Account(
        name=str(account.layout),
        layout=document.Layout(**asdict(account.layout)),
        step_s=account.step_s,
        tokens_per_s=account.tokens_per_s,
        tokens_per_s_per_device=account.tokens_per_s / account.layout.num_devices,
        mfu=account.mfu,
        hfu=account.hfu,
        memory_bytes=account.memory_bytes,
        fits=account.fits,
        memory_parts_bytes=account.memory,
        time_parts_s=account.time,
        why=account.why or None,
        ranges=account.ranges or UNSET,
    )


def _variant(variant: Variant) -> document.Variant:
    return document.Variant(
        name=variant.name,
        num_devices=variant.num_devices,
        best=_account_or_none(variant.best),
        note=variant.note or None,
    )
