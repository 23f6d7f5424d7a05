"""rocm-bandwidth-test's matrices, and the pairs that copy more slowly than they could."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.system import SystemRecording, SystemReport
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.rocm import slow_pair
from stepscope.recordings.rocm.bandwidth_test import is_mine, read_file
from tests.field.texts import PASTED
from tests.wording import mentions

TEXT = (PASTED / "rocm_bandwidth.txt").read_text()
EVEN = TEXT.replace("24.100", "49.100")


def read_text(tmp_path: Path, text: str) -> SystemRecording:
    path = tmp_path / "bandwidth.txt"
    path.write_text(text)
    assert is_mine(text.encode(), "x")
    return read_file(Source(path=path, label="bandwidth.txt"))


def said(tmp_path: Path, text: str) -> list[str]:
    report = SystemReport(recordings=(read_text(tmp_path, text),))
    return [advice.summary for advice in slow_pair.advise(Auxiliary(system=report))]


def test_one_way_copies_between_places_are_read(tmp_path: Path) -> None:
    (test,) = read_text(tmp_path, TEXT).copy_tests
    rates = {
        (copy.source[0], copy.target[0]): (copy.bytes_per_s / 1e9, copy.is_between_devices)
        for copy in test.copies
    }
    assert rates == {
        ("0", "1"): (28.0, False),
        ("0", "2"): (28.1, False),
        ("1", "0"): (28.2, False),
        ("2", "0"): (28.1, False),
        ("1", "2"): (49.0, True),
        ("2", "1"): (24.1, True),
    }, "neither a place to itself, nor the table of copies both ways"


def test_a_link_that_is_slow_one_way_and_one_through_the_host(tmp_path: Path) -> None:
    through, one_way = said(tmp_path, TEXT)
    assert mentions(through, "1 pair", "no faster than the host")
    assert mentions(one_way, "1 pair", "one way")


def test_even_links_are_left_alone(tmp_path: Path) -> None:
    assert said(tmp_path, EVEN) == []


def test_a_device_in_a_slow_slot(tmp_path: Path) -> None:
    (slow,) = said(tmp_path, EVEN.replace("28.000      28.100", "28.000      14.100"))
    assert mentions(slow, "1 device", "more slowly")


def test_a_text_without_the_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no table of copies"):
        read_text(tmp_path, TEXT[: TEXT.index("Unidirectional")])


def test_an_index_of_thousands_of_digits_is_no_device(tmp_path: Path) -> None:
    header = next(line for line in TEXT.splitlines() if line.split()[:1] == ["D/D"])
    text = TEXT.replace(header, header.rstrip() + " " + "9" * 5000)
    (test,), (plain,) = (read_text(tmp_path, each).copy_tests for each in (text, TEXT))
    assert test.copies == plain.copies


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "rocm-bandwidth-test", "bandwidth.txt", TEXT.encode()
