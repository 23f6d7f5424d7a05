"""Runs without a device: what a replay of their operators says, and what the run's own numbers
change in it."""

from __future__ import annotations

import pytest
from msgspec import structs

from stepscope.analyses.rank_context import build_context
from stepscope.core.facts import Facts
from stepscope.core.run import LoaderKnobs, OwnTime, RankMetadata, RunFacts
from stepscope.core.trace import Trace
from stepscope.replay import graph
from stepscope.rules.case import case_of
from stepscope.rules.job_case import Job
from stepscope.rules.verdict import diagnose_job
from stepscope.rules.without_trace import timed_verdict
from tests.rules.judging import diagnosed, judge
from tests.rules.recorded import WORKERS
from tests.rules.timed import timed_steps
from tests.tracing import Event, mark, op, python, trace_of
from tests.wording import mentions

MS = 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def steps(
    loading_ms: int,
    work_ms: int,
    num: int = 5,
    loader: str = LOADER,
    *,
    reads_loss: bool = False,
) -> Trace:
    """Each step loads, computes in two operators with a millisecond of Python between them, and
    ends."""
    events: list[Event] = []
    now = 0
    for step in range(num):
        began = now
        if reads_loss:
            events.append(op("aten::item", now, now + MS))
            now += MS
        events.append(mark(loader, now, now + loading_ms * MS))
        now += loading_ms * MS
        half = work_ms * MS // 2
        events += [
            op("aten::mm", now, now + half),
            op("aten::add_", now + half + MS, now + 2 * half + MS - 1000),
        ]
        now += 2 * half + MS
        events.append(mark(f"ProfilerStep#{step}", began, now))
    return trace_of(*events)


def known(cores: float, used: float, wait_ms: int, step_ms: int) -> RankMetadata:
    timed = timed_steps(step_ms, wait_ms=wait_ms)
    return RankMetadata(
        rank=0,
        steps=timed,
        cores=cores,
        cores_used=used,
        threads=1,
        loader=LoaderKnobs(num_workers=0),
    )


def test_the_replay_meets_the_step_and_names_the_input() -> None:
    case = case_of(build_context(steps(20, 10), None), 0, None)
    assert case.facts.replayed is not None
    assert case.step_interval_ns == pytest.approx(31 * MS, rel=0.01)
    shares = case.facts.replayed.shares
    assert max(shares, key=lambda name: shares[name]) == "data"
    assert shares["data"] == pytest.approx(20 / 31, abs=0.02)


def test_steps_of_which_one_has_work_are_not_replayed() -> None:
    """The distance to the next is not known, and no gain is told from it."""
    worked = [op("aten::mm", 0, 5 * MS), op("aten::mm", 6 * MS, 9 * MS)]
    marks = [
        mark(f"ProfilerStep#{step}", step * 10 * MS, (step + 1) * 10 * MS - 1000)
        for step in range(3)
    ]
    case = case_of(build_context(trace_of(*worked, *marks), None), 0, None)
    assert (case.unprofiled, case.unprofiled_ns, case.facts.replayed) == (None, None, None)


def test_of_many_operators_fewer_steps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over small operators has more stretches than are replayed: two steps are enough."""
    whole = case_of(build_context(steps(20, 10), None), 0, None)
    monkeypatch.setattr(graph, "MAX_TASKS", 3)
    case = case_of(build_context(steps(20, 10), None), 0, None)
    assert (whole.graph.num_steps, case.graph.num_steps) == (5, 2)
    assert case.step_interval_ns == pytest.approx(31 * MS, rel=0.01)
    assert case.facts.replayed is not None
    assert case.facts.replayed.shares["data"] == pytest.approx(20 / 31, abs=0.02)


def test_cores_that_other_jobs_hold_are_no_sure_gain() -> None:
    """The one core that they leave is for one worker: a batch as often as that makes one."""
    alone = known(4.0, 1.0, wait_ms=20, step_ms=31)
    shared = structs.replace(alone, other_cores=3.0)
    for metadata, is_sure, num, least in ((alone, True, 2, 1.5), (shared, False, 1, 1.2)):
        case = case_of(build_context(steps(20, 10), None), 0, 31 * MS, metadata)
        (found,) = [each for each in judge(case).findings if each.code == "serial-loader"]
        assert f"num_workers={num}," in found.action
        assert found.predicted_speedup > least
        assert (found.predicted_low > 1.2) == is_sure


def test_the_measured_wait_goes_before_the_recorded_one() -> None:
    case = case_of(
        build_context(steps(20, 10), None), 0, 51 * MS, known(64, 1.0, wait_ms=40, step_ms=51)
    )
    assert case.facts.replayed is not None
    assert case.facts.replayed.shares["data"] == pytest.approx(40 / 51, abs=0.02)


def test_a_measured_wait_is_that_of_each_step_that_waits() -> None:
    """What reads the last loss comes before the loader: each of three recorded steps has its
    batch, where otherwise the first one's lies before all operators."""
    recorded = steps(80, 10, num=3, reads_loss=True)
    case = case_of(build_context(recorded, None), 0, 102 * MS, known(64, 1.0, 90, step_ms=102))
    assert case.facts.replayed is not None
    assert case.facts.replayed.shares["data"] == pytest.approx(90 / 102, abs=0.02)


def test_the_measured_wait_for_workers_goes_before_the_recorded_one() -> None:
    """Recorded steps find batches that were made while the profiler started: they wait for 2 ms of
    13, the run's for 25 of 36."""
    metadata = known(64, 1.0, wait_ms=25, step_ms=36)
    metadata = structs.replace(metadata, loader=LoaderKnobs(num_workers=2))
    recorded = steps(2, 10, loader=WORKERS)
    case = case_of(build_context(recorded, None), 0, 36 * MS, metadata)
    assert case.facts.replayed is not None
    assert case.facts.replayed.shares["data"] == pytest.approx(25 / 36, abs=0.02)
    (found,) = [each for each in judge(case).findings if each.code == "starved-loader"]
    assert found.predicted_speedup > 2
    assert "waits 25.0 ms" in found.summary


def test_why_more_workers_give_nothing_is_said_once() -> None:
    metadata = known(1, 1.0, wait_ms=25, step_ms=36)
    loader = LoaderKnobs(num_workers=2, batch_tensors=2, batch_bytes=1000)
    metadata = structs.replace(metadata, loader=loader, children_cores=1.0)
    recorded = build_context(steps(2, 10, loader=WORKERS), None)
    diagnosis = diagnosed(case_of(recorded, 0, 36 * MS, metadata), 36 * MS)
    (note,) = [note for note in diagnosis.notes if "workers fill" in note]
    assert note.startswith("not judged: data share: ")
    assert mentions(note, "69% of the step", "workers")
    assert {"starved-loader", "data share"} <= {each.code for each in diagnosis.abstentions}


def test_steps_without_a_loader_and_without_a_recording_speak_of_none() -> None:
    rank = known(4, 1.0, wait_ms=0, step_ms=10)
    assert rank.steps is not None
    for num_batches, is_named in ((0, False), (1, True)):
        steps = structs.replace(rank.steps, num_batches=num_batches)
        ranks = (structs.replace(rank, steps=steps),)
        run = RunFacts(path="run", command=("train",), exit_code=0, ranks=ranks)
        assert ("loader" in timed_verdict(run).summary) == is_named


def test_taking_over_a_batch_that_is_ready_is_no_wait_for_workers() -> None:
    """Of 2 ms in a step of 18, 1.35 for two tensors."""
    recorded = steps(2, 15, loader=WORKERS)
    metadata = known(64, 1.0, wait_ms=2, step_ms=18)
    for num_tensors, is_paced in ((2, False), (0, True)):
        loader = LoaderKnobs(num_workers=2, batch_tensors=num_tensors, batch_bytes=1000)
        case = case_of(
            build_context(recorded, None), 0, 18 * MS, structs.replace(metadata, loader=loader)
        )
        assert case.paced_by_loader == is_paced
        assert ("starved-loader" in {f.code for f in judge(case).findings}) == is_paced


def test_what_python_takes_a_step_is_told_of_whole_steps() -> None:
    """Python runs before a step's first operator, which the first recorded step begins with."""
    events: list[Event] = []
    for step in range(3):
        began = step * 22 * MS
        events += [
            op("aten::mm", began + 12 * MS, began + 17 * MS),
            op("aten::add_", began + 17 * MS + 1000, began + 22 * MS - 1000),
            mark(f"ProfilerStep#{step}", began, began + 22 * MS - 10),
        ]
    (found,) = judge(case_of(build_context(trace_of(*events), None), 0, None)).findings
    assert found.code == "python-overhead"
    assert "of its 12.00 ms" in found.summary


def test_what_timed_steps_show_is_not_nothing_found() -> None:
    case = case_of(build_context(steps(0, 100), None), 0, None)
    assert mentions(diagnosed(case).verdict.summary, "nothing found")
    ranks = [
        RankMetadata(
            rank=rank,
            own=OwnTime(
                num_steps=50,
                step_ns=21 * MS,
                own_ns=18 * MS,
                loader_ns=0,
                backward_ns=5 * MS,
                share_longest=0.5,
                spread=0.2,
            ),
        )
        for rank in (0, 1)
    ]
    run = RunFacts(path="run", command=("train",), exit_code=0, ranks=tuple(ranks))
    facts = Facts(ranks=(case.facts,), run=run)
    said = diagnose_job(Job(facts=facts, case_of=lambda index, step_ns: case))
    assert [each.code for each in said.advice] == ["uneven-work"]
    assert "nothing found" not in said.verdict.summary


def test_operators_and_the_time_outside_them_that_are_near_are_mixed() -> None:
    events: list[Event] = []
    for step in range(4):
        began = step * 20 * MS
        events += [
            op("aten::mm", began, began + 9_800_000),
            op("aten::add_", began + 19 * MS, began + 20 * MS - 1000),
            mark(f"ProfilerStep#{step}", began, began + 20 * MS - 10),
        ]
    verdict = diagnosed(case_of(build_context(trace_of(*events), None), 0, None)).verdict
    assert (verdict.bound, verdict.second) == ("compute", "host")
    assert mentions(verdict.summary.split(":")[0], "mixed")
    assert mentions(verdict.summary, "54%")
    assert "outside operators 46%" in verdict.summary


@pytest.mark.parametrize(
    ("cores", "used", "least", "most"), [(64.0, 1.0, 2.5, 3.0), (2.0, 1.5, 0.99, 1.4)]
)
def test_workers_give_what_the_cores_allow(
    cores: float, used: float, least: float, most: float
) -> None:
    case = case_of(
        build_context(steps(20, 10), None), 0, 31 * MS, known(cores, used, wait_ms=20, step_ms=31)
    )
    found = {finding.code: finding for finding in judge(case).findings}
    finding = found["serial-loader"]
    assert least <= finding.predicted_speedup <= most
    assert finding.predicted_low <= finding.predicted_speedup <= finding.predicted_high
    if cores == 2:
        assert finding.predicted_low == pytest.approx(1.0, abs=0.01), (
            "no core is left over: no gain is sure"
        )


def test_batches_made_without_a_loader_are_input_where_stacks_show_it() -> None:
    events: list[Event] = []
    for step in range(5):
        now = step * 31 * MS
        events += [
            mark(f"ProfilerStep#{step}", now, now + 31 * MS - 1000),
            python("train.py(8): __getitem__", now, now + 20 * MS),
            op("aten::tanh", now, now + 19 * MS),
            python("torch/nn/modules/container.py(317): __getitem__", now + 21 * MS, now + 30 * MS),
            op("aten::mm", now + 21 * MS, now + 30 * MS),
        ]
    timed = structs.replace(known(2, 1, 0, 31), loader=None)
    assert timed.steps is not None
    timed = structs.replace(timed, steps=structs.replace(timed.steps, num_batches=0))
    case = case_of(build_context(trace_of(*events), None), 0, 31 * MS, timed)
    parts, played = case.facts.typical_parts_ns, case.facts.replayed
    assert parts is not None
    assert parts["idle_input"] == pytest.approx(20 * MS)
    assert parts["compute"] == pytest.approx(9 * MS)
    assert played is not None
    assert played.shares["data"] == pytest.approx(20 / 31, rel=0.05)


@pytest.mark.parametrize("num", [1, 5])
def test_what_is_not_judged_without_a_device_speaks_of_none(num: int) -> None:
    case = case_of(build_context(steps(2, 40, num), None), 0, None)
    said = diagnosed(case).abstentions
    assert said
    words = " ".join(f"{each.code} {each.reason} {each.needs}" for each in said)
    assert "the device's" not in words
    assert "memory" not in words
