"""starved-loader: workers exist and most fetches wait."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from stepscope.core.diagnosis import Abstention, Finding
from stepscope.core.run import LoaderKnobs, RankMetadata, UnprofiledSteps
from stepscope.replay.changes import without_host_parts, without_tasks
from stepscope.replay.simulate import play
from stepscope.rules.case import Case, case_of
from stepscope.rules.data import starved_loader
from tests.ranges import left_open
from tests.rules.judging import judge
from tests.rules.recorded import WORKERS, Run
from tests.rules.timed import timed_steps
from tests.wording import any_mentions, mentions

MS = 1_000_000


def fetching(*waits_us: int) -> Run:
    run = Run()
    for wait in waits_us:
        run.step()
        run.fetch(wait)
        run.launch(10_000)
        run.sync()
    return run


def test_waits_in_most_steps_are_a_starved_loader() -> None:
    finding = fetching(20_000, 20_000, 20_000, 20_000, 20_000).finding("starved-loader")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(30 / 11, rel=0.03)
    assert left_open(finding)[0] == pytest.approx(30 / 20, rel=0.03)


def test_more_workers_do_not_take_away_all_of_a_long_wait() -> None:
    # A batch every 100 ms; four times the workers bring one every 25.
    finding = fetching(*[90_000] * 5).finding("starved-loader")
    assert finding is not None
    assert finding.predicted_speedup == pytest.approx(4, rel=0.03)
    assert left_open(finding)[1] == pytest.approx(100 / 11, rel=0.03)


def test_ready_batches_and_one_slow_fetch_are_not() -> None:
    assert fetching(60, 60, 60, 60).gain("starved-loader") == 1.0
    assert fetching(60, 20_000, 60, 60).gain("starved-loader") == 1.0


def hurrying(fetch: str, left: float) -> Case:
    """The unprofiled step takes `left` of the recorded one, in which no batch is waited for."""
    run = Run()
    for _ in range(4):
        run.step()
        run.fetch(60, fetch)
        for _ in range(200):
            run.launch(5, host_us=40)
    step_ns = run.case().facts.steps.step_interval_ns
    assert step_ns is not None
    context = run.case().context
    return case_of(context, 0, round(step_ns * left))


def test_whether_workers_keep_up_with_a_run_that_recording_slowed_is_not_known() -> None:
    said = starved_loader.propose(hurrying(WORKERS, 0.6))
    assert isinstance(said, Abstention)
    assert "stepscope run" in said.needs
    assert starved_loader.propose(hurrying("a mark of another loader", 0.6)) is None


def test_a_step_longer_than_the_recording_explains_may_wait_for_its_workers() -> None:
    """Recording usually takes two fifths of such a host's time; here the run's step has 0.85 of the
    recorded one."""
    case = hurrying(WORKERS, 0.85)
    (found,) = [each for each in judge(case).findings if each.code == "starved-loader"]
    rest = starved_loader._without_wait(case, case.graph, 1.0)
    whole = case.step_interval_ns / play(rest).step_interval_ns
    assert 0.2 < case.wait_probability < 0.9
    assert found.predicted_speedup == pytest.approx(whole**case.wait_probability, rel=0.02)
    assert found.predicted_low == 1.0
    assert left_open(found)[1] == pytest.approx(whole, rel=0.02)
    faster = without_host_parts(case.graph, "work")
    paced, free = case.speedups(faster)
    assert paced == 1.0
    assert free > 2
    assert case.speedup(faster) == pytest.approx(free ** (1 - case.wait_probability))
    assert hurrying("a mark of another loader", 0.85).wait_probability == 0
    assert hurrying(WORKERS, 0.95).wait_probability == 0, "the recorded steps were no slower"


def test_batches_that_come_in_bursts_too_far_apart_are() -> None:
    finding = fetching(60, 60, 200_000).finding("starved-loader")
    assert finding is not None
    assert finding.predicted_speedup > 2


def test_a_wait_before_the_measured_steps_is_what_the_given_step_has() -> None:
    """Three workers bring their batches together: the recording's first step waits for them, and is
    not measured; the run's usual step is as long as the given one."""
    run = Run()
    for wait in (120_000, 60, 60):
        run.step()
        run.fetch(wait)
        for _ in range(20):
            run.host(200)
            run.launch(450)
    case = case_of(run.case().context, 0, 51 * MS)
    assert case.facts.replayed is not None
    assert case.facts.replayed.shares["data"] > 0.6
    (finding,) = [each for each in judge(case).findings if each.code == "starved-loader"]
    assert finding.predicted_speedup > 3


def test_what_the_profiler_hid_of_the_wait_is_seen_in_the_given_step() -> None:
    """Two workers bring two batches every 40 ms. Recording makes the host's 9 ms 18: one fetch in
    two still waits, a little. Where the run's step is as long as the rest of it, none does."""
    run = Run()
    for wait in (60, 2_000, 60, 2_000, 60):
        run.step()
        run.fetch(wait)
        for _ in range(1_500):
            run.launch(1, host_us=12)
    context = run.case().context
    paced, fed = case_of(context, 0, 20 * MS), case_of(context, 0, 9 * MS)
    assert paced.paced_by_loader
    assert not fed.paced_by_loader
    (found,) = [each for each in judge(paced).findings if each.code == "starved-loader"]
    assert 1.5 < found.predicted_speedup < 3
    assert paced.facts.replayed is not None
    assert paced.facts.replayed.shares["host"] == 0.0


def test_a_run_that_waits_for_its_workers_gains_nothing_from_the_rest() -> None:
    case = fetching(*[20_000] * 5).case()
    assert case.paced_by_loader
    free = without_tasks(case.graph, np.ones(len(case.graph), np.bool_))
    assert play(free).step_interval_ns < 0.8 * case.step_interval_ns
    assert case.speedup(free) == 1.0
    assert case.facts.replayed is not None
    assert case.facts.replayed.shares["memory"] == 0.0
    assert case.facts.replayed.shares["data"] > 0.5


def timed(wait_ms: int, step_ms: int) -> UnprofiledSteps:
    return timed_steps(step_ms, wait_ms=wait_ms, on_device=True)


def known(wait_ms: int, *, workers: int = 4, cores: int = 16, each: float = 0.9) -> RankMetadata:
    return RankMetadata(
        rank=0,
        steps=timed(wait_ms, 10 + wait_ms),
        loader=LoaderKnobs(num_workers=workers, batch_size=32),
        cores=cores,
        cores_used=workers * each + 1,
        children_cores=workers * each,
        busiest_worker_cores=each,
    )


def finding(metadata: RankMetadata) -> Finding | None:
    """Of a recording in which every batch was ready, with a step of 10 ms."""
    run = fetching(*[60] * 5)
    assert metadata.steps is not None
    case = case_of(run.case().context, 0, metadata.steps.step_ns, metadata)
    return next((one for one in judge(case).findings if one.code == "starved-loader"), None)


def test_what_only_unprofiled_steps_wait_is_seen() -> None:
    """A batch every 13 ms from 4 workers: 6 bring one in less than the step takes."""
    found = finding(known(wait_ms=3))
    assert found is not None
    assert found.predicted_speedup == pytest.approx(1.3, rel=0.05)
    assert "num_workers=5" in found.action or "num_workers=6" in found.action
    assert any("samples a second" in words for words in found.evidence)


def test_unprofiled_steps_that_find_their_batches_are_not_starved() -> None:
    assert finding(known(wait_ms=0)) is None


def test_workers_that_fill_the_cores_are_not_told_to_be_more() -> None:
    metadata = known(wait_ms=10, workers=4, cores=4, each=0.75)
    assert finding(metadata) is None
    said = full(metadata)
    assert mentions(said.reason, "4 workers", "4 cores")
    assert "cheaper transforms" in said.needs
    many = structs.replace(known(wait_ms=10, workers=64), cores=None)
    assert mentions(full(many).reason, "64 workers", "ever")
    heavy = structs.replace(known(wait_ms=10), worker_bytes=4e9, memory_available_bytes=4e9)
    assert mentions(full(heavy).reason, "4 workers", "memory")


def full(metadata: RankMetadata) -> Abstention:
    assert metadata.steps is not None
    case = case_of(fetching(*[60] * 5).case().context, 0, metadata.steps.step_ns, metadata)
    said = starved_loader.propose(case)
    assert isinstance(said, Abstention)
    return said


def test_cores_that_other_jobs_use_are_not_promised_to_workers() -> None:
    """Of 16 cores others use 11.5: 4 workers at 0.9 of a core each have what is left."""
    alone = known(wait_ms=10)
    shared = structs.replace(alone, other_cores=11.5)
    assert finding(alone) is not None
    assert mentions(full(shared).reason, "4 workers", "4.5 cores", "other processes")
    elsewhere = finding(structs.replace(shared, machine_cores=64))
    assert elsewhere is not None, "a machine of 64 cores has room beside those that others use"
    half = finding(structs.replace(alone, other_cores=8.0))
    assert half is not None
    assert "num_workers=7" in half.action
    assert any_mentions(half.evidence, "not of the run", "leave 8.0")


def test_an_iterable_dataset_is_told_to_be_split() -> None:
    metadata = known(wait_ms=3)
    loader = LoaderKnobs(num_workers=4, batch_size=32, is_iterable=True)
    for knobs, is_said in ((metadata.loader, False), (loader, True)):
        found = finding(structs.replace(metadata, loader=knobs))
        assert found is not None
        assert ("get_worker_info()" in found.action) == is_said


def test_short_fetches_are_no_wait_where_the_timed_steps_have_none() -> None:
    """The recorded fetches take 1 ms of 20; the timed steps have next to none of it."""
    run = fetching(*[1_000] * 5)
    metadata = structs.replace(known(wait_ms=0), steps=timed(wait_ms=0, step_ms=20))
    assert not case_of(run.case().context, 0, 20 * MS, metadata).paced_by_loader
    assert case_of(run.case().context, 0, 20 * MS).paced_by_loader


def test_memory_limits_the_workers() -> None:
    metadata = structs.replace(known(wait_ms=30), worker_bytes=1e9, memory_available_bytes=4.5e9)
    found = finding(metadata)
    assert found is not None
    assert "num_workers=6" in found.action
