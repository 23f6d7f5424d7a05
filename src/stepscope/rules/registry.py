"""The rules: one module each, asked for what it has a function for.

- `propose(case)`: about one rank, asked once for each rank that is judged;
- `propose_job(job)`: about the ranks together, asked once a job;
- `advise(auxiliary)`: about what other tools recorded, asked once a job.

`NEEDS_DEVICE = False` in a module says that it can judge ranks that use no device, `NEEDS_REPLAY =
False` that it has something to say of a rank whose steps cannot be replayed, `EXCLUDES` which
rules' fixes cannot be applied with its own, `INCLUDES` which rules' faults its own repairs as well,
`SWEEPING = True` that its fix changes the whole model, `ANSWERS` which shares of the step beside
its `BOUND` its fix is for. A new rule is its module and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from stepscope.rules.case import Case
from stepscope.rules.comms import (
    buffer_broadcast,
    data_parallel_module,
    exchange_each_batch,
    exposed_collectives,
    fp32_exchange,
    hung_collective,
    link_errors,
    network_congestion,
    oversized_buckets,
    pipeline_bubble,
    resharded_forward,
    shared_device,
    slow_link,
    sync_every_microbatch,
    tiny_buckets,
    unprefetched_gather,
    unused_parameter_scan,
)
from stepscope.rules.compute import (
    barrier_stalls,
    bf16_matmul,
    fp32_matmul,
    low_occupancy,
    misaligned_shapes,
    needless_recompute,
    register_pressure,
    tail_wave,
    tf32_off,
    underloaded_gpu,
    untuned_convolution,
)
from stepscope.rules.data import (
    loader_respawn,
    page_cache_misses,
    serial_loader,
    shallow_prefetch,
    starved_loader,
)
from stepscope.rules.host import (
    allocator_churn,
    checkpoint_stall,
    debug_mode,
    device_sync,
    expert_loop,
    frequent_evaluation,
    gc_pause,
    gil_contention,
    graph_breaks,
    launch_overhead,
    looped_optimizer,
    one_busy_core,
    python_overhead,
    recompilation,
    small_batch,
    thread_oversubscription,
)
from stepscope.rules.imbalance import late_rank, throttled_gpu, uneven_work
from stepscope.rules.memory import (
    activation_casts,
    dtype_casts,
    fragmentation,
    layout_copies,
    low_l2_hits,
    memory_growth,
    memory_pressure,
    memory_stalls,
    nchw_layout,
    uncoalesced_access,
    unfused_attention,
    unfused_pointwise,
    wide_logits,
    wide_optimizer_state,
)
from stepscope.rules.transfer import (
    host_offload,
    many_small_copies,
    pageable_copy,
    unoverlapped_copy,
)

RULES: tuple[ModuleType, ...] = (
    serial_loader,
    pageable_copy,
    starved_loader,
    loader_respawn,
    shallow_prefetch,
    many_small_copies,
    unoverlapped_copy,
    host_offload,
    memory_pressure,
    fragmentation,
    memory_growth,
    device_sync,
    expert_loop,
    launch_overhead,
    looped_optimizer,
    small_batch,
    recompilation,
    graph_breaks,
    gc_pause,
    python_overhead,
    thread_oversubscription,
    allocator_churn,
    debug_mode,
    checkpoint_stall,
    frequent_evaluation,
    fp32_matmul,
    tf32_off,
    bf16_matmul,
    unfused_attention,
    unfused_pointwise,
    needless_recompute,
    nchw_layout,
    dtype_casts,
    activation_casts,
    layout_copies,
    wide_logits,
    wide_optimizer_state,
    misaligned_shapes,
    untuned_convolution,
    throttled_gpu,
    exposed_collectives,
    fp32_exchange,
    exchange_each_batch,
    sync_every_microbatch,
    slow_link,
    late_rank,
    uneven_work,
    tiny_buckets,
    oversized_buckets,
    resharded_forward,
    unprefetched_gather,
    pipeline_bubble,
    buffer_broadcast,
    unused_parameter_scan,
    data_parallel_module,
    barrier_stalls,
    gil_contention,
    low_l2_hits,
    low_occupancy,
    memory_stalls,
    one_busy_core,
    page_cache_misses,
    register_pressure,
    shared_device,
    hung_collective,
    link_errors,
    network_congestion,
    tail_wave,
    uncoalesced_access,
    underloaded_gpu,
)
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
SWEEPING = frozenset(rule.CODE for rule in RULES if getattr(rule, "SWEEPING", False))


def rank_rules(case: Case) -> tuple[ModuleType, ...]:
    """Those that can judge this rank. Without a replay that are the ones that promise no gain; the
    others are about kernels, copies and launches, and need a device."""
    if case.graph is None:
        return tuple(rule for rule in RANK_RULES if not getattr(rule, "NEEDS_REPLAY", True))
    return _for(RANK_RULES, has_device=not case.graph.on_host)


def job_rules(*, has_device: bool) -> tuple[ModuleType, ...]:
    """Those that can judge ranks together."""
    return _for(JOB_RULES, has_device=has_device)


def _for(rules: tuple[ModuleType, ...], *, has_device: bool) -> tuple[ModuleType, ...]:
    if has_device:
        return rules
    return tuple(rule for rule in rules if not getattr(rule, "NEEDS_DEVICE", True))
