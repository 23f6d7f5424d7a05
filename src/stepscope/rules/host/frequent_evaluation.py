"""Training stops for an evaluation every few steps.

What it sees: steps in which a module was told to evaluate (`model.eval()`), or took more batches
than others for as many backward passes, and that are longer than the others.

Why it costs: an evaluation runs the model over held-out data while nothing is learnt. Its time is
in no usual step, so that neither a trace of a few steps nor their median shows it.

Evidence it needs: a run recorded by `stepscope run`, which times every step and notes calls of
`eval()`.

What to do: evaluate more seldom or on fewer batches; with larger batches and without gradients
(`torch.inference_mode()`), which fit more into memory; or in a job of its own, from checkpoints.

Example: ten batches, each four times a training batch, evaluated every 20th step, took 38 % of the
run (a small model on one core).
"""

from __future__ import annotations

from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import located, rounded_up

CODE = "frequent-evaluation"
BOUND = "host"
BEARABLE_SHARE = 0.05
"""Share of the run's time that evaluating may take: who trains wants to know."""


def propose(case: Case) -> Proposal | None:
    """No evaluation between the steps."""
    stalls = case.stalls("evaluation")
    if stalls is None:
        return None
    if stalls.step_ns < BEARABLE_SHARE * case.step_interval_ns:
        return None
    share = stalls.step_ns / (case.step_interval_ns + stalls.step_ns)
    seldom = rounded_up(stalls.once_ns / (BEARABLE_SHARE * case.step_interval_ns))
    return Proposal(
        summary=f"Evaluations take {share:.0%} of the run: {stalls.once_ns / 1e6:.1f} ms every "
        f"{stalls.every:.3g} steps.",
        action=f"Evaluate every {seldom} steps or more seldom, for {BEARABLE_SHARE:.0%} of "
        "the time at most; or on fewer batches; or in a job of its own, from checkpoints",
        evidence=(f"{stalls.num} timed steps hold one",),
        locations=located(stalls.lines),
        change=lambda graph: graph,
        rare_ns=float(stalls.step_ns),
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
