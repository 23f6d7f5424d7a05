"""The rules, in the order in which they are asked. A new one is its file and its line here; those
of other tools' recordings and of installed packages follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module

from msgspec.structs import replace

from stepscope.core.installed import with_installed
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.rules.case import Case
from stepscope.rules.comms import (
    buffer_broadcast,
    data_parallel_module,
    exchange_each_batch,
    exposed_collectives,
    fp32_exchange,
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
    bf16_matmul,
    fp32_matmul,
    misaligned_shapes,
    needless_recompute,
    tf32_off,
    untuned_convolution,
)
from stepscope.rules.data import loader_respawn, serial_loader, shallow_prefetch, starved_loader
from stepscope.rules.host import (
    allocator_churn,
    checkpoint_stall,
    debug_mode,
    device_sync,
    expert_loop,
    frequent_evaluation,
    gc_pause,
    graph_breaks,
    launch_overhead,
    looped_operators,
    looped_optimizer,
    loss_scaling,
    own_profiler,
    python_overhead,
    recompilation,
    small_batch,
    thread_oversubscription,
)
from stepscope.rules.imbalance import late_rank, throttled_gpu, uneven_work
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.memory import (
    activation_casts,
    dtype_casts,
    fragmentation,
    layout_copies,
    memory_growth,
    memory_pressure,
    nchw_layout,
    unfused_attention,
    unfused_pointwise,
    wide_logits,
    wide_optimizer_state,
)
from stepscope.rules.rule import Rule
from stepscope.rules.transfer import (
    host_offload,
    many_small_copies,
    pageable_copy,
    unoverlapped_copy,
)

OTHER_TOOLS = "stepscope.recordings.rules"
"""The module whose `rules` and `advisers` judge the recordings of other tools alone."""
OURS: tuple[Rule, ...] = (
    serial_loader.RULE,
    pageable_copy.RULE,
    starved_loader.RULE,
    loader_respawn.RULE,
    shallow_prefetch.RULE,
    many_small_copies.RULE,
    unoverlapped_copy.RULE,
    host_offload.RULE,
    memory_pressure.RULE,
    fragmentation.RULE,
    memory_growth.RULE,
    device_sync.RULE,
    expert_loop.RULE,
    launch_overhead.RULE,
    looped_operators.RULE,
    looped_optimizer.RULE,
    loss_scaling.RULE,
    small_batch.RULE,
    recompilation.RULE,
    graph_breaks.RULE,
    gc_pause.RULE,
    python_overhead.RULE,
    thread_oversubscription.RULE,
    allocator_churn.RULE,
    debug_mode.RULE,
    own_profiler.RULE,
    checkpoint_stall.RULE,
    frequent_evaluation.RULE,
    fp32_matmul.RULE,
    tf32_off.RULE,
    bf16_matmul.RULE,
    unfused_attention.RULE,
    unfused_pointwise.RULE,
    needless_recompute.RULE,
    nchw_layout.RULE,
    dtype_casts.RULE,
    activation_casts.RULE,
    layout_copies.RULE,
    wide_logits.RULE,
    wide_optimizer_state.RULE,
    misaligned_shapes.RULE,
    untuned_convolution.RULE,
    throttled_gpu.RULE,
    exposed_collectives.RULE,
    fp32_exchange.RULE,
    exchange_each_batch.RULE,
    sync_every_microbatch.RULE,
    shared_device.RULE,
    slow_link.RULE,
    late_rank.RULE,
    uneven_work.RULE,
    tiny_buckets.RULE,
    oversized_buckets.RULE,
    resharded_forward.RULE,
    unprefetched_gather.RULE,
    pipeline_bubble.RULE,
    buffer_broadcast.RULE,
    unused_parameter_scan.RULE,
    data_parallel_module.RULE,
)
_OTHER = import_module(OTHER_TOOLS)
TRACE_RULES = with_installed(OURS, "rule", lambda rule: rule.code, taken=_OTHER.CODES)
"""Ours, and those of installed packages."""
RANK_RULES = tuple(rule for rule in TRACE_RULES if rule.propose is not None)
JOB_RULES = tuple(rule for rule in TRACE_RULES if rule.propose_job is not None)

EXCLUDES: Mapping[str, frozenset[str]] = {
    rule.code: frozenset(rule.excludes)
    | {other.code for other in TRACE_RULES if rule.code in other.excludes}
    for rule in TRACE_RULES
}
"""By code, both ways."""
INCLUDES: Mapping[str, frozenset[str]] = {
    rule.code: frozenset(rule.includes) for rule in TRACE_RULES
}
OF_JOB: Mapping[str, Callable[[JobCase, JobProposal], JobProposal]] = {
    rule.code: rule.of_job for rule in TRACE_RULES if rule.of_job is not None
}
SWEEPING = frozenset(rule.code for rule in TRACE_RULES if rule.sweeping)


def rank_rules(case: Case) -> tuple[Rule, ...]:
    """Those that can judge this rank. Without a replay that are the ones that promise no gain; the
    others are about kernels, copies and launches, and need a device."""
    if case.unprofiled is None:
        rules = tuple(rule for rule in RANK_RULES if not rule.needs_replay)
        return _for(rules, has_device=case.facts.uses_device)
    return _for(RANK_RULES, has_device=not case.graph.on_host)


def job_rules(*, has_device: bool) -> tuple[Rule, ...]:
    """Those that can judge ranks together."""
    return _for(JOB_RULES, has_device=has_device)


def _for(rules: tuple[Rule, ...], *, has_device: bool) -> tuple[Rule, ...]:
    return rules if has_device else tuple(rule for rule in rules if not rule.needs_device)


@cache
def every_rule() -> tuple[Rule, ...]:
    """Ours, with what other tools' recordings show of them; those that judge such recordings alone;
    those of installed packages."""
    advice = _OTHER.advice()
    ours = tuple(
        replace(rule, advise=advice[rule.code]) if rule.code in advice else rule for rule in OURS
    )
    return (*ours, *_OTHER.rules(), *TRACE_RULES[len(OURS) :])


def advisers() -> Sequence[Callable[[Auxiliary], Sequence[Advice]]]:
    """What other tools' recordings say of the faults of several rules."""
    functions: Sequence[Callable[[Auxiliary], Sequence[Advice]]] = _OTHER.advisers()
    return functions
