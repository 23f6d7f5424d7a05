"""The diagnosis of a run without a recorded step: by its own clock, and how to get more."""

from __future__ import annotations

from signal import Signals

from stepscope.analyses.memory.ways_out import out_of_memory
from stepscope.analyses.peak_waterfall import log_waterfall
from stepscope.core.diagnosis import Diagnosis, StepTime, Verdict
from stepscope.core.facts import Facts
from stepscope.core.peak import GivenWork, PeakWaterfall
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.recordings.training_log import TrainingLog
from stepscope.core.run import RankMetadata, RunFacts, UnprofiledSteps, WholeRun
from stepscope.hardware.link_tests import judge_test, reached_words
from stepscope.readers.formats import BY_NAME
from stepscope.rules.accuracy import POLICY, is_crowded
from stepscope.rules.advice import abstentions, advise, advise_run
from stepscope.rules.imbalance.late_rank import late_by_own_time
from stepscope.rules.imbalance.uneven_work import unjudged
from stepscope.rules.registry import every_rule

MAX_TESTS = 3

MIN_SHARE = 0.5
"""Share of a step spent in the loader from which it is the bound, on a machine without a device:
there the host does one thing after the other, so the step without its wait is that much shorter.
With a device it may be busy meanwhile."""

SIGNAL_CODE = 128
"""A shell's exit code for a job that a signal ended is so much more than the signal's number."""


def diagnose_without_trace(
    run: RunFacts,
    notes: tuple[str, ...] = (),
    auxiliary: Auxiliary | None = None,
    whole_run: WholeRun | None = None,
) -> Diagnosis:
    """A verdict from steps timed with no profiler, where they are enough for one."""
    rank = next((rank for rank in run.ranks if rank.steps is not None), None)
    return Diagnosis(
        verdict=timed_verdict(run) if auxiliary is None else hung(auxiliary, timed_verdict(run)),
        step=_step(run, rank),
        replay=None,
        ladder=(),
        findings=(),
        facts=Facts(
            ranks=(),
            run=run,
            given_step_ns=run.step_ns,
            is_step_measured=run.step_ns is not None,
            whole_run=whole_run,
            auxiliary=auxiliary,
            out_of_memory=out_of_memory(run, auxiliary),
        ),
        notes=(
            *notes,
            *run_notes(run),
            *(() if auxiliary is None else auxiliary.notes),
            how_to_record(run),
        ),
        unknown_events=0,
        advice=(*advise_run(run), *(() if auxiliary is None else advise(auxiliary))),
    )


def hung(auxiliary: Auxiliary, otherwise: Verdict) -> Verdict:
    """A job that stands still is told so first: no step of it is to be shortened."""
    if auxiliary.hang is None:
        return otherwise
    return Verdict(bound="unknown", summary=auxiliary.hang.summary, shares={})


def timed_verdict(run: RunFacts) -> Verdict:
    """What limits the run, by its own clocks alone."""
    return _verdict(run, next((rank for rank in run.ranks if rank.steps is not None), None))


def _cause(run: RunFacts) -> str:
    """Why nothing was recorded, where that is known; it comes before what followed from it."""
    if run.exit_code:
        return f"{_end_of(run.exit_code)}: "
    problem = next((rank.problem for rank in run.ranks if rank.problem is not None), None)
    return "" if problem is None else f"stepscope's recording stopped ({problem}): "


def _end_of(exit_code: int) -> str:
    """A signal is sent from outside, as at a time limit: the job's output does not tell of it."""
    try:
        name = Signals(exit_code - SIGNAL_CODE).name
    except ValueError:
        return f"the job itself failed (exit code {exit_code}: see its own output)"
    return f"the job was ended by {name} (exit code {exit_code})"


def _verdict(run: RunFacts, rank: RankMetadata | None) -> Verdict:
    if not run.ranks:
        words = f"{_cause(run)}no optimizer step was seen in any process of the job"
        return Verdict(bound="unknown", summary=f"Nothing to judge: {words}.", shares={})
    if rank is None or rank.steps is None:
        num = max(metadata.num_steps for metadata in run.ranks) + 1
        ended = "it" if run.exit_code else "the job"
        words = (
            f"{_cause(run)}{ended} ended before a step could be timed or recorded ({num} "
            "optimizer steps were seen)"
        )
        return Verdict(bound="unknown", summary=f"Nothing to judge: {words}.", shares={})
    late = late_by_own_time(run)
    if late is not None:
        return _held_up(run, *late)
    share = _wait_share(rank.steps)
    if share is None:
        words = (
            "no step was recorded by the profiler, and the times in the loader do not fit into "
            "the steps"
        )
        return Verdict(bound="unknown", summary=f"Not known: {words}.", shares={})
    shares = {"data": share}
    if share >= MIN_SHARE and not rank.has_device:
        return Verdict(
            bound="data",
            summary=f"Input-bound: {share:.0%} of the step is waiting for input.",
            shares=shares,
        )
    words = f"Not known: {_cause(run)}no step was recorded by the profiler"
    if rank.steps.num_batches or share:
        words += f"; {share:.0%} of a step goes by in the loader"
    return Verdict(bound="unknown", summary=f"{words}.", shares=shares)


def _held_up(run: RunFacts, rank: int, usual_ns: float) -> Verdict:
    """Verdict where ranks are known to wait for one of them."""
    own = run.by_rank[rank].own
    assert own is not None
    share = min(max(own.own_ns - usual_ns, 0.0) / max(own.own_ns, 1), 1.0)
    waited = f"at least {share:.0%} of the step is waiting for rank {rank}"
    shares = {"imbalance": share}
    if share < MIN_SHARE:
        summary = f"Not known: no step was recorded by the profiler; {waited}."
        return Verdict(bound="unknown", summary=summary, shares=shares)
    summary = f"Bound by imbalance: {waited}, which holds the others up."
    return Verdict(bound="imbalance", summary=summary, shares=shares)


def _wait_share(steps: UnprofiledSteps) -> float | None:
    """Share of a step spent in the loader; None where the two cannot belong together. The wait is
    by the host's clock and the step may be by the device's: they agree as well as the mean step is
    known."""
    if steps.wait_ns is None or not 0 <= steps.wait_ns <= max(steps.step_ns, steps.high_ns):
        return None
    return min(1.0, steps.wait_ns / steps.step_ns) if steps.step_ns > 0 else None


def _step(run: RunFacts, rank: RankMetadata | None) -> StepTime:
    ms = None if run.step_ns is None else run.step_ns / 1e6
    count = 0 if rank is None or rank.steps is None else rank.steps.num
    return StepTime(
        count=count, ms=ms, profiled_ms=None, source="measured" if ms is not None else "trace"
    )


def run_notes(run: RunFacts) -> tuple[str, ...]:
    """What went wrong with the capture, and with the job."""
    notes = [
        f"the capture switched itself off on rank {rank.rank}, and the job went on: {rank.problem}"
        for rank in run.ranks
        if rank.problem is not None
    ]
    notes += [note for note in (busy_note(run), unjudged(run)) if note is not None]
    if run.exit_code:
        notes.append(f"the job ended with exit code {run.exit_code}")
    return tuple(notes)


def busy_note(run: RunFacts) -> str | None:
    """Note that others were in the way of the run; None where they were not, or that is not
    known."""
    rank = run.most_held_up
    share = None if rank is None else rank.held_up_share
    if rank is None or share is None or share < POLICY.least_held_up:
        return None
    who = f"rank {rank.rank}'s main thread" if len(run.ranks) > 1 else "the main thread"
    words = (
        f"the machine was busy: {who} was ready to run and had no core for {share:.0%} of the time"
    )
    if rank.held_back_share is not None and rank.held_back_share >= POLICY.least_held_up:
        words += f", {rank.held_back_share:.0%} for the container's quota"
    if rank.other_cores is not None and rank.other_cores >= POLICY.least_other_cores:
        words += f"; processes that are not of this run used {rank.other_cores:.1f} cores"
    if is_crowded(run):
        return f"{words}: gains are rough, and small ones are not told"
    return f"{words}: ranges of gains are wider for it"


def how_to_record(run: RunFacts) -> str:
    """What to do about a run without a recording."""
    if run.exit_code:
        return "once the job runs, record it again: the first screen of it has the command"
    if not run.ranks:
        return (
            "steps are counted by torch.optim optimizers: where the job's are others, or run "
            "inside a CUDA graph, use the API (stepscope.profile() and scope.step())"
        )
    if run.is_kept_off:
        return "to record it: take the job's own profiler out, then stepscope run again"
    return (
        "to record sooner: stepscope run --start-step 3 -- ...; a job's first steps are slower "
        "than the rest"
    )


def _peak_achieved(waterfall: PeakWaterfall | None) -> list[str]:
    if waterfall is None or waterfall.achieved is None or waterfall.device is None:
        return []
    peak = f"the dense {waterfall.precision} peak of {waterfall.device}"
    return [f"{waterfall.achieved:.0%} of {peak} were achieved; a trace tells where the rest goes"]


def _links_reached(auxiliary: Auxiliary) -> list[str]:
    """What nccl-tests measured, a line for each of the first few."""
    tests = () if auxiliary.system is None else auxiliary.system.link_tests
    return [
        f"{test.kind} over {test.num_ranks} ranks: {reached_words(judge_test(test))}"
        for test in tests
        if test.rows
    ][:MAX_TESTS]


def diagnose_auxiliary(
    auxiliary: Auxiliary,
    notes: tuple[str, ...] = (),
    nccl: NcclLog | None = None,
    *,
    step_ns: int | None = None,
    work: GivenWork | None = None,
) -> Diagnosis:
    """Recordings of other tools alone, and logs of NCCL: what they show, with no step to weigh it
    by unless it is given or a log has one."""
    is_given, training = step_ns is not None, auxiliary.training
    if step_ns is None and training is not None:
        step_ns = training.step_ns
    formats = list(dict.fromkeys(recording.format for recording in auxiliary.recordings))
    judged = {subject for name in formats for subject in BY_NAME[name].judges}
    advice = list(advise(auxiliary))
    if nccl is not None:
        formats.append(f"a log of {nccl.library.upper()}")
        judged.add("comms")
        by_log = (
            rule.advise_by_log(nccl) for rule in every_rule() if rule.advise_by_log is not None
        )
        advice += [each for each in by_log if each is not None]
    subjects = ", ".join(sorted(judged))
    codes = ", ".join(dict.fromkeys(each.code for each in advice))
    words = f"no trace was given, and {', '.join(formats)} cannot say what limits the run"
    missing = () if advice else abstentions(auxiliary)
    shows = (
        f"Of what it does show ({subjects}), no fault was found; not judged: where a step's time "
        "goes (stepscope run -- python train.py records it)."
    )
    if codes:
        shows = f"It shows: {codes}."
    elif missing:
        reasons = "; ".join(f"{each.reason} (it takes {each.needs})" for each in missing)
        shows = f"Not judged: {reasons}."
    waterfall = log_waterfall(training or TrainingLog(), step_ns, work)
    lines = [*_peak_achieved(waterfall), *_links_reached(auxiliary)]
    reached = "".join(f"{line}. " for line in lines)
    summary = f"Not known: {words}. {reached}{shows}"
    verdict = Verdict(bound="unknown", summary=summary, shares={})
    return Diagnosis(
        verdict=hung(auxiliary, verdict),
        step=StepTime(
            count=0 if training is None else training.num_steps,
            ms=None if step_ns is None else step_ns / 1e6,
            profiled_ms=None,
            source="trace" if step_ns is None else "given" if is_given else "log",
        ),
        replay=None,
        ladder=(),
        findings=(),
        facts=Facts(
            ranks=(),
            auxiliary=auxiliary,
            given_step_ns=step_ns,
            is_step_logged=step_ns is not None and not is_given,
            nccl=nccl,
            out_of_memory=out_of_memory(None, auxiliary),
            peak_waterfall=waterfall,
        ),
        notes=(
            *notes,
            *auxiliary.notes,
            f"judged here: {subjects}; with a trace, where the step's time goes is known too",
        ),
        unknown_events=0,
        advice=tuple(advice),
        abstentions=missing,
    )
