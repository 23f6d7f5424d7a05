"""The job ended with an error, and its output says which.

What it sees: lines of PyTorch, NCCL, the driver or the system in a job's output: a check that
failed on the device, an illegal memory access, an error of NCCL's, an Xid, a process that was
killed or crashed.

Why it costs: a job that failed trains nothing. Errors of the device are reported late: the line
that the traceback names is often not the one that failed.

Evidence it needs: the job's own output, of all ranks (`torchrun --tee 3`): the first rank that
failed says why, the others that a peer is gone.

What to do: what the advice on the line says. `CUDA_LAUNCH_BLOCKING=1` makes the traceback name the
right line, at the cost of speed: for one run.

Example: `Assertion srcIndex < srcSelectDimSize failed`: a token's id beyond the embedding's rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.recordings.job_log.advice import BOUNDS, FAILED_JOB, warned

CODE = FAILED_JOB


def advise(auxiliary: Auxiliary) -> Iterator[Advice]:
    """One for each kind of error."""
    outputs = () if auxiliary.training is None else auxiliary.training.outputs
    return warned(outputs, {CODE})


RULE = Rule(code=CODE, bound=BOUNDS[CODE], text=__doc__, advise=advise)
