"""A plan as JSON: the contract `stepscope.plan/1`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stepscope.json_text import json_text
from stepscope.planner.job import TrainingJob
from stepscope.report.plan.account import Account, Plan, Variant
from stepscope.report.plan.beside import PlanBeside, beside_contract

SCHEMA = "stepscope.plan/1"


def plan_json(plan: Plan, beside: PlanBeside | None = None) -> str:
    """The contract as indented text; `beside` is there where it was asked for."""
    told = plan_contract(plan) if beside is None else plan_contract(plan) | {"beside": beside_contract(beside)}
    return json_text(told, indent=2)


def plan_contract(plan: Plan) -> dict[str, Any]:
    """The contract as plain values. What is not known is null, never 0."""
    return {
        "schema": SCHEMA,
        "job": _job(plan.job),
        "best": None if plan.best is None else _account(plan.best),
        "layouts": [_account(each) for each in plan.layouts],
        "pareto": [_account(each) for each in plan.pareto],
        "counts": dict(plan.counts),
        "explained": None if plan.explained is None else _account(plan.explained),
        "budget": None if plan.budget is None else asdict(plan.budget),
        "what_ifs": [_variant(each) for each in plan.what_ifs],
        "scaling": [_variant(each) for each in plan.scaling],
        "largest": None if plan.largest is None else _variant(plan.largest),
        "smallest": None if plan.smallest is None else _variant(plan.smallest),
        "judged_by": {"kind": "calibrated" if plan.is_calibrated else "datasheet", "hardware": plan.hardware or None},
        "assumptions": list(plan.assumptions),
        "advice": list(plan.advice),
    }


def _job(job: TrainingJob) -> dict[str, Any]:
    model, cluster = job.model, job.cluster
    return {
        "model": {
            "name": model.name,
            "params": model.num_params,
            "active_params": model.active_params,
            "layers": model.layers,
            "hidden": model.hidden,
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "ffn_hidden": model.ffn_hidden,
            "vocab": model.vocab,
            "experts": None if model.experts is None else model.experts.num,
            "source": model.source,
        },
        "cluster": {
            "device": cluster.device.name,
            "num_devices": cluster.num_devices,
            "devices_per_node": cluster.devices_per_node,
            "memory_bytes": cluster.memory_bytes,
            "tiers": [
                {"name": tier.name, "size": tier.size, "bytes_per_s": tier.bytes_per_s, "latency_s": tier.latency_s}
                for tier in cluster.tiers
            ],
        },
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "precision": job.precision,
        "framework": job.framework.name,
        "optimizer": job.optimizer.name,
        "adapters": job.is_adapter,
    }


def _account(account: Account) -> dict[str, Any]:
    return {
        "name": str(account.layout),
        "layout": asdict(account.layout),
        "step_s": account.step_s,
        "tokens_per_s": account.tokens_per_s,
        "tokens_per_s_per_device": account.tokens_per_s / account.layout.num_devices,
        "mfu": account.mfu,
        "hfu": account.hfu,
        "memory_bytes": account.memory_bytes,
        "fits": account.fits,
        "memory_parts_bytes": dict(account.memory),
        "time_parts_s": dict(account.time),
        "why": account.why or None,
    }


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "num_devices": variant.num_devices,
        "best": None if variant.best is None else _account(variant.best),
        "note": variant.note or None,
    }
