"""The door for a finding: one file has a rule's text, its thresholds and its functions, and ends
with the `Rule` that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.run import RunFacts
from stepscope.rules.case import Case
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.proposal import Proposal, Remark

Answer = Proposal | Abstention | Remark | None
Advised = Advice | Iterable[Advice] | Abstention | None


class Rule(Struct, frozen=True, kw_only=True):
    """One fault: what it is called, and whom to ask about it. A rule has one function at least."""

    code: str
    """Code of words joined by dashes, named for the fault, never the cure."""
    bound: str
    """The share of the step that it costs: data, host, transfer, comms, imbalance, compute or
    memory."""
    text: str | None
    """Documentation of the rule, which is its module's docstring: `stepscope explain` prints it."""
    propose: Callable[[Case], Answer] | None = None
    """Asked about each rank that is judged."""
    of_job: Callable[[JobCase, JobProposal], JobProposal] | None = None
    """Says what `propose` said of several ranks, in the job's own figures."""
    propose_job: Callable[[JobCase], JobProposal | None] | None = None
    """Asked once about the ranks together."""
    advise: Callable[[Auxiliary], Advised] | None = None
    """Asked once about what other tools recorded; abstains where they left out what it needs."""
    advise_by_log: Callable[[NcclLog], Advice | None] | None = None
    """Asked once about NCCL's log, where no trace was given."""
    advise_run: Callable[[RunFacts], Advice | None] | None = None
    """Asked once about the steps that a run timed, without a trace."""
    needs_device: bool = True
    """False where an installed rule can judge ranks that use no device. Ours say it in the
    registry, so that they need not be imported."""
    needs_replay: bool = True
    """Likewise: False where it has something to say of a rank whose steps cannot be replayed."""
    excludes: tuple[str, ...] = ()
    """Rules whose fixes cannot be applied with this one's."""
    includes: tuple[str, ...] = ()
    """Rules whose faults this one's fix repairs as well."""
    sweeping: bool = False
    """Whether its fix changes the whole model."""
    answers: tuple[str, ...] = ()
    """Shares of the step, beside its bound's, that its fix is for."""
