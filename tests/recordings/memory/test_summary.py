"""The allocator's printed table: sizes in any unit, several tables, and what is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.memory import MemoryReport
from stepscope.errors import FormatError
from stepscope.recordings.memory.summary import is_mine, read
from stepscope.rules.memory import memory_growth
from tests.field.texts import PASTED
from tests.memory_snapshots import source_of

MIB = 1 << 20
TEXT = (PASTED / "memory_summary.txt").read_text()


def read_text(tmp_path: Path, text: str) -> MemoryReport:
    assert is_mine(text.encode(), "x")
    return read([source_of(tmp_path / "summary.txt", text.encode())])


def test_a_table_is_a_record(tmp_path: Path) -> None:
    (record,) = read_text(tmp_path, f"epoch 1\n{TEXT}done\n").records
    assert (record.device, record.num_ooms, record.num_retries) == (0, 0, 12)
    assert (record.peak_bytes, record.held_bytes) == (50000 * MIB, 40960 * MIB)
    assert (record.reserved_bytes, record.split_bytes) == (76000 * MIB, 26000 * MIB)
    assert record.steps == ()


def test_units_of_older_versions_are_the_same(tmp_path: Path) -> None:
    older = TEXT.replace("MiB", " MB").replace(" 50000  MB", "    50  GB")
    (record,) = read_text(tmp_path, older).records
    assert (record.peak_bytes, record.held_bytes) == (50 << 30, 40960 * MIB)


def test_tables_of_one_device_are_looks_at_it(tmp_path: Path) -> None:
    """Each look holds a GiB more than the one before; another device is another record."""
    looks = [TEXT.replace(" 40960 MiB", f" {41000 + 1024 * i} MiB") for i in range(5)]
    report = read_text(tmp_path, "".join([*looks, TEXT.replace("device ID 0", "device ID 1")]))
    grown, other = report.records
    assert [step.floor_bytes for step in grown.steps] == [
        (41000 + 1024 * i) * MIB for i in range(5)
    ]
    assert (other.device, other.steps) == (1, ())
    advice = memory_growth.advise(Auxiliary(memory=report))
    assert advice is not None
    assert "1073.7 MB" in advice.summary


def test_a_table_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no whole table"):
        read_text(tmp_path, TEXT[: TEXT.index("Allocated memory")])


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "memory-summary", "summary.txt", TEXT.encode()
