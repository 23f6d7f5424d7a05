"""nccl-tests' output as a recording, and what is said of it. All samples are formed by hand after
what the tests print; their rates are those that such links are known for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.system import LinkTest, SystemReport
from stepscope.errors import FormatError
from stepscope.hardware.link_tests import judge_test
from stepscope.pipeline.recording import Recording
from stepscope.readers.detect import detect
from stepscope.readers.format import Source
from stepscope.recordings.nccl import tests as nccl_tests
from stepscope.rules.comms import slow_link
from tests.nccl_logs import two_nodes
from tests.recording_texts import texts_of
from tests.recordings.nccl.test_tests import NEW, OLD
from tests.wording import mentions

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def output(
    device: str,
    num_ranks: int,
    *,
    num_nodes: int = 1,
    start_us: float = 20.0,
    peak: float = 230e9,
    dips: dict[int, float] | None = None,
    largest: int = 1 << 33,
) -> str:
    """all_reduce_perf of a link with this start and rate; `dips` by size, as shares of the rate."""
    lines = ["# Collective test starting: all_reduce_perf", "# nThread 1 nGpus 1 iters: 20"]
    for rank in range(num_ranks):
        node = rank * num_nodes // num_ranks
        lines.append(
            f"#  Rank {rank} Group  0 Pid  7 on  node{node} device  {rank} [0x07] {device}"
        )
    lines.append("#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw")
    size, factor = 1 << 10, 2 * (num_ranks - 1) / num_ranks
    while size <= largest:
        seconds = start_us * 1e-6 + size * factor / (peak * (dips or {}).get(size, 1.0))
        cells = (
            f"{seconds * 1e6:.2f} {size / seconds / 1e9:.2f} {size * factor / seconds / 1e9:.2f} 0"
        )
        lines.append(f"{size} {size // 4} float sum -1 {cells} {cells}")
        size *= 2
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "nccl-tests", "all_reduce_perf.txt", NEW.encode()
    yield "nccl-tests", "old.all_reduce_perf.txt", OLD.encode()
    yield "nccl-tests", "two_nodes.txt", output(H100, 16, num_nodes=2, peak=90e9).encode()


def read(folder: Path, text: str, name: str = "all_reduce_perf.txt") -> LinkTest:
    path = folder / name
    path.write_text(text)
    (test,) = SystemReport(
        recordings=(nccl_tests.read_file(Source(path=path, label=str(path))),)
    ).link_tests
    return test


def advice(folder: Path, text: str) -> list[str]:
    path = folder / "all_reduce_perf.txt"
    path.write_text(text)
    report = SystemReport(recordings=(nccl_tests.read_file(Source(path=path, label=str(path))),))
    return [each.summary for each in slow_link.advise(Auxiliary(system=report))]


def test_rows_are_the_printed_ones(tmp_path: Path) -> None:
    test = read(tmp_path, NEW)

    assert (test.kind, test.num_ranks, test.num_nodes) == ("all_reduce", 4, 1)
    assert [round(row.bus_bytes_per_s / 1e9, 1) for row in test.rows] == [0.1, 3.3, 39.3]
    assert test.rows[1].in_place_s == pytest.approx(16e-6)


def test_a_link_as_it_should_be_is_no_fault(tmp_path: Path) -> None:
    assert advice(tmp_path, output(A100, 8)) == []
    assert advice(tmp_path, output(H100, 8, peak=370e9)) == []
    assert advice(tmp_path, output(H100, 16, num_nodes=2, start_us=60, peak=330e9)) == []
    assert advice(tmp_path, output("GeForce RTX 4090", 2, peak=20e9)) == []


def test_nvlink_that_is_not_used(tmp_path: Path) -> None:
    (summary,) = advice(tmp_path, output(A100, 8, peak=18e9))

    assert mentions(summary, "18 GB/s", "8% of the 222", "PCIe", "32 GB/s")


def test_a_network_that_is_one_slow_port(tmp_path: Path) -> None:
    """16 ranks on 2 nodes at 11 GB/s a card: 100 Gb/s where such machines have 400."""
    (summary,) = advice(tmp_path, output(H100, 16, num_nodes=2, start_us=60, peak=88e9))

    assert "100 Gb/s port" in summary
    assert "(assumed)" in summary


def test_wrong_results_are_a_fault_whatever_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce_perf.txt"
    right, _, last = NEW.partition("     1048576")
    row = "     1048576" + last.replace("39.32      0", "39.32     17")
    for text, words in (
        (right + row, "1 of 3 sizes"),
        (right.split("     1024 ")[0] + row, "1 of 1"),
    ):
        path.write_text(text)
        with Recording([str(path)]) as recording:
            diagnosis = recording.diagnosis
        (found,) = [each for each in diagnosis.advice if each.code == "link-errors"]
        assert mentions(found.summary, "all_reduce", "4 ranks", "wrong results", "1 size")
        assert words in found.evidence[0]


def test_what_was_reached_stands_in_the_first_sentence(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text(output(A100, 8, peak=230e9))
    with Recording([str(path)]) as recording:
        summary = recording.diagnosis.verdict.summary
    assert "all_reduce over 8 ranks: 2" in summary
    assert mentions(summary, "222 of NVLink", "no fault")


def test_a_test_that_stops_too_early_is_not_judged(tmp_path: Path) -> None:
    text = output(A100, 8, peak=230e9, largest=1 << 20)

    assert judge_test(read(tmp_path, text)).is_rising
    assert advice(tmp_path, text) == []


def test_an_unknown_device_has_no_expectation(tmp_path: Path) -> None:
    judgement = judge_test(read(tmp_path, output("NVIDIA X9000", 8, peak=1e9)))

    assert (judgement.share, judgement.usual_start_s) == (None, None)
    assert not judgement.is_slow


def test_bend_start_and_fall(tmp_path: Path) -> None:
    text = output(A100, 8, start_us=25, peak=230e9, dips={1 << 26: 0.3})
    judgement = judge_test(read(tmp_path, text))

    # Half of the rate where bytes take as long as the start: 230e9 / 1.75 * 25 us = 3.3 MB.
    assert judgement.half_bytes == 1 << 22
    assert judgement.floor_s == pytest.approx(25e-6, rel=0.01)
    assert [(a.size_bytes, b.size_bytes) for a, b in judgement.dips] == [(1 << 25, 1 << 26)]
    (summary,) = advice(tmp_path, text)
    assert "falls from" in summary
    assert "67.1 MB" in summary


def test_a_slow_start_is_told(tmp_path: Path) -> None:
    slow = judge_test(read(tmp_path, output(A100, 8, start_us=400)))
    usual = judge_test(read(tmp_path, output(A100, 8, start_us=25)))

    assert slow.is_slow_start
    assert not usual.is_slow_start


def test_both_are_read_of_a_log_of_nccl_with_the_tests_in_it(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(two_nodes() + NEW)

    names = {each.name for each in detect(Source(path=path, label=str(path)), [])}

    assert {"nccl-log", "nccl-tests"} <= names


def test_a_header_without_rows_is_said(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no line"):
        read(tmp_path, NEW.split("        1024")[0])


def test_the_report_has_each_size_against_the_link(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text(output(A100, 8))
    (text,) = texts_of(
        SystemReport(recordings=(nccl_tests.read_file(Source(path=path, label=str(path))),))
    )

    lines = dict(text.pairs)
    assert mentions(lines["bus bandwidth"], "222 of NVLink", "NVIDIA A100 SXM 80 GB", "300 GB/s")
    assert len(text.tables[0].rows) == 24
    assert text.tables[0].rows[0][-1] == "104%"


def test_a_time_that_is_next_to_nothing_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "old.all_reduce_perf.txt"
    path.write_text(OLD.replace("25.10", "1e-320"))
    (test,) = nccl_tests.read_file(Source(path=path, label=path.name)).link_tests
    assert [row.seconds for row in test.rows] == [pytest.approx(24.90e-6), pytest.approx(27.10e-6)]
