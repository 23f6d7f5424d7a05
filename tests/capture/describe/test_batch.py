"""What a batch is made of, and who brought it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from stepscope.capture.describe import batch
from tests.installed import package

torch = package("torch")


class Graph:
    """As libraries of graphs have it: tensors in an object's own attributes."""

    def __init__(self) -> None:
        self.x, self.edges = torch.zeros(5, 4), torch.zeros(2, 3, dtype=torch.int64)
        self.itself = self


class Batches:
    pass


def test_tensors_are_counted_wherever_they_are() -> None:
    nested = {"graphs": [Graph(), Graph()], "label": (torch.zeros(3), 7, "name"), "empty": None}
    assert batch.batch_notes(nested) == {
        "num_tensors": 5,
        "size_bytes": 2 * (5 * 4 * 4 + 2 * 3 * 8) + 3 * 4,
    }


def test_one_tensor_in_two_places_is_one() -> None:
    tensor = torch.zeros(8)
    assert batch.batch_notes([tensor, tensor])["num_tensors"] == 1


def test_of_no_batch_and_of_one_too_large_to_look_at_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert batch.batch_notes(None) == {}
    monkeypatch.setattr(batch, "MAX_PARTS", 3)
    assert batch.batch_notes([torch.zeros(1) for _ in range(9)]) == {}


def test_an_iterators_first_batch_is_looked_at_and_the_iterator_not_kept() -> None:
    feeder, first = batch.Feeder(), Batches()
    assert feeder.iterator() is None
    feeder.took(first, torch.zeros(2))
    feeder.took(first, [torch.zeros(2)] * 2)
    assert feeder.iterator() is first
    assert feeder.batch == {"num_tensors": 1, "size_bytes": 8}
    feeder.took(Batches(), (torch.zeros(1), torch.zeros(1)))
    assert feeder.batch["num_tensors"] == 2
    del first
    gc.collect()
    assert feeder.iterator() is None


class Lazy(list[Any]):
    """Of the job: it makes what it holds when somebody iterates over it."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the job's code ran")


class Pretender:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise AssertionError("the job's code ran")


def test_no_code_of_the_batch_runs() -> None:
    lazy = Lazy([torch.zeros(2), Pretender()])
    assert batch.batch_notes((lazy,)) == {"num_tensors": 1, "size_bytes": 8}
