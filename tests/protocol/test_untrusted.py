"""Files from strangers: pipes and devices are refused at once, numbers are finite or None, JSON has
a bounded depth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.core.codec import convert_json, decode_json
from stepscope.core.toml_text import parse_toml
from stepscope.protocol.untrusted import (
    MAX_DEPTH,
    finite,
    finite_text,
    open_regular,
    parse_json,
    parse_json_lines,
    problem_line,
    read_json_object,
    read_regular,
    whole,
    whole_text,
)
from stepscope.readers import stream
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.readers.run_folder.folder import read_run
from stepscope.readers.run_folder.values import sound_object, sound_row
from tests.live_runs import add_samples, add_steps, row, sample, write_rank, write_run
from tests.wording import mentions


def _special(path: Path, kind: str) -> Path:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = _special(tmp_path / "file", kind)
    with pytest.raises(OSError, match="regular files"):
        open_regular(path)
    with pytest.raises(OSError, match="regular files"):
        read_regular(path, 100)
    assert read_json_object(path) == {}
    assert problem_line(path) is None
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("no room\nleft\n", "left"),
        ("Traceback:\n  File a\n    x()\nKeyError: 'x'\n", "KeyError: 'x'"),
        (
            "Traceback:\n  File a\nCudaError: lost\nSearch for it.\nCompile anew.\n",
            "CudaError: lost",
        ),
        ("  cut", "cut"),
    ],
)
def test_what_went_wrong_is_the_line_of_the_exception(
    tmp_path: Path, text: str, line: str | None
) -> None:
    path = tmp_path / "problem.txt"
    path.write_text(text, encoding="utf-8")
    assert problem_line(path) == line


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_regular(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="larger than 99 bytes"):
        read_regular(path, 99)


def _run(folder: Path) -> Path:
    run = write_run(folder)
    rank = write_rank(run, 0)
    add_steps(rank, [row(step) for step in range(20)])
    add_samples(rank, [sample(step, step) for step in range(3)])
    (rank / "events.jsonl").write_text("{}\n")
    (rank / "problem.txt").write_text("none\n")
    (rank / "window-5.pt.trace.json").write_text("{}")
    return run


FILES = ("run.json", "rank-0/rank.json", "rank-0/steps.jsonl", "rank-0/step_summary.jsonl",
         "rank-0/samples.jsonl", "rank-0/events.jsonl", "rank-0/problem.txt",
         "rank-0/window-5.pt.trace.json")  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", [["diagnose"], ["watch", "--once"], ["compare"]])
def test_a_run_with_a_pipe_or_a_device_in_it_is_refused_by_name(
    tmp_path: Path, command: list[str], name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(tmp_path / "run")
    path = _special(run / name, kind)
    more = [str(_run(tmp_path / "other"))] if command == ["compare"] else []
    assert main([*command, str(run), *more]) == 2
    assert mentions(capsys.readouterr().err, f"{path} is not", "regular file")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "arguments",
    [
        [
            "plan",
            "--model",
            "llama3-8b",
            "--cluster",
            "FILE.toml",
            "--seq",
            "2048",
            "--global-batch",
            "8",
        ],
        [
            "plan",
            "--model",
            "FILE.json",
            "--cluster",
            "1x8xH100",
            "--seq",
            "2048",
            "--global-batch",
            "8",
        ],
        [
            "plan",
            "--model",
            "llama3-8b",
            "--cluster",
            "1x8xH100",
            "--seq",
            "2048",
            "--global-batch",
            "8",
            "--hardware",
            "FILE",
        ],
        ["diagnose", "FILE"],
        ["diagnose", "OTHER", "--budget", "FILE"],
        ["diagnose", "OTHER", "--fail-if", "step_ms > 1", "--baseline", "FILE"],
        ["compare", "FILE", "OTHER"],
        ["report", "FILE.json"],
        ["verify", "--from", "FILE", "--apply", "serial-loader", "--", "python", "x.py"],
        ["fix", "FILE"],
        ["query", "FILE", "select 1"],
        ["export", "perfetto", "FILE", "-o", "out.json"],
    ],
    ids=" ".join,
)
def test_a_pipe_or_a_device_given_to_a_command_is_refused(
    tmp_path: Path, arguments: list[str], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FILE", "FILE.toml", "FILE.json"):
        _special(tmp_path / name, kind)
    (tmp_path / "OTHER").write_text(
        '{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "a", "pid": 1, "tid": 1}]}'
    )
    given = [
        str(tmp_path / word) if word.startswith(("FILE", "OTHER")) else word for word in arguments
    ]
    assert main(given) == 2
    assert str(tmp_path / "FILE") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            b"[NaN, Infinity, -Infinity, 1e999, 9223372036854775808, 7, 1.5]",
            [None, None, None, None, None, 7, 1.5],
        ),
        (b"[1" + b"0" * 5000 + b"]", [None]),
        (b'{"a\xff": "\xed\xa0\x80"}', {"a\ufffd": "\ufffd\ufffd\ufffd"}),
        (b'"\\ud800"', "?"),
        (b"\xef\xbb\xbf[1]", [1]),
        ("[1]".encode("utf-16"), [1]),
    ],
)
def test_json_becomes_values_that_can_be_used(text: bytes, value: object) -> None:
    assert parse_json(text) == value


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"", b"\xff", b"{", b"nul"])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)
    with pytest.raises(ValueError, match=r"\w"):
        decode_json(text, dict[str, int])
    with pytest.raises(ValueError, match=r"\w"):
        convert_json(text, dict[str, int])
    assert list(parse_json_lines(text + b"\n7\n")) == [7]


def test_what_lies_too_deep_is_left_out_or_refused() -> None:
    def depth(value: object) -> int:
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    text = '{"a": 1, "b": ' + "[" * 500 + "]" * 500 + "}"
    assert depth(parse_json(text)["b"]) == MAX_DEPTH - 1
    assert parse_json(text)["a"] == 1
    with pytest.raises(ValueError, match="too deep"):
        parse_json(text, is_strict=True)


def test_a_hole_in_a_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_ZERO_BYTES", 4 << 20)
    path = tmp_path / "t.json"
    path.write_bytes(
        b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "a", "pid": 1, "tid": 1}'
    )
    os.truncate(path, 1 << 40)
    trace = read_trace(Source(path=path, label="t.json"), use_cache=False)
    assert len(trace) == 1
    assert any("zero bytes" in note for note in trace.notes)


@pytest.mark.parametrize("name", ["run.json", "rank-0/rank.json"])
def test_a_run_with_an_endless_file_is_refused_by_name(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(tmp_path / "run")
    os.truncate(run / name, 1 << 40)
    for command in (["diagnose"], ["watch", "--once"]):
        assert main([*command, str(run)]) == 2
        assert mentions(capsys.readouterr().err, str(run / name), "larger", "64 MiB")


@pytest.mark.parametrize("text", ["[NaN]", "[1e999]", "[9223372036854775808]"])
def test_a_strict_reader_refuses_numbers_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not finite"):
        parse_json(text, is_strict=True)


def test_bytes_that_are_no_characters_do_not_refuse_a_typed_file() -> None:
    assert decode_json(b'{"a\xff": 1}', dict[str, int]) == {"a\ufffd": 1}


@pytest.mark.parametrize(
    "text",
    [b"a = [" + b"[" * 5000, b"a = inf", b"a = nan", b"a = 0x" + b"f" * 100, b"a = \xff", b"="],
)
def test_toml_is_finite_and_flat_or_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_toml(text)
    with pytest.raises(ValueError, match="too deep"):
        parse_toml(b".".join([b"a"] * 500) + b" = 1")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, True, None, "7", [], 1e31])
def test_numbers_that_are_none(value: object) -> None:
    assert finite(value) is None
    assert whole(value) is None


@pytest.mark.parametrize(
    "text", ["nan", "inf", "1e999", "1_000", "", "x", "9" * 5000, "0x10", "\u0661"]
)
def test_texts_that_are_no_numbers(text: str) -> None:
    assert finite_text(text) is None
    assert whole_text(text) is None


def test_numbers_and_texts_of_them_are_taken() -> None:
    assert (finite(7), finite_text(" 7.5e1 "), whole(7.0), whole(7.5), whole_text("+7")) == (
        7.0,
        75.0,
        7,
        None,
        7,
    )
    assert (finite(7, 8), whole(7, 8), finite_text("7", 8), whole_text("9", 0, 8)) == (
        None,
        None,
        None,
        None,
    )


def test_what_a_run_says_is_of_its_kind_or_not_there() -> None:
    told = {
        "loaders": 3,
        "models": [{"class": "M"}, 7],
        "machine": {"cpu_count": 0, "cpu_quota": 10**400, "num_threads": 4},
        "host": ["a"],
        "world_size": 0,
        "devices": [{"gpu_util_percent": 1e300, "throttle_reasons": 4}],
        "rss_bytes": -1,
        "new": {"later": 1},
    }
    sound, wrong = sound_object(told)
    assert sound == {
        "loaders": None,
        "models": [{"class": "M"}],
        "machine": {"cpu_count": None, "cpu_quota": None, "num_threads": 4},
        "host": None,
        "world_size": None,
        "devices": [{"gpu_util_percent": None, "throttle_reasons": None}],
        "rss_bytes": None,
        "new": {"later": 1},
    }
    assert wrong[:2] == ("loaders", "machine.cpu_count")
    assert sound_row(("step", "dur_ns", "end_ns"), [1, 2**54, 2**60]) == {
        "step": 1,
        "dur_ns": None,
        "end_ns": 2**60,
    }


def test_true_is_no_number_and_no_text_of_a_run() -> None:
    told = {"exit_code": True, "cpu_ns": False, "cpu_quota": True, "machine": True, "host": False}
    sound, wrong = sound_object(told | {"pin_memory": True})
    assert sound == dict.fromkeys(told) | {"pin_memory": True}
    assert wrong == tuple(told)


def test_a_run_s_wrong_values_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_rank(run, 0, loaders=3, machine={"cpu_count": 0})
    (note,) = [note for note in read_run(run).notes if "rank.json" in note]
    assert note.startswith("rank-0/rank.json: ")
    assert mentions(note, "2 values", "not used: loaders, machine.cpu_count")
