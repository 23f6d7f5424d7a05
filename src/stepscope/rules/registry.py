"""The rules: one module each, asked for what it has a function for.

- `propose(case)`: about one rank, asked once for each rank that is judged;
- `of_job(job, proposal)`: what `propose` said of several ranks, in the job's own figures;
- `propose_job(job)`: about the ranks together, asked once a job;
- `advise(auxiliary)`: about what other tools recorded, asked once a job.

`NEEDS_DEVICE = False` in a module says that it can judge ranks that use no device, `NEEDS_REPLAY =
False` that it has something to say of a rank whose steps cannot be replayed, `EXCLUDES` which
rules' fixes cannot be applied with its own, `INCLUDES` which rules' faults its own repairs as well,
`SWEEPING = True` that its fix changes the whole model, `ANSWERS` which shares of the step beside
its `BOUND` its fix is for. A new rule is its module and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from stepscope.rules.case import Case

NAMES = (
    "data.serial_loader",
    "transfer.pageable_copy",
    "data.starved_loader",
    "data.loader_respawn",
    "data.shallow_prefetch",
    "transfer.many_small_copies",
    "transfer.unoverlapped_copy",
    "transfer.host_offload",
    "memory.memory_pressure",
    "memory.fragmentation",
    "memory.memory_growth",
    "host.device_sync",
    "host.expert_loop",
    "host.launch_overhead",
    "host.looped_optimizer",
    "host.small_batch",
    "host.recompilation",
    "host.graph_breaks",
    "host.gc_pause",
    "host.python_overhead",
    "host.thread_oversubscription",
    "host.allocator_churn",
    "host.debug_mode",
    "host.checkpoint_stall",
    "host.frequent_evaluation",
    "compute.fp32_matmul",
    "compute.tf32_off",
    "compute.bf16_matmul",
    "memory.unfused_attention",
    "memory.unfused_pointwise",
    "compute.needless_recompute",
    "memory.nchw_layout",
    "memory.dtype_casts",
    "memory.activation_casts",
    "memory.layout_copies",
    "memory.wide_logits",
    "memory.wide_optimizer_state",
    "compute.misaligned_shapes",
    "compute.untuned_convolution",
    "imbalance.throttled_gpu",
    "comms.exposed_collectives",
    "comms.fp32_exchange",
    "comms.exchange_each_batch",
    "comms.sync_every_microbatch",
    "comms.slow_link",
    "imbalance.late_rank",
    "imbalance.uneven_work",
    "comms.tiny_buckets",
    "comms.oversized_buckets",
    "comms.resharded_forward",
    "comms.unprefetched_gather",
    "comms.pipeline_bubble",
    "comms.buffer_broadcast",
    "comms.unused_parameter_scan",
    "comms.data_parallel_module",
    "compute.barrier_stalls",
    "host.gil_contention",
    "memory.low_l2_hits",
    "compute.low_occupancy",
    "memory.memory_stalls",
    "host.one_busy_core",
    "data.page_cache_misses",
    "compute.register_pressure",
    "comms.shared_device",
    "comms.hung_collective",
    "comms.link_errors",
    "comms.network_congestion",
    "compute.tail_wave",
    "memory.uncoalesced_access",
    "compute.underloaded_gpu",
)
RULES: tuple[ModuleType, ...] = tuple(import_module(f"stepscope.rules.{name}") for name in NAMES)
RANK_RULES = tuple(rule for rule in RULES if hasattr(rule, "propose"))
JOB_RULES = tuple(rule for rule in RULES if hasattr(rule, "propose_job"))
AUXILIARY_RULES = tuple(rule for rule in RULES if hasattr(rule, "advise"))
RUN_RULES = tuple(rule for rule in RULES if hasattr(rule, "advise_run"))

EXCLUDES: Mapping[str, frozenset[str]] = {
    rule.CODE: frozenset(getattr(rule, "EXCLUDES", ()))
    | {other.CODE for other in RULES if rule.CODE in getattr(other, "EXCLUDES", ())}
    for rule in RULES
}
"""By code, both ways."""
INCLUDES: Mapping[str, frozenset[str]] = {
    rule.CODE: frozenset(getattr(rule, "INCLUDES", ())) for rule in RULES
}
OF_JOB: Mapping[str, Callable[..., Any]] = {
    rule.CODE: rule.of_job for rule in RULES if hasattr(rule, "of_job")
}
SWEEPING = frozenset(rule.CODE for rule in RULES if getattr(rule, "SWEEPING", False))


def rank_rules(case: Case) -> tuple[ModuleType, ...]:
    """Those that can judge this rank. Without a replay that are the ones that promise no gain; the
    others are about kernels, copies and launches, and need a device."""
    if case.unprofiled is None:
        rules = tuple(rule for rule in RANK_RULES if not getattr(rule, "NEEDS_REPLAY", True))
        return _for(rules, has_device=case.facts.uses_device)
    return _for(RANK_RULES, has_device=not case.graph.on_host)


def job_rules(*, has_device: bool) -> tuple[ModuleType, ...]:
    """Those that can judge ranks together."""
    return _for(JOB_RULES, has_device=has_device)


def _for(rules: tuple[ModuleType, ...], *, has_device: bool) -> tuple[ModuleType, ...]:
    if has_device:
        return rules
    return tuple(rule for rule in rules if not getattr(rule, "NEEDS_DEVICE", True))
