"""One file is one task: on an executor, in order, and a rank that fails does not take the others
with it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stepscope.core.facts import RankFacts
from stepscope.errors import InputError
from stepscope.pipeline.measure import measure_job, share_groups, share_texts
from stepscope.pipeline.workers import Workers
from stepscope.readers.format import Source
from tests.builders import trace_text, write
from tests.rank_records import Call, collective_records
from tests.shared_data import DEMO
from tests.wording import mentions


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
    alone = measure_job(files)
    with ThreadPoolExecutor(2) as pool:
        workers = Workers(pool, 2)
        together = measure_job(
            files, workers=workers, progress=lambda done, total: seen.append((done, total))
        )
    assert alone == together
    assert seen == [(1, 2), (2, 2)]


def test_one_bad_file_is_a_note_and_only_bad_files_are_an_error(tmp_path: Path) -> None:
    good, bad = sources(tmp_path, "rank0.json.gz", "bad.json")
    job = measure_job([good, bad])
    assert len(job.facts.ranks) == 1
    assert any("bad.json" in note for note in job.notes)
    with pytest.raises(InputError, match=r"bad\.json"):
        measure_job([bad])


def test_ranks_of_other_processes_share_their_texts(tmp_path: Path) -> None:
    (file,) = sources(tmp_path, "rank0.json.gz")
    facts = measure_job([file]).facts.ranks[0]
    ranks = [msgspec.json.decode(msgspec.json.encode(facts), type=RankFacts) for _ in range(2)]
    assert ranks[0].kernels[0].name is not ranks[1].kernels[0].name
    texts: dict[str, str] = {}
    for rank in ranks:
        share_texts(rank, texts)
    assert ranks == [facts, facts]
    for one, other in zip(ranks[0].kernels, ranks[1].kernels, strict=True):
        assert one.name is other.name


def test_ranks_of_other_processes_share_their_groups() -> None:
    call = Call(at=1, end=2, ranks=tuple(range(512)))
    records, *copies = (collective_records(0, [call]) for _ in range(3))
    assert copies[0].groups[0] is not copies[1].groups[0]
    known: dict[Any, Any] = {}
    for copy in copies:
        share_groups(copy, known)
        assert copy.groups == records.groups
        assert copy.kinds == records.kinds
    assert copies[0].groups[0] is copies[1].groups[0]
    assert copies[0].kinds[0] is copies[1].kinds[0]


def test_traces_that_share_nothing_are_told_to_be_of_different_runs(tmp_path: Path) -> None:
    alone, *others = sources(tmp_path, "rank0.json.gz", "first.json.gz", "second.json.gz")
    assert not [note for note in measure_job([alone]).notes if "of one run" in note]
    (note,) = [note for note in measure_job(others).notes if "of one run" in note]
    assert mentions(note, "2 traces", "no collective")

    write(tmp_path / "rank1.json", trace_text())
    exchanging = Source(path=tmp_path / "rank1.json", label=str(tmp_path / "rank1.json"))
    (note,) = [note for note in measure_job([alone, exchanging]).notes if "of one run" in note]
    assert mentions(note, "rank 0", "no collective")


def test_a_step_that_was_cut_off_with_its_file_is_not_the_job_s(tmp_path: Path) -> None:
    (file,) = sources(tmp_path, "rank0.json.gz")
    facts = measure_job([file]).facts
    (whole,) = facts.ranks
    (low, high) = whole.steps.windows[0]
    steps = replace(whole.steps, windows=((low, low + (high - low) // 3),), num_seen=1)
    cut = replace(whole, rank=1, steps=steps)
    assert replace(facts, ranks=(whole, cut)).median_rank is whole
    assert replace(facts, ranks=(cut,)).median_rank is cut
