"""Datasets that the training loop iterates itself: each batch is timed once, and what the job gets
stays what it was."""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed import need

need("torch")

import torch
from torch.utils.data import DataLoader, IterableDataset

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.datasets import Datasets
from stepscope.capture.session import Session
from stepscope.capture.tape import WAITED
from stepscope.pipeline.options import Options as ReadingOptions
from stepscope.pipeline.recording import diagnose
from stepscope.protocol.options import Options
from tests.capture.jobs import LIGHT, TRAINING, record


class Counted(IterableDataset[int]):
    is_closed = False

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            self.is_closed = True


class Around(IterableDataset[int]):
    """One inside another, as shuffling buffers are."""

    def __iter__(self) -> Iterator[int]:
        for number in Counted():
            yield 2 * number


class Mapped(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return map(abs, Counted())


class Own(IterableDataset[int]):
    """Gives an iterator that the loop may ask for more than batches."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return 1


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    guard = Guard()
    made = Session(tmp_path, Options(sample_s=1e6), guard)
    Datasets(guard, torch, made).hook()
    yield made
    guard.off()


def num_waits(session: Session) -> int:
    return sum(kind == WAITED and who is not None for kind, _, _, who in session.tape)


@pytest.mark.parametrize("make", [Counted, Around, Mapped])
def test_every_batch_is_timed_once(session: Session, make: Callable[[], Any]) -> None:
    factor = 2 if make is Around else 1
    assert list(make()) == [0, factor, 2 * factor]
    assert num_waits(session) == 3
    assert session.tape[-1][3] is None, "the epoch's end brings no batch"


def test_what_a_loader_takes_is_left_to_its_own_hook(session: Session) -> None:
    for dataset in (Counted(), Around(), Mapped()):
        assert len(list(DataLoader(dataset, batch_size=None))) == 3
    assert num_waits(session) == 0


def test_an_iterator_of_the_jobs_own_stays_what_it_is(session: Session) -> None:
    own = Own()
    assert iter(own) is own


class Listed(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([0, 1, 2])


def test_an_iterator_that_can_be_copied_and_measured_still_can(session: Session) -> None:
    assert operator.length_hint(iter(Listed())) == 3
    assert list(copy.copy(iter(Listed()))) == [0, 1, 2]


class Answering(IterableDataset[str]):
    def __iter__(self) -> Generator[str, str, None]:
        word = "nothing"
        while True:
            try:
                word = yield word
            except KeyError as problem:
                word = f"caught {problem}"


def test_what_the_job_sends_and_throws_reaches_its_generator(session: Session) -> None:
    batches: Any = iter(Answering())
    assert batches.__name__ == "__iter__"
    assert next(batches) == "nothing"
    assert batches.send("hello") == "hello"
    assert batches.throw(KeyError("k")) == "caught 'k'"
    with pytest.raises(ValueError, match="bad"):
        batches.throw(ValueError("bad"))
    assert list(batches) == []
    assert session.guard.is_on


def test_a_loop_that_ends_early_closes_what_it_took_from(session: Session) -> None:
    counted = Counted()
    assert list(itertools.islice(counted, 1)) == [0]
    assert counted.is_closed


def test_functions_stay_the_jobs_own_and_are_as_before_after_the_capture(tmp_path: Path) -> None:
    function: Any = Counted.__dict__["__iter__"]
    guard, before = Guard(), function.__code__
    Datasets(guard, torch, Session(tmp_path, Options(sample_s=1e6), guard)).hook()
    batches = iter(Counted())
    assert Counted.__dict__["__iter__"] is function
    assert function.__code__ is not before
    assert inspect.getsource(Counted).count("yield from range(3)") == 1
    guard.off()
    assert function.__code__ is before
    assert list(batches) == [0, 1, 2]


class Seeded(IterableDataset[int]):
    """An `__iter__` with arguments, which hands on to a method."""

    def __iter__(self, epoch: int = 0, *, num: int = 2) -> Iterator[int]:
        return self._batches(epoch, num)

    def _batches(self, epoch: int, num: int) -> Iterator[int]:
        for number in range(num):
            yield number + epoch


def test_arguments_reach_it_and_a_method_that_it_hands_on_to_is_timed(session: Session) -> None:
    seeded: Any = Seeded()
    assert list(seeded.__iter__(7, num=3)) == [7, 8, 9]
    assert num_waits(session) == 3


def test_an_exception_of_the_dataset_is_the_jobs_own(session: Session) -> None:
    class Broken(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise OSError("gone")

    Datasets(session.guard, torch, session).hook()
    with pytest.raises(OSError, match="gone"):
        list(Broken())
    assert session.guard.is_on


STREAM = """
import time, torch
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for _ in range(40):
            time.sleep(0.02)
            yield torch.randn(16, 32)
"""
"""Defined before the optimizer is made, as datasets are."""


def test_a_slow_dataset_without_a_loader_is_the_input(tmp_path: Path) -> None:
    text = """
for x in Stream():
    model(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
"""
    ended = record(tmp_path, text, "--start-step", "16", before=LIGHT + STREAM + TRAINING)
    assert ended.code == 0, ended.err
    (rank,) = ended.run.ranks
    assert all(row["num_batches"] == 1 for row in rank.rows)
    diagnosis = diagnose([ended.folder], ReadingOptions(use_cache=False))
    assert diagnosis.verdict.bound == "data"
    assert diagnosis.facts.ranks[0].host.loader[0].name.endswith("#Stream.__next__")
    (metadata,) = diagnosis.facts.run.ranks  # type: ignore[union-attr]
    assert metadata.loader is not None
    assert metadata.loader.is_bare
