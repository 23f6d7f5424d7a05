"""The loss is scaled for fp16 on a device that has bf16.

What it sees: a GradScaler's checks of the gradients (`_amp_foreach_non_finite_check_and_unscale_`)
on a device with bf16 on its tensor cores.

Why it costs: fp16 has five bits of exponent, so gradients underflow: the scaler multiplies the
loss, divides every gradient again, looks for infinities, and asks the device for the answer before
it steps. That wait empties the queue once a step, and steps that overflow are thrown away. bf16 has
the range of fp32 and needs none of it.

Evidence it needs: operators, and the device's compute capability (8.0 or newer; every AMD Instinct
since the MI200).

What to do: `torch.autocast("cuda", dtype=torch.bfloat16)` and no GradScaler; with the Trainer
`bf16=True` in place of `fp16=True`, with Lightning `precision="bf16-mixed"`. It changes the
numbers: bf16 has three bits less of mantissa.

Example: (for illustration, not measured) a scaler's step waited 2 of 40 ms for the device.
"""

from __future__ import annotations

import re

from stepscope.analyses.intervals import union
from stepscope.core.trace import Kind
from stepscope.rules.case import Case
from stepscope.rules.evidence import SCALER
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import (
    calls_inside,
    named_events,
    tasks_of,
    without_ranges,
)

CODE = "loss-scaling"
BOUND = "host"
READ_WITHIN_NS = 1_000_000
"""How soon after its checks a scaler reads their answer: it does so at once, and the read
begins before anything else of the step."""
READ = re.compile(r"^aten::(item|_local_scalar_dense)$")


def propose(case: Case) -> Proposal | None:
    """The checks, and the read of their answer, gone."""
    roofs, trace = case.context.roofs, case.context.trace
    if roofs is None or "bf16" not in roofs.spec.peak_flops:
        return None
    checks = named_events(case, SCALER, Kind.OP)
    if len(checks) == 0:
        return None
    reads = named_events(case, READ, Kind.OP)
    ends = trace.end_ns[checks]
    answers = [
        int(read)
        for read in reads
        if any(0 <= int(trace.start_ns[read]) - int(end) <= READ_WITHIN_NS for end in ends)
    ]
    gone = [*checks.tolist(), *answers]
    ranges = union(trace.start_ns[gone], trace.end_ns[gone])
    tasks = tasks_of(case.graph, calls_inside(case.graph, ranges))
    steps = max(case.graph.num_steps, 1)
    return Proposal(
        summary=f"The loss is scaled for fp16 on a device that has bf16: {len(checks) / steps:.3g} "
        "checks of all gradients a step, and a wait for their answer.",
        action='torch.autocast("cuda", dtype=torch.bfloat16) and no GradScaler (Trainer: '
        'bf16=True; Lightning: precision="bf16-mixed")',
        evidence=(
            f"{len(answers) / steps:.3g} reads of the answer a step, each after a check",
            f"the device's bf16 peak is {roofs.spec.peak_flops['bf16'].value / 1e12:.0f} TFLOP/s",
        ),
        events=case.graph.task_event[tasks],
        changes_numerics=True,
        change=lambda before: without_ranges(case, before, ranges),
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
