"""What a rank's case has for a rule to see, told without the rule: one whose evidence is missing
is neither imported nor asked."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.loader import WORKERS
from stepscope.analyses.steps.projection import rerun_forward_ops
from stepscope.core.trace import Kind
from stepscope.rules.case import Case
from stepscope.rules.shared.pcie_copies import TO_DEVICE
from stepscope.rules.shared.unrecorded import REASON, device_memory

COMPILED_REGION = re.compile(r"^Torch-Compiled Region")
EXPERT_SELECTION = re.compile(r"^aten::nonzero$")
SCALER = re.compile(r"^aten::_amp_(foreach_non_finite_check_and_unscale_|update_scale_)")
EMBEDDING_BACKWARD = re.compile(r"^aten::(embedding|_embedding_bag)_dense_backward$")
ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
SOFTMAX = re.compile(r"^aten::_(safe_)?softmax$")


MUCH_OF_A_STEP = 0.2
"""Share of the steps in matrix products, below which none is worth a search of minutes."""


class Missing(Struct, frozen=True, kw_only=True):
    """What a rule would have needed, where that is worth a note."""

    reason: str
    needs: str


Evidence = Callable[[Case], "bool | Missing"]


def is_replayed(case: Case) -> bool:
    return case.unprofiled is not None


def on_device(case: Case) -> bool:
    """Replayed steps that launch kernels."""
    return case.unprofiled is not None and not case.unprofiled.on_host


def on_host(case: Case) -> bool:
    """Replayed steps of a process that uses no device: its tasks are operators. Those of a rank
    tied to others are its collectives."""
    if case.unprofiled is None or not case.unprofiled.on_host:
        return False
    return case.kinds is None or not case.kinds.comms.all()


def is_of_run(case: Case) -> bool:
    """Recorded by `stepscope run`, which times steps and reads settings."""
    return is_replayed(case) and case.metadata is not None


def has_workers(case: Case) -> bool:
    """Batches that worker processes bring."""
    return is_of_run(case) or (is_replayed(case) and is_named(case, WORKERS))


def is_named(case: Case, pattern: re.Pattern[str]) -> bool:
    return bool(case.context.trace.is_named(pattern).any())


def named(pattern: re.Pattern[str], among: Callable[[Case], bool] = on_device) -> Evidence:
    """Some event has such a name."""
    return lambda case: among(case) and is_named(case, pattern)


def of_category(name: str) -> Evidence:
    """Kernels of this kind are in the steps."""
    return lambda case: on_device(case) and bool(case.table.of_category(name).any())


def multiplies_much(case: Case) -> bool:
    """Matrix products are a good part of the steps."""
    if not on_device(case):
        return False
    products = case.graph.task_ns[case.table.of_category("gemm")]
    whole_ns = case.step_interval_ns * max(case.graph.num_steps, 1)
    return float(products.sum()) >= MUCH_OF_A_STEP * whole_ns


def copies_to_device(case: Case) -> bool:
    return (
        on_device(case)
        and is_named(case, TO_DEVICE)
        and bool(case.context.trace.is_kind(Kind.MEMCPY).any())
    )


def multiplies_off_tensor_cores(case: Case) -> bool:
    """Products of fp32 numbers, or on the vector units."""
    if not on_device(case):
        return False
    table = case.table
    in_fp32 = np.array([precision == "fp32" for precision in table.precision], np.bool_)
    products = table.of_category("gemm", "convolution", "attention")
    return bool((products & ((table.tensor_core == 0) | in_fp32)).any())


def attends(case: Case) -> bool:
    """A softmax, which attention has; without shapes, its kernels."""
    if not on_device(case):
        return False
    if case.context.trace.meta.has_shapes:
        return is_named(case, SOFTMAX)
    return bool(case.table.of_category("softmax").any())


def calls_driver_for_memory(case: Case) -> bool:
    return on_device(case) and bool(case.facts.host.allocator)


def compiles(case: Case) -> bool:
    return is_replayed(case) and bool(case.facts.host.compile)


def recomputes(case: Case) -> bool:
    if on_host(case):
        return bool(rerun_forward_ops(case.context.trace, case.context.links).any())
    return on_device(case) and bool(case.table.recomputed.any())


def saves(case: Case) -> bool:
    """Files are written or read in the steps, or between timed ones."""
    return is_replayed(case) and (
        bool(case.graph.call_parts["io"].any()) or case.stalls("save") is not None
    )


def has_eight_bits(case: Case) -> bool:
    """The device multiplies in fp8."""
    roofs = case.context.roofs
    return on_device(case) and roofs is not None and "fp8" in roofs.spec.peak_flops


def allocator_events(case: Case) -> bool | Missing:
    """What the allocator had and gave; of a rank whose steps cannot be replayed, too."""
    uses_device = case.facts.uses_device if case.unprofiled is None else on_device(case)
    if not uses_device:
        return False
    if device_memory(case) is None:
        return Missing(reason=REASON, needs=case.recorder.with_memory)
    return True
