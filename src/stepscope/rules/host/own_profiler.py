"""The job's own profiler is on while it trains.

What it sees: recordings of `stepscope run` that could not begin, or were given up, because a
profiler of the job's own was attached.

Why it costs: `torch.profiler.profile` notes each operator, and more with shapes, stacks or memory:
steps of many small operators take twice as long. Left on over the whole run it also keeps every
event in memory, and writes them all at the end.

Evidence it needs: a run recorded by `stepscope run`. Its own recording waits for the job's profiler
to end; where that never does, there is none.

What to do: take `with torch.profiler.profile(...)`, `torch.autograd.profiler.profile()` or
`emit_nvtx()` out of the training loop, or give it a schedule:
`torch.profiler.schedule(wait=100, warmup=1, active=3, repeat=1)`. With Lightning `profiler=None`.

Example: (for illustration, not measured) `with profile() as prof:` around a whole epoch.
"""

from __future__ import annotations

from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.run import RunFacts
from stepscope.rules.rule import Rule

CODE = "own-profiler"
BOUND = "host"


def advise_run(run: RunFacts) -> Advice | None:
    """Where it kept every recording of some rank from being made."""
    if not run.is_kept_off:
        return None
    ranks = [rank for rank in run.ranks if rank.num_kept_off]
    num = max(rank.num_kept_off for rank in ranks)
    return Advice(
        code=CODE,
        bound=BOUND,
        summary="A profiler of the job's own is on while it trains: the steps are slower for it, "
        "and nothing else can record them.",
        action="remove `with profile(...)` (torch.profiler, torch.autograd.profiler, emit_nvtx), "
        "or give it schedule(wait=100, warmup=1, active=3, repeat=1); then stepscope run again",
        evidence=(f"it was attached each time a recording was to begin: {num}",),
        ranks=tuple(rank.rank for rank in ranks) if len(ranks) < len(run.ranks) else (),
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise_run=advise_run, needs_device=False)
