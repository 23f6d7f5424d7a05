"""nccl-tests' figures in words: each size against what the link usually gives."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.api import SystemRecording, Table, table
from stepscope.core.numbers import size_words
from stepscope.hardware.link_tests import LinkJudgement, judge_test, reached_words, times_words


def lines(recording: SystemRecording) -> Iterator[tuple[str, str]]:
    for test in recording.link_tests:
        device = test.device or "a device that is not named"
        yield test.kind, f"{test.num_ranks} x {device} on {times_words(test.num_nodes)}"
        if test.num_wrong:
            yield "WRONG RESULTS", f"at {test.num_wrong} sizes: a broken link or device"
        if not test.rows:
            continue
        judgement = judge_test(test)
        yield "bus bandwidth", reached_words(judgement)
        yield "half of it", f"from {size_words(judgement.half_bytes)} on: there the curve bends"
        yield "start", _start(judgement)
        for before, row in judgement.dips[:4]:
            was = f"{before.bus_bytes_per_s / 1e9:.3g} GB/s at {size_words(before.size_bytes)}"
            now = f"{row.bus_bytes_per_s / 1e9:.3g} at {size_words(row.size_bytes)}"
            yield "falls", f"from {was} to {now}"


def _start(judgement: LinkJudgement) -> str:
    words = f"{judgement.floor_s * 1e6:.3g} us"
    if judgement.usual_start_s is None:
        return words
    return f"{words}; usual is at most {judgement.usual_start_s * 1e6:.3g}"


def tables(recording: SystemRecording) -> Iterator[Table]:
    for test in (each for each in recording.link_tests if each.rows):
        judgement = judge_test(test)
        expected = judgement.expected_bytes_per_s
        rows = tuple(
            (
                size_words(row.size_bytes),
                f"{row.seconds * 1e6:.4g}",
                "-" if row.in_place_s is None else f"{row.in_place_s * 1e6:.4g}",
                f"{row.bus_bytes_per_s / 1e9:.3g}",
                "-" if expected is None else f"{row.bus_bytes_per_s / expected:.0%}",
            )
            for row in reversed(test.rows)
        )
        yield table(
            f"{test.kind}, each size, the largest first",
            ">size|>us|>us in place|>bus GB/s|>of the link's",
            rows,
        )
