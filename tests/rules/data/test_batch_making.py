"""Who makes a batch, of what: the function that holds most of it, storage, threads or computing."""

from __future__ import annotations

import pytest

from stepscope.rules.data import serial_loader
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.batch_making import making_of, own_calls
from tests.rules.recorded import SERIAL, US, WORKERS, Run
from tests.tracing import python
from tests.wording import mentions

READ = "<built-in method read of _io.FileIO object at 0x1>"
LOCK = "<built-in method acquire of _thread.lock object at 0x1>"


def loading(name: str, *inner: tuple[str, float, float]) -> Run:
    """Batches of 10 ms in the training process; `inner` frames hold a stretch of each."""
    run = Run()
    for _ in range(5):
        run.step()
        begun = run.now
        if name.startswith("enumerate"):
            run.fetch(10_000, name)
        else:
            run.events.append(python(name, begun * US, (begun + 10_000) * US))
            run.host(10_000)
        run.events += [
            python(frame, int((begun + 10_000 * first) * US) + 1, int((begun + 10_000 * last) * US))
            for frame, first, last in inner
        ]
        run.launch(3_000)
        run.sync()
    return run


ITEM = ("data.py(12): __getitem__", 0.01, 0.99)
FILE = ("data.py(5): read_file", 0.02, 0.95)


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ((ITEM, FILE, (READ, 0.03, 0.9)), ("data.py:5 in read_file", "storage", "87%")),
        ((ITEM, FILE, (LOCK, 0.03, 0.9)), ("data.py:5 in read_file", "threads of its own")),
        ((ITEM, ("data.py(8): augment", 0.2, 0.95)), ("data.py:8 in augment", "computes")),
        ((ITEM, ("data.py(8): augment", 0.2, 0.5)), ("data.py:12 in __getitem__", "computes")),
    ],
)
def test_the_innermost_function_that_holds_most_of_it_is_named(
    inner: tuple[tuple[str, float, float], ...], words: tuple[str, ...]
) -> None:
    case = loading(SERIAL, *inner).case()
    proposal = serial_loader.propose(case)
    assert isinstance(proposal, Proposal)
    assert mentions(proposal.summary, *words)


def test_a_loop_that_makes_its_own_batches_is_named() -> None:
    """With no DataLoader: the function's name says what it is for."""
    run = loading("train.py(4): next_batch")
    finding = run.finding("serial-loader")
    assert finding is not None
    assert finding.predicted_speedup > 2
    assert mentions(finding.summary, "train.py:4 in next_batch")
    assert mentions(finding.action, "DataLoader(a Dataset", "num_workers=8")


def test_a_range_of_the_users_that_loads_is_a_loader_too() -> None:
    """As NVTX has it: no frames, and no function to name."""
    run = Run()
    for _ in range(5):
        run.step()
        run.fetch(10_000, "data_loading")
        run.launch(3_000)
        run.sync()
    case = run.case()
    assert making_of(case, own_calls(case)) is None
    assert run.gain("serial-loader") > 2


def test_ranges_beside_a_loader_are_the_loaders() -> None:
    run = Run()
    for _ in range(5):
        run.step()
        run.fetch(10_000, "data_loading")
        run.fetch(1_000, WORKERS)
        run.launch(3_000)
    assert len(own_calls(run.case())) == 0
