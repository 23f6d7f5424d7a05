"""The rules, in the order in which they are asked. A new one is its file and its line here; those
of other tools' recordings and of installed packages follow. A rule is imported where the evidence
that its line names is there, or where all rules are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from msgspec.structs import replace

from stepscope.core.diagnosis import Abstention
from stepscope.core.installed import installed
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.rules.case import Case
from stepscope.rules.evidence import (
    COMPILED_REGION,
    EMBEDDING_BACKWARD,
    EXPERT_SELECTION,
    SCALER,
    ZERO_GRAD,
    Evidence,
    Missing,
    allocator_events,
    attends,
    calls_driver_for_memory,
    compiles,
    copies_to_device,
    has_eight_bits,
    has_workers,
    is_of_run,
    is_replayed,
    multiplies_much,
    multiplies_off_tensor_cores,
    named,
    of_category,
    on_device,
    on_host,
    recomputes,
    saves,
)
from stepscope.rules.rule import Rule
from stepscope.rules.shared.pcie_copies import PAGEABLE_TO_DEVICE, TO_HOST

OTHER_TOOLS = "stepscope.recordings.rules"
"""The module whose `rules` and `advisers` judge the recordings of other tools alone."""


class Entry(NamedTuple):
    """A rule of ours: where it is, and what it is asked about."""

    module: str
    """Module below `stepscope.rules`; the rule's code is the file's name."""
    evidence: Evidence | None = on_device
    """What a rank's case must have; None where it is not asked about single ranks."""
    of_job: bool = False
    """Whether it is asked about ranks that exchange data together."""
    on_host: bool = False
    """About such ranks without a device, too."""

    @property
    def code(self) -> str:
        return self.module.rpartition(".")[2].replace("_", "-")

    @property
    def rule(self) -> Rule:
        rule = import_module(f"stepscope.rules.{self.module}").RULE
        assert isinstance(rule, Rule), self.module
        return rule


OURS = (
    Entry("data.serial_loader", is_replayed),
    Entry("transfer.pageable_copy", named(PAGEABLE_TO_DEVICE)),
    Entry("data.starved_loader", has_workers),
    Entry("data.loader_respawn", has_workers),
    Entry("data.shallow_prefetch", has_workers),
    Entry("transfer.many_small_copies", copies_to_device),
    Entry("transfer.unoverlapped_copy", copies_to_device),
    Entry("transfer.host_offload", named(TO_HOST)),
    Entry("memory.memory_pressure", allocator_events),
    Entry("memory.fragmentation", allocator_events),
    Entry("memory.memory_growth", allocator_events),
    Entry("host.device_sync"),
    Entry("host.expert_loop", named(EXPERT_SELECTION)),
    Entry("host.launch_overhead"),
    Entry("host.logged_tensors", on_host),
    Entry("host.copied_weights", on_host),
    Entry("host.looped_operators", on_host),
    Entry("host.looped_optimizer"),
    Entry("host.loss_scaling", named(SCALER)),
    Entry("host.zeroed_gradients", named(ZERO_GRAD, is_replayed)),
    Entry("host.small_batch"),
    Entry("host.recompilation", compiles),
    Entry("host.graph_breaks", named(COMPILED_REGION, is_replayed)),
    Entry("host.gc_pause", is_replayed),
    Entry("host.python_overhead", is_replayed),
    Entry("host.thread_oversubscription", is_replayed),
    Entry("host.allocator_churn", calls_driver_for_memory),
    Entry("host.debug_mode", is_replayed),
    Entry("host.own_profiler", None),
    Entry("host.checkpoint_stall", saves),
    Entry("host.frequent_evaluation", is_of_run),
    Entry("compute.fp32_matmul", multiplies_off_tensor_cores),
    Entry("compute.tf32_off", multiplies_off_tensor_cores),
    Entry("compute.double_precision", on_host),
    Entry("compute.bf16_matmul", has_eight_bits),
    Entry("memory.unfused_attention", attends),
    Entry("memory.unfused_pointwise"),
    Entry("compute.needless_recompute", recomputes),
    Entry("memory.nchw_layout"),
    Entry("memory.dtype_casts"),
    Entry("memory.activation_casts"),
    Entry("memory.layout_copies"),
    Entry("memory.wide_logits"),
    Entry("memory.dense_embedding_gradient", named(EMBEDDING_BACKWARD, is_replayed)),
    Entry("memory.wide_optimizer_state"),
    Entry("compute.misaligned_shapes"),
    Entry("compute.untuned_convolution", of_category("convolution")),
    Entry("compute.untuned_matmul", multiplies_much),
    Entry("imbalance.throttled_gpu", is_of_run, of_job=True),
    Entry("comms.exposed_collectives", None, of_job=True),
    Entry("comms.fp32_exchange", None, of_job=True),
    Entry("comms.exchange_each_batch", None, of_job=True, on_host=True),
    Entry("comms.sync_every_microbatch", None, of_job=True, on_host=True),
    Entry("comms.waited_metrics", None, of_job=True, on_host=True),
    Entry("comms.shared_device", None),
    Entry("comms.slow_link", None, of_job=True),
    Entry("imbalance.late_rank", None, of_job=True, on_host=True),
    Entry("imbalance.uneven_work", None, of_job=True, on_host=True),
    Entry("comms.tiny_buckets", None, of_job=True, on_host=True),
    Entry("comms.oversized_buckets", None, of_job=True),
    Entry("comms.resharded_forward", None, of_job=True),
    Entry("comms.unprefetched_gather", None, of_job=True),
    Entry("comms.pipeline_bubble", None, of_job=True),
    Entry("comms.buffer_broadcast", None, of_job=True),
    Entry("comms.unused_parameter_scan", None, of_job=True),
    Entry("comms.data_parallel_module", None, of_job=True),
)
_BY_CODE = {entry.code: entry for entry in OURS}


@cache
def installed_rules() -> tuple[Rule, ...]:
    """Rules of installed packages."""
    return installed("rule", Rule, lambda rule: rule.code, taken=_own_codes())


def _own_codes() -> Iterator[str]:
    yield from _BY_CODE
    yield from _other_tools().CODES


def _other_tools() -> Any:
    return import_module(OTHER_TOOLS)


def rule_of(code: str) -> Rule | None:
    """The rule of ours or of an installed package that is called so."""
    if code in _BY_CODE:
        return _BY_CODE[code].rule
    return next((rule for rule in installed_rules() if rule.code == code), None)


def excludes(code: str, other: str) -> bool:
    """Whether the fixes of two findings cannot be applied together, by either one's word."""
    rules = ((rule_of(code), other), (rule_of(other), code))
    return any(rule is not None and excluded in rule.excludes for rule, excluded in rules)


def rank_rules(case: Case) -> Iterator[Rule | Abstention]:
    """Rules whose evidence this rank has; what a rule abstains from without it."""
    for entry in OURS:
        found = False if entry.evidence is None else entry.evidence(case)
        if isinstance(found, Missing):
            yield Abstention(code=entry.code, reason=found.reason, needs=found.needs)
        elif found:
            yield entry.rule
    is_replayed = case.unprofiled is not None
    has_device = not case.graph.on_host if is_replayed else case.facts.uses_device
    for rule in installed_rules():
        is_met = (is_replayed or not rule.needs_replay) and (has_device or not rule.needs_device)
        if rule.propose is not None and is_met:
            yield rule


def job_rules(*, has_device: bool) -> Iterator[Rule]:
    """Rules that judge ranks together."""
    yield from (entry.rule for entry in OURS if entry.of_job and (has_device or entry.on_host))
    for rule in installed_rules():
        if rule.propose_job is not None and (has_device or not rule.needs_device):
            yield rule


@cache
def every_rule() -> tuple[Rule, ...]:
    """Ours, with what other tools' recordings show of them; those that judge such recordings alone;
    those of installed packages."""
    advice = _other_tools().advice()
    ours = tuple(
        replace(entry.rule, advise=advice[entry.code]) if entry.code in advice else entry.rule
        for entry in OURS
    )
    return (*ours, *_other_tools().rules(), *installed_rules())


def advisers() -> Sequence[Callable[[Auxiliary], Sequence[Advice]]]:
    """What other tools' recordings say of the faults of several rules."""
    functions: Sequence[Callable[[Auxiliary], Sequence[Advice]]] = _other_tools().advisers()
    return functions
