"""Searches over more configurations than anybody sweeps."""

from __future__ import annotations

import pytest

from stepscope.report.document.terminal import to_text
from stepscope.tune.cli.kernel import read_options
from stepscope.tune.doubling import doubling_notes
from stepscope.tune.report.view import tuning_document
from stepscope.tune.shapes.tuning import (
    MEASURED,
    NOTHING_FASTER,
    SAMPLE,
    KnobShown,
    Tried,
    Tuning,
)
from tests.wording import mentions


def test_ten_thousand_configurations_are_a_search() -> None:
    """10 x 10 x 10 x 10, as ranges, and a budget of 2,000 trials; what it finds:
    tests/tune/kernels/test_search.py."""
    ranges = [f"--config={name}=0..9" for name in "ABCD"]
    options = read_options(["kernels.py:f", *ranges, "--shapes=64x64", "--trials=2000"])
    assert options.configs is not None
    assert len(options.configs) == 10_000
    assert options.policy.trials == 2000


def test_trials_have_their_throughput() -> None:
    """8 ms a sample are 125 samples a second."""
    tuning = Tuning(
        command=("python", "train.py"),
        verdict=NOTHING_FASTER,
        because="nothing was faster",
        per=SAMPLE,
        knobs=(KnobShown(name="batch_size", words="8..128", way="in the job"),),
        size=5,
        baseline=Tried(number=0, settings={}, state=MEASURED, ms=8.0),
        trials=(Tried(number=1, settings={"batch_size": 64}, state=MEASURED, ms=4.0),),
        wall_s=60.0,
    )
    answer = to_text(tuning_document(tuning))
    assert mentions(answer, "samples/s", "125", "250", "2.00x")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({8: 4.0, 16: 2.1, 32: 1.2}, ("from 16 to 32", "57%", "not full yet")),
        ({32: 1.2, 64: 1.0, 128: 0.99}, ("from 64 to 128", "99%", "is full")),
    ],
)
def test_doubling_the_batch_says_whether_the_device_is_full(
    times: dict[int, float], words: tuple[str, ...]
) -> None:
    trials = [
        Tried(number=at, settings={"batch_size": size}, state=MEASURED, ms=ms)
        for at, (size, ms) in enumerate(times.items(), start=1)
    ]
    (note,) = doubling_notes(trials, SAMPLE)
    assert mentions(note, *words)
    assert list(doubling_notes(trials[:1], SAMPLE)) == []
