"""Logs that are damaged, or made to hurt: an answer or an error in words, within bounds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.core.recordings.training_log import TrainingLog
from stepscope.errors import StepscopeError
from stepscope.readers import text_lines as training_lines
from stepscope.readers.format import Source
from stepscope.recordings.frameworks import deepspeed_tables, series
from stepscope.recordings.frameworks.log import FRAMEWORKS, is_mine, read
from tests.recording_texts import texts_of
from tests.recordings.frameworks.test_bars import ADVANCED, ROWS, TRAINER, table
from tests.recordings.frameworks.test_deepspeed import BREAKDOWN, COMMS, FLOPS, progress, speed
from tests.recordings.frameworks.test_log import MEGATRON, megatron, nanotron, read_texts, titan

EVERYTHING = "\n".join(
    [
        *MEGATRON,
        *(titan(step, 2.5 * step) for step in range(10, 60, 10)),
        *(nanotron(step, "1.18K") for step in range(1, 9)),
        *BREAKDOWN,
        *(
            line
            for at in range(6)
            for line in (progress(at, f"09:09:{at:02d},313"), speed(at, f"09:09:{at:02d},313"))
        ),
        *COMMS,
        FLOPS,
        table(*ROWS),
        ADVANCED,
        TRAINER,
    ]
).encode()
HOSTILE = (
    "9" * 400,
    "1e999",
    "-1e308",
    "nan",
    "inf",
    "\x00",
    "|" * 3000,
    "{'" * 3000,
    "%|" * 3000,
    " ." * 4000,
    "\r" * 5000,
    "\x1b[" * 3000,
)


def read_bytes(tmp_path: Path, data: bytes) -> TrainingLog | None:
    path = tmp_path / "job.log"
    path.write_bytes(data)
    is_mine(data[: 64 << 10], path.name)
    try:
        return read([Source(path=path, label="job.log")])
    except StepscopeError as problem:
        return (
            None if "job.log" in str(problem) else pytest.fail(f"it does not say where: {problem}")
        )


def sound(log: TrainingLog) -> None:
    for one in log.logs:
        assert one.step_ns is None or one.step_ns > 0
        assert all(phase.ns >= 0 for phase in one.phases)
        assert len(one.steps) <= series.MAX_STEPS
    for recording in texts_of(log):
        assert all(word and value for word, value in recording.pairs)
        assert all(
            len(row) == len(table.columns) for table in recording.tables for row in table.rows
        )


def names_of(log: TrainingLog) -> set[str]:
    return {one.framework for one in log.logs}


def test_every_framework_is_in_the_text_that_is_damaged_here(tmp_path: Path) -> None:
    log = read_bytes(tmp_path, EVERYTHING)
    assert log is not None
    assert names_of(log) == {framework.NAME for framework in FRAMEWORKS}


def test_a_log_cut_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    found = set[str]()
    for end in range(997, len(EVERYTHING), 997):
        log = read_bytes(tmp_path, EVERYTHING[:end])
        assert log is not None
        sound(log)
        assert found <= names_of(log), "what one more line takes away"
        found = names_of(log)
    assert len(found) == len(FRAMEWORKS)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_in_the_place_of_numbers(tmp_path: Path, hostile: str) -> None:
    text = EVERYTHING.decode()
    for victim in (
        "450.0",
        "4096",
        "5,123",
        "38.42",
        "1.18K",
        "20.50",
        "98.25 MB",
        "101.98",
        "0.42354",
        "60/60",
        "0.2051",
        "09:09:03",
    ):
        assert victim in text
        log = read_bytes(tmp_path, text.replace(victim, hostile).encode())
        assert log is not None
        sound(log)
        # What one framework wrote is no reason to leave out another.
        assert len(names_of(log)) >= len(FRAMEWORKS) - 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(EVERYTHING)
    for _ in range(data.draw(st.integers(1, 40))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    log = read_bytes(tmp_path, bytes(damaged))
    assert log is not None
    sound(log)


def test_what_is_kept_does_not_grow_with_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "MAX_STEPS", 100)
    monkeypatch.setattr(series, "MAX_SAMPLES", 64)
    monkeypatch.setattr(deepspeed_tables, "MAX_ROWS", 128)
    peaks = []
    for num in (150, 300):
        path = long_log(tmp_path, num)
        tracemalloc.start()
        log = read([Source(path=path, label="job.log")])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0]
    found = {one.framework: one for one in log.logs}
    assert len(found["Megatron"].steps) == 100
    assert found["Megatron"].num_lines == 300
    assert len(found["Megatron"].phases) == series.MAX_PHASES
    assert any("left out" in note for note in found["DeepSpeed"].notes)


def long_log(folder: Path, num_steps: int) -> Path:
    """With names that are others in each step."""
    path = folder / "job.log"
    with path.open("w") as file:
        for step in range(num_steps):
            file.write(megatron(step, 450 + step % 7, total=10**9) + "\n")
            file.write(f"    name-{step} ......................: (1.00, 2.00)\n")
            file.write(
                f"[Rank {step}] time (ms) | timer_{step}: 1.00 | fwd: 1.00 | bwd: 1.00 | step: "
                "1.00\n"
            )
            file.write(f"comm op: all_gather_{step} | time (ms): 1.0 | msg size: {step}.0 MB | x\n")
            file.write(f"\r {step % 100}%|# | {step}/{step} [00:00<00:00,  1.00it/s]\n")
    return path


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    long = megatron(20, 450) + "x" * (3 << 20)
    log = read_texts(
        tmp_path,
        "\n".join([megatron(10, 450), long, *(megatron(step, 450) for step in range(30, 90, 10))]),
    )
    assert log.step_ns == 450_000_000
    assert any("very long line" in note for note in log.recordings[0].notes)
    lines = list(training_lines.text_lines(iter([b"a" * 20_000, b"b\n", b"c"])))
    assert [(len(text), is_whole) for text, is_whole in lines] == [
        (training_lines.MAX_OUTPUT_LINE_BYTES, False),
        (1, True),
    ]


def test_lines_are_the_same_wherever_blocks_end() -> None:
    text = "a\r\n\x1b[31mred\x1b[0m step\rbar 1\rbar 2\n\nlast"
    whole = [line for line, _ in training_lines.text_lines(iter([text.encode()]))]
    assert whole == ["a", "red step", "bar 1", "bar 2", "last"]
    for size in range(1, 9):
        blocks = (text.encode()[at : at + size] for at in range(0, len(text), size))
        assert [line for line, _ in training_lines.text_lines(blocks)] == whole


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "training-log", "everything.log", EVERYTHING
    yield "training-log", "trainer.log", TRAINER.encode()
    yield "training-log", "deepspeed.log", "\n".join([*BREAKDOWN, *COMMS]).encode()
