"""One file is one task: on an executor, in order, and a rank that fails does not take the others with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import InputError, StepscopeError
from stepscope.readers.source import Source
from stepscope.rules.job import measure_job
from tests.shared_data import DEMO


def sources(folder: Path, *names: str) -> list[Source]:
    for name in names:
        if name.startswith("bad"):
            (folder / name).write_bytes(b"not a trace")
        else:
            shutil.copy(DEMO, folder / name)
    return [Source(path=folder / name, label=str(folder / name)) for name in names]


def test_an_executor_gives_the_same_facts_as_none(tmp_path: Path) -> None:
    files = sources(tmp_path, "rank1.json.gz", "rank0.json.gz")
    seen: list[tuple[int, int]] = []
    alone = measure_job(files, use_cache=False)
    with ThreadPoolExecutor(2) as pool:
        together = measure_job(files, executor=pool, use_cache=False, progress=lambda done, total: seen.append((done, total)))
    assert alone == together
    assert seen == [(1, 2), (2, 2)]


def test_one_bad_file_is_a_note_and_only_bad_files_are_an_error(tmp_path: Path) -> None:
    good, bad = sources(tmp_path, "rank0.json.gz", "bad.json")
    job = measure_job([good, bad], use_cache=False)
    assert len(job.facts.ranks) == 1
    assert any("bad.json" in note for note in job.notes)
    with pytest.raises(InputError, match=r"bad\.json"):
        measure_job([bad], use_cache=False)


class DyingExecutor(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise AssertionError("map is used")

    def map(self, fn: Callable[..., Any], *iterables: Any, timeout: float | None = None, chunksize: int = 1) -> Iterator[Any]:
        raise BrokenProcessPool("killed")


def test_a_dead_worker_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match="--jobs 1"):
        measure_job(sources(tmp_path, "rank0.json.gz"), executor=DyingExecutor(), use_cache=False)
