"""The diagnosis of a run of which no step was recorded: what its own clock says, and how to get more."""

from __future__ import annotations

from stepscope.core.beside import Beside
from stepscope.core.diagnosis import Diagnosis, StepTime, Verdict
from stepscope.core.facts import Facts
from stepscope.core.nccl import NcclLog
from stepscope.core.run import Known, RunFacts, UnprofiledSteps
from stepscope.readers.formats import BY_NAME
from stepscope.rules.advice import advise
from stepscope.rules.comms import slow_link

LEAST_SHARE = 0.5
"""Of a step spent in the loader from which it is the bound, on a machine without a device: there the host does one thing after
the other, so the step without its wait is that much shorter. With a device it may be busy meanwhile."""


def diagnose_untraced(run: RunFacts, notes: tuple[str, ...] = (), beside: Beside | None = None) -> Diagnosis:
    """A verdict from steps timed with no profiler, where they tell one."""
    timed = [rank for rank in run.ranks if rank.steps is not None]
    rank = timed[0] if timed else None
    return Diagnosis(
        verdict=_verdict(run, rank),
        step=_step(run, rank),
        replay=None,
        ladder=(),
        findings=(),
        facts=Facts(ranks=(), run=run, given_step_ns=run.step_ns, is_step_measured=run.step_ns is not None, beside=beside),
        notes=(*notes, *run_notes(run), *(() if beside is None else beside.notes), how_to_record(run)),
        unknown_events=0,
        advice=() if beside is None else advise(beside),
    )


def _verdict(run: RunFacts, rank: Known | None) -> Verdict:
    if not run.ranks:
        words = "no optimizer step was seen in any process of the job"
        return Verdict(bound="unknown", summary=f"Nothing to judge: {words}.", shares={})
    if rank is None or rank.steps is None:
        num = max(one.num_steps for one in run.ranks) + 1
        words = f"the job ended before a step could be timed or recorded ({num} optimizer steps were seen)"
        return Verdict(bound="unknown", summary=f"Nothing to judge: {words}.", shares={})
    share = _wait_share(rank.steps)
    if share is None:
        words = "no step was recorded by the profiler, and the times in the loader do not fit into the steps"
        return Verdict(bound="unknown", summary=f"Not known: {words}.", shares={})
    shares = {"data": share}
    if share >= LEAST_SHARE and not rank.has_device:
        return Verdict(bound="data", summary=f"Input-bound: {share:.0%} of the step is waiting for input.", shares=shares)
    words = f"Not known: no step was recorded by the profiler; {share:.0%} of a step goes by in the loader"
    return Verdict(bound="unknown", summary=f"{words}.", shares=shares)


def _wait_share(steps: UnprofiledSteps) -> float | None:
    """Of a step, spent in the loader; None where the two cannot belong together. The host's clock tells the wait and the
    device's may tell the step: they agree as well as the mean step is known."""
    if steps.wait_ns is None or not 0 <= steps.wait_ns <= max(steps.step_ns, steps.high_ns):
        return None
    return min(1.0, steps.wait_ns / steps.step_ns) if steps.step_ns > 0 else None


def _step(run: RunFacts, rank: Known | None) -> StepTime:
    ms = None if run.step_ns is None else run.step_ns / 1e6
    count = 0 if rank is None or rank.steps is None else rank.steps.num
    return StepTime(count=count, ms=ms, profiled_ms=None, source="measured" if ms is not None else "trace")


def run_notes(run: RunFacts) -> tuple[str, ...]:
    """What went wrong with the capture, and with the job."""
    notes = [
        f"the capture switched itself off on rank {one.rank}, and the job went on: {one.problem}"
        for one in run.ranks
        if one.problem is not None
    ]
    if run.exit_code:
        notes.append(f"the job ended with exit code {run.exit_code}")
    return tuple(notes)


def how_to_record(run: RunFacts) -> str:
    """What to do about a run without a recording."""
    if not run.ranks:
        return (
            "steps are told by torch.optim optimizers: where the job's are others, or run inside a CUDA graph, use the API"
            " (stepscope.profile() and scope.step())"
        )
    return "to record sooner: stepscope run --start-step 3 -- ...; a job's first steps are slower than the rest"


def diagnose_beside(beside: Beside, notes: tuple[str, ...] = (), nccl: NcclLog | None = None) -> Diagnosis:
    """Recordings of other tools alone, and logs of NCCL: what they show, with no step to weigh it by unless a log told one."""
    step_ns = None if beside.training is None else beside.training.step_ns
    judged = {word for one in beside.recordings for word in BY_NAME[one.format].judges} | (set() if nccl is None else {"comms"})
    names = [
        *dict.fromkeys(one.format for one in beside.recordings),
        *([] if nccl is None else [f"a log of {nccl.library.upper()}"]),
    ]
    words = f"no trace was given, and what limits the run is not told by {', '.join(names)}"
    by_log = None if nccl is None else slow_link.advise_by_log(nccl)
    advice = (*advise(beside), *(() if by_log is None else (by_log,)))
    told = ", ".join(sorted(judged))
    codes = ", ".join(dict.fromkeys(one.code for one in advice))
    shows = f"It shows: {codes}." if codes else f"Of what it does tell ({told}), no fault was found."
    return Diagnosis(
        verdict=Verdict(bound="unknown", summary=f"Not known: {words}. {shows}", shares={}),
        step=StepTime(
            count=0 if beside.training is None else beside.training.num_steps,
            ms=None if step_ns is None else step_ns / 1e6,
            profiled_ms=None,
            source="trace" if step_ns is None else "log",
        ),
        replay=None,
        ladder=(),
        findings=(),
        facts=Facts(ranks=(), beside=beside, given_step_ns=step_ns, is_step_logged=step_ns is not None, nccl=nccl),
        notes=(
            *notes,
            *beside.notes,
            f"judged here: {told}; a trace beside it says where the step's time goes",
        ),
        unknown_events=0,
        advice=advice,
    )
