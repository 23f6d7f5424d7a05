"""loader-respawn: the end of an epoch, a pause, and a first batch."""

from __future__ import annotations

from tests.rules.recorded import Run


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
