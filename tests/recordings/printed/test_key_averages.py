"""The table that a profiler prints: kernels, calls and operators, whatever columns it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.kernels import KernelRecording, KernelReport
from stepscope.errors import FormatError
from stepscope.readers.detect import formats_of
from stepscope.readers.format import Source
from stepscope.recordings.nsys import launch_overhead
from stepscope.recordings.printed.key_averages import CALLS, COPIES, OPERATORS, read
from stepscope.rules.advice import advise
from tests.wording import any_mentions

COLUMNS = ("Name", "Self CPU %", "Self CPU", "CPU total", "Self CUDA", "CUDA total", "# of Calls")
ROWS = (
    ("aten::mm", "5.00%", "1.203ms", "2.000ms", "0.000us", "121.000ms", "900"),
    ("cudaLaunchKernel", "60.00%", "400.000ms", "400.000ms", "0.000us", "0.000us", "90900"),
    ("cudaStreamSynchronize", "30.00%", "800.000ms", "800.000ms", "--", "--", "500"),
    ("ampere_sgemm_128x64_tn", "0.00%", "0.000us", "0.000us", "121.000ms", "121.000ms", "900"),
    ("void at::native::vec_kernel<4>...", "0.00%", "0.000us", "0.000us", "99.000ms", "1", "90000"),
    ("Memcpy HtoD (Pageable -> Device)", "0.00%", "0.000us", "0.000us", "2.000ms", "2", "3"),
    ("my step", "1.00%", "9.000us", "1.000ms", "0.000us", "0.000us", "3"),
    ("my step", "0.00%", "0.000us", "0.000us", "220.000ms", "220.000ms", "3"),
)
WIDTH = 36


def printed(columns: tuple[str, ...] = COLUMNS, rows: tuple[tuple[str, ...], ...] = ROWS) -> str:
    """As torch sets it: right-aligned, two spaces between columns, a rule before and after."""
    rule = "  ".join("-" * WIDTH for _ in columns) + "  "
    set_rows = ["  ".join(f"{cell:>{WIDTH}}" for cell in row) + "  " for row in (columns, *rows)]
    lines = [rule, set_rows[0], rule, *set_rows[1:], rule]
    return "\n".join([*lines, "Self CPU time total: 1.2s", "Self CUDA time total: 220.0ms", ""])


def read_text(tmp_path: Path, text: str) -> KernelRecording:
    path = tmp_path / "table.txt"
    path.write_text(text)
    source = Source(path=path, label="table.txt")
    (format_,) = formats_of(text.encode(), source.label)
    assert format_.name == "profiler-table"
    (recording,) = read([source]).recordings
    return recording


def test_a_table_is_kernels_calls_copies_and_operators(tmp_path: Path) -> None:
    recording = read_text(tmp_path, f"epoch 1\n{printed()}\ndone\n")
    assert [(row.name, row.count, row.total_ns) for row in recording.totals] == [
        ("ampere_sgemm_128x64_tn", 900, 121e6),
        ("void at::native::vec_kernel<4>...", 90000, 99e6),
    ], "a range of the user's has time on the device and is no kernel"
    others = {other.of: [row.name for row in other.rows] for other in recording.others}
    assert others == {
        CALLS: ["cudaStreamSynchronize", "cudaLaunchKernel"],
        COPIES: ["Memcpy HtoD (Pageable -> Device)"],
        OPERATORS: ["aten::mm", "my step"],
    }
    assert recording.notes == ()


def test_it_is_judged_as_the_tables_of_nsys_are(tmp_path: Path) -> None:
    auxiliary = Auxiliary(kernels=KernelReport(recordings=(read_text(tmp_path, printed()),)))
    codes = {each.code for each in advise(auxiliary)}
    assert codes == {"launch-overhead", "device-sync", "fp32-matmul"}


def test_empty_cells_are_seen_by_their_place(tmp_path: Path) -> None:
    columns = (*COLUMNS[:-1], "Input Shapes", "# of Calls")
    rows = tuple((*row[:-1], "", row[-1]) for row in ROWS)
    recording = read_text(tmp_path, printed(columns, rows))
    assert [row.count for row in recording.totals] == [900, 90000]


def test_a_second_table_is_not_counted_again(tmp_path: Path) -> None:
    recording = read_text(tmp_path, printed() + printed())
    assert len(recording.totals) == 2
    assert any_mentions(recording.notes, "1 more table")


def test_a_table_of_the_host_alone_is_not_judged(tmp_path: Path) -> None:
    columns, rows = COLUMNS[:4], tuple(row[:4] for row in ROWS[:2])
    recording = read_text(
        tmp_path, printed((*columns, "# of Calls"), tuple((*row, "3") for row in rows))
    )
    assert recording.totals == ()
    auxiliary = Auxiliary(kernels=KernelReport(recordings=(recording,)))
    said = launch_overhead.advise(auxiliary)
    assert said is not None
    assert "no time on a device" in getattr(said, "reason", "")


@pytest.mark.parametrize("size", range(0, len(printed()), 97))
def test_a_table_that_breaks_off_is_read_or_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.txt"
    path.write_text(printed()[:size])
    with suppress(FormatError):
        assert read([Source(path=path, label="cut.txt")]).recordings


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "profiler-table", "table.txt", printed().encode()
