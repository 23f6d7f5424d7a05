"""loader-respawn: the end of an epoch, a pause, and a first batch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepscope.core.run import LoaderKnobs, RankMetadata, Stalls
from stepscope.rules.case import case_of
from tests.rules.judging import judge
from tests.rules.recorded import Run
from tests.rules.timed import timed_steps

MS = 1_000_000


def epochs(pause_us: int, *, steps: int, lengths: int) -> Run:
    """`steps` steps; after every `lengths` of them the loader ends its epoch and begins another."""
    run = Run()
    for i in range(steps):
        run.step()
        if i and i % lengths == 0:
            run.fetch(1_000)
            run.host(pause_us)
            run.fetch(20_000)
        else:
            run.fetch(60)
        run.launch(10_000)
        run.sync()
    return run


def test_an_epoch_of_one_step_pays_it_in_every_step() -> None:
    run = epochs(20_000, steps=5, lengths=1)
    assert run.gain("loader-respawn") > 3


def test_a_rare_stall_is_told_without_a_gain() -> None:
    judgement = epochs(20_000, steps=8, lengths=4).judged()
    assert [remark.code for remark in judgement.remarks] == ["loader-respawn"]
    assert "persistent_workers" in judgement.remarks[0].text
    assert all(finding.code != "loader-respawn" for finding in judgement.findings)


def test_two_batches_fetched_at_once_are_not_a_new_epoch() -> None:
    run = Run()
    for _ in range(5):
        run.step()
        run.fetch(60)
        run.host(20)
        run.fetch(60)
        run.launch(10_000)
    judgement = run.judged()
    assert judgement.remarks == ()
    assert all(finding.code != "loader-respawn" for finding in judgement.findings)


def test_epochs_that_a_run_timed_have_their_price_without_one_in_the_recording() -> None:
    """40 ms every 13 steps of 10, of which two workers still make the first batch for 2.5."""
    stalls = Stalls(num=8, every=13.0, once_ns=40 * MS, step_ns=40 * MS // 13)
    metadata = RankMetadata(
        rank=0,
        steps=timed_steps(10),
        loader=LoaderKnobs(num_workers=2),
        children_cores=0.25,
        stalls={"epoch": stalls},
    )
    run = Run()
    for _ in range(4):
        run.step()
        run.fetch(60)
        run.launch(9_000)
        run.sync()
    context = run.case().context
    said = judge(case_of(context, 0, 10 * MS, metadata)).findings
    (found,) = [each for each in said if each.code == "loader-respawn"]
    assert found.predicted_speedup == pytest.approx(1 + 37.5 / 13 / 10, rel=0.01)
    kept = LoaderKnobs(num_workers=2, persistent_workers=True)
    for loader in (kept, LoaderKnobs(num_workers=0)):
        said = judge(case_of(context, 0, 10 * MS, replace(metadata, loader=loader))).findings
        assert "loader-respawn" not in {each.code for each in said}
