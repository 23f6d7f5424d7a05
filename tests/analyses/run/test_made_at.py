"""Which line made a loader or an optimizer, where that is told of one alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.analyses.run.metadata import rank_metadata
from stepscope.readers.run_folder.folder import RankRecord


def made_at(**recorded: Any) -> dict[str, str]:
    record = RankRecord(
        rank=0,
        folder=Path(),
        metadata=recorded,
        rows=(),
        samples=(),
        events=(),
        windows={},
        problem=None,
    )
    return dict(rank_metadata(record).made_at)


def test_the_loader_that_feeds_and_each_optimizer_that_is_the_only_one_have_their_line() -> None:
    loaders = [
        {"class": "DataLoader", "made_at": "val.py(3): main"},
        {"class": "DataLoader", "made_at": "train.py(9): main", "is_feeding": True},
    ]
    optimizers = [
        {"class": "AdamW", "made_at": "train.py(7): main", "num": 1},
        {"class": "SGD", "made_at": "train.py(8): main", "num": 2},
    ]
    assert made_at(loaders=loaders, optimizers=optimizers) == {
        "DataLoader": "train.py(9): main",
        "AdamW": "train.py(7): main",
    }
    twice = [
        {"class": "SGD", "made_at": "a.py(1): f", "num": 1},
        {"class": "SGD", "made_at": "b.py(1): f", "num": 1},
    ]
    assert made_at(optimizers=twice) == {}


def test_a_line_that_is_not_known_or_no_text_is_not_there() -> None:
    assert made_at(loaders=[{"class": "DataLoader", "made_at": None, "is_feeding": True}]) == {}
    assert made_at(optimizers=[{"class": "SGD", "made_at": 3, "num": 1}]) == {}
    assert made_at() == {}
