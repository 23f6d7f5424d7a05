"""The rules, by name, and judging a case by all of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from stepscope.core.diagnosis import Finding
from stepscope.rules import (
    allocator_churn,
    checkpoint_stall,
    debug_mode,
    device_sync,
    dtype_casts,
    fp32_matmul,
    fragmentation,
    gc_pause,
    graph_breaks,
    host_offload,
    launch_overhead,
    loader_respawn,
    looped_optimizer,
    many_small_copies,
    memory_growth,
    memory_pressure,
    misaligned_shapes,
    nchw_layout,
    needless_recompute,
    pageable_copy,
    python_overhead,
    recompilation,
    serial_loader,
    shallow_prefetch,
    small_batch,
    starved_loader,
    thread_oversubscription,
    throttled_gpu,
    unfused_attention,
    unfused_pointwise,
    unoverlapped_copy,
    untuned_convolution,
    wide_logits,
)
from stepscope.rules.case import Case
from stepscope.rules.proposal import Abstention, Proposal, Remark, finding_of, ladder

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
    fp32_matmul,
    unfused_attention,
    unfused_pointwise,
    needless_recompute,
    nchw_layout,
    dtype_casts,
    wide_logits,
    misaligned_shapes,
    untuned_convolution,
    throttled_gpu,
)

ON_HOST = (
    serial_loader,
    starved_loader,
    loader_respawn,
    shallow_prefetch,
    recompilation,
    graph_breaks,
    gc_pause,
    python_overhead,
    thread_oversubscription,
    debug_mode,
    checkpoint_stall,
    memory_growth,
)
"""Those that can judge a run without a device: the others are about kernels, copies and launches."""

LEAST_SPEEDUP = 1.02
"""Findings that give less are left out unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the rules have to say about one rank."""

    findings: tuple[Finding, ...] = ()
    """Largest gain first, all of them."""
    ladder: tuple[float, ...] = ()
    """The speedup of the first mend worth naming, of the first two at once, and so on to all of them."""
    abstentions: tuple[Abstention, ...] = ()
    remarks: tuple[Remark, ...] = ()
    lacks_stacks: bool = False
    """Stacks would name the lines of what is worth mending, and none were recorded."""


def judge(case: Case) -> Judgement:
    """Ask every rule; the replay says what each mend gives. Without one, only the rules that promise no gain are asked."""
    asked = RULES if case.graph is None or not case.graph.on_host else ON_HOST
    asked = asked if case.graph is not None else tuple(rule for rule in RULES if not getattr(rule, "NEEDS_REPLAY", True))
    said = [rule.propose(case) for rule in asked]
    proposals = [word for word in said if isinstance(word, Proposal)]
    paired = sorted(((finding_of(case, p), p) for p in proposals), key=lambda pair: -pair[0].predicted_speedup)
    worth = [proposal for finding, proposal in paired if finding.predicted_speedup >= LEAST_SPEEDUP]
    return Judgement(
        findings=tuple(finding for finding, _ in paired),
        ladder=ladder(case, worth),
        abstentions=tuple(word for word in said if isinstance(word, Abstention)),
        remarks=tuple(word for word in said if isinstance(word, Remark)),
        lacks_stacks=any(proposal.events is not None for proposal in worth) and case.stacks is None,
    )
