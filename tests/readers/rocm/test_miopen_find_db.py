"""MIOpen's databases: its find-db in both orders, its perf-db, and damage to them."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from stepscope.cli.main import main
from stepscope.core.recordings.find_db import ConvProblem, FindDb, together_of
from stepscope.core.recordings.kernels import KernelReport
from stepscope.errors import FormatError, StepscopeError
from stepscope.readers import stream
from stepscope.readers.auxiliary import read_report
from stepscope.readers.detect import formats_of, head_of
from stepscope.readers.rocm import miopen_find_db, miopen_perf_db
from stepscope.readers.rocm.miopen_keys import problem_of, solvers_of
from stepscope.readers.source import Source
from stepscope.report.recordings.text import RecordingText
from tests.miopen_files import GEMM, IGEMM, LAST_KEY, NAIVE, PLAIN_KEY, line, old_solver, solver
from tests.recordings import texts_of
from tests.shared_data import ROOT
from tests.wording import any_mentions, mentions

VALIDATOR = Draft202012Validator(json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text()))
NAME = "gfx90a6e.HIP.3_2_0.ufdb.txt"


def written(tmp_path: Path, data: str | bytes, name: str = NAME) -> Source:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return Source(path=path, label=str(path))


def read(tmp_path: Path, data: str | bytes, name: str = NAME) -> tuple[FindDb, RecordingText]:
    source = written(tmp_path, data, name)
    assert [each.name for each in formats_of(head_of(source), name)] == ["miopen-find-db"]
    report = miopen_find_db.read([source])
    (file,), (recording,) = report.find_dbs, texts_of(report)
    return file, recording


def problem(key: str) -> ConvProblem:
    found = problem_of(key)
    assert found is not None, key
    return found


def test_a_forward_key_is_input_then_output() -> None:
    found = problem("192-13-14-3x5-384-7-12-1024-1x2-2x1-1x3-0-NCHW-FP32-F")
    assert found == ConvProblem(
        direction="F",
        batch=1024,
        in_channels=192,
        out_channels=384,
        in_size=(13, 14),
        out_size=(7, 12),
        window=(3, 5),
        padding=(1, 2),
        stride=(2, 1),
        dilation=(1, 3),
        layout="NCHW",
        dtype="FP32",
    )


@pytest.mark.parametrize("way", ["B", "W"])
def test_a_gradients_key_is_output_then_input(way: str) -> None:
    forward = problem("512-13-13-1x1-1000-13-13-16-0x0-1x1-1x1-0-NCHW-FP16-F")
    gradient = problem(f"1000-13-13-1x1-512-13-13-16-0x0-1x1-1x1-0-NCHW-FP16-{way}")
    assert (
        (gradient.in_channels, gradient.out_channels)
        == (forward.in_channels, forward.out_channels)
        == (512, 1000)
    )
    assert gradient.direction == way


def test_three_dimensions_have_depth_first() -> None:
    found = problem("1-4-5-6-1x2x3-512-7-8-9-128-0x1x2-1x2x3-1x1x2-0-NCDHW-FP32-F")
    assert (found.in_size, found.out_size, found.window) == ((4, 5, 6), (7, 8, 9), (1, 2, 3))
    assert (found.padding, found.stride, found.dilation, found.batch) == (
        (0, 1, 2),
        (1, 2, 3),
        (1, 1, 2),
        128,
    )
    last = problem("1-4-5-6-1x2x3-512-7-8-9-128-0x1x2-1x2x3-1x1x2-0-NDHWC-NDHWC-NDHWC-FP32-F")
    assert last.layout == "NDHWC"
    assert last.sizes == found.sizes


def test_layouts_groups_types_and_casts_are_told() -> None:
    assert problem(LAST_KEY).layout == "NHWC"
    assert problem(LAST_KEY).sizes == problem(PLAIN_KEY).sizes
    mixed = problem(
        "576-4-4-1x1-192-4-4-8-1x1-2x2-3x3-0-NHWC-NCHW-NCHW-INT8INT8FP32-F_g32_ciFP8_coBFP8"
    )
    assert (mixed.layout, mixed.dtype, mixed.groups) == ("NHWC-NCHW-NCHW", "INT8INT8FP32", 32)
    assert mixed.casts == ("ciFP8", "coBFP8")
    assert "32 groups" in mixed.words
    assert "stride 2x2, dilation 3x3" in mixed.words


@pytest.mark.parametrize(
    "key",
    [
        "",
        "256-28-28-3x3",
        "256-28-28-3x3-256-28-28-64-1x1-1x1-1x1-0-NCHW-BF16-X",
        "256-28-28-3x3-256-28-28-64-1x1-1x1-1x1-0-NCHW-NCHW-BF16-F",
        "0-28-28-3x3-256-28-28-64-1x1-1x1-1x1-0-NCHW-BF16-F",
        "256-28-28-3x3-256-28-28-64-1x1-0x1-1x1-0-NCHW-BF16-F",
        "256-28-28-3x3x3-256-28-28-64-1x1-1x1-1x1-0-NCHW-BF16-F",
        "9999999999999-28-28-3x3-256-28-28-64-1x1-1x1-1x1-0-NCHW-BF16-F",
        "256-28-28-3x3-256-28-28-64-1x1-1x1-1x1-0-NCHW-BF16-F_g0",
        "256-28-28-3x3-256-28-28-64--1x1-1x1-1x1-0-NCHW-BF16-F",
    ],
)
def test_what_is_no_key_is_none(key: str) -> None:
    assert problem_of(key) is None


def test_solvers_are_sorted_in_both_orders() -> None:
    new, odd, untimed = solvers_of(f"{NAIVE};{GEMM};{IGEMM}")
    assert [one.name for one in new] == [
        "ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC",
        "GemmFwdRest",
        "ConvDirectNaiveConvFwd",
    ]
    assert (new[1].time_ms, new[1].workspace_bytes, new[1].algorithm) == (0.4, 7225344, "GEMM")
    assert (odd, untimed) == (0, 0)
    old, odd, untimed = solvers_of(
        ";".join(
            [
                old_solver("ConvDirectNaiveConvFwd", 4.0, 0, "Direct"),
                old_solver("GemmFwdRest", 0.4, 7225344, "GEMM"),
            ]
        )
    )
    assert old == new[1:]
    assert (odd, untimed) == (0, 0)
    (multipass,), *_ = solvers_of(
        solver("ConvWinograd3x3MultipassWrW<3-2>", 0.1, 9, "Winograd", "W")
    )
    assert multipass.name == "ConvWinograd3x3MultipassWrW<3-2>"


@pytest.mark.parametrize("ms", ["-0.32", "0", "nan", "-inf", "inf", "1e300", "-1e-5"])
def test_times_that_can_be_none_are_counted(ms: str) -> None:
    found, odd, untimed = solvers_of(f"{solver('ConvAsm1x1U', ms, 0, 'Direct')};{GEMM}")
    assert [one.name for one in found] == ["GemmFwdRest"]
    assert (odd, untimed) == (0, 1)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "ConvAsm1x1U",
        "ConvAsm1x1U:0.1",
        "ConvAsm1x1U:0.1,0,miopenConvolutionFwdAlgoImplicitGE",
        "ConvAsm1x1U:abc,0,miopenConvolutionFwdAlgoDirect",
        "ConvAsm1x1U:0.1,-5,miopenConvolutionFwdAlgoDirect",
        "ConvAsm1x1U:0.1,9999999999999999,miopenConvolutionFwdAlgoDirect",
        "Conv\x1b[2J:0.1,0,miopenConvolutionFwdAlgoDirect",
        "ConvAsm1x1U:16,1,1,4,8,2",
    ],
)
def test_entries_that_are_no_solvers_are_counted(entry: str) -> None:
    found, odd, untimed = solvers_of(f"{GEMM};{entry}")
    assert [one.name for one in found] == ["GemmFwdRest"]
    assert (odd, untimed) == (1, 0)


def test_a_file_tells_its_convolutions(tmp_path: Path) -> None:
    weights = PLAIN_KEY[:-1] + "W_g32"
    text = (
        line(PLAIN_KEY, GEMM, NAIVE)
        + line(LAST_KEY, IGEMM, NAIVE)
        + line(weights, solver("ConvDirectNaiveConvWrw", 9.5, 0, "Direct", "W"))
    )
    file, recording = read(tmp_path, text)
    assert (file.device, file.num_units, file.is_system) == ("gfx90a", 110, False)
    assert len(file.searched) == 3
    lines = dict(recording.lines)
    assert mentions(lines["convolutions"], "3:", "2 forward", "1 gradient")
    assert mentions(lines["nothing better"], "naive kernel for 1", "any size for 1")
    assert mentions(
        lines["workspace"], "1 need", "7.2 MB", "3x3", "256 -> 256", "28x28", "batch 64"
    )
    assert lines["without it"].startswith("1 of these")
    assert mentions(lines["channels_last"], "1 take 1.5 times", "0 with it")
    assert recording.tables[0].rows[0][:2] == ("64x256x28x28 256x3x3 g32 BF16 NCHW W", "9.500")
    assert recording.tables[0].rows[1][2:4] == ("7.2", "10.0 x")
    assert recording.notes == ()


def test_amds_own_file_is_told_and_gives_way_to_the_users(tmp_path: Path) -> None:
    theirs, recording = read(
        tmp_path, line(PLAIN_KEY, GEMM) + line(LAST_KEY, IGEMM), "gfx1030_36.HIP.fdb.txt"
    )
    assert (theirs.device, theirs.num_units, theirs.is_system) == ("gfx1030", 36, True)
    assert "AMD's own times" in dict(recording.lines)["whose"]
    mine, _ = read(tmp_path, line(PLAIN_KEY, NAIVE))
    whole = together_of([theirs, mine])
    assert whole is not None
    (both,) = whole.by_sizes.values()
    assert {one.problem.layout: one.best.name for one in both} == {
        "NCHW": "ConvDirectNaiveConvFwd",
        "NHWC": "ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC",
    }


@pytest.mark.parametrize("pack", [bz2.compress, gzip.compress])
def test_packed_files_are_the_same(tmp_path: Path, pack: object) -> None:
    text = line(PLAIN_KEY, GEMM) * 2 + line(LAST_KEY, IGEMM)
    plain, _ = read(tmp_path, text)
    packed, recording = read(tmp_path, pack(text.encode()), NAME)  # type: ignore[operator]
    assert packed.searched == plain.searched
    (note,) = recording.notes
    assert mentions(note, str(tmp_path / NAME), "1 convolution", "left out")


def test_damage_is_counted_and_the_rest_read(tmp_path: Path) -> None:
    good = line(PLAIN_KEY, GEMM, NAIVE).encode()
    cut = line(LAST_KEY, IGEMM, GEMM).encode()[:-30]
    bad = [
        b"\xff\xfe\x00garbage\n",
        b"no key at all\n",
        line("conv-bias-relu-plan", GEMM).encode(),
        line(PLAIN_KEY[:-1] + "B", solver("ConvAsm1x1U", "-1", 0, "Direct", "B")).encode(),
        b"\n",
        line(PLAIN_KEY[:-1] + "W", GEMM, *["x" * 100] * 1000).encode(),
    ]
    file, recording = read(tmp_path, good + b"".join(bad) + cut)
    assert [one.problem.direction for one in file.searched] == ["F", "W", "F"]
    notes = " ".join(recording.notes)
    for words in (
        ("1 line", "64 KiB", "cut"),
        ("3 line", "no convolution"),
        ("1 solver", "zero"),
        ("1 convolution", "no solver"),
        ("cut off",),
    ):
        assert mentions(notes, *words), words


def test_many_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(miopen_find_db, "MAX_PROBLEMS", 5)
    text = "".join(line(PLAIN_KEY.replace("-64-", f"-{batch}-"), GEMM) for batch in range(1, 10))
    file, recording = read(tmp_path, text)
    assert len(file.searched) == 5
    assert mentions(recording.notes[0], "4 line", "beyond")


def test_a_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "EXPANSION_FREE_BYTES", 1 << 20)
    file, recording = read(
        tmp_path, bz2.compress(line(PLAIN_KEY, GEMM).encode() + b" " * (8 << 20))
    )
    assert len(file.searched) == 1
    assert any_mentions(recording.notes, "expands", "200 times")


def test_nothing_to_read_is_one_clear_error(tmp_path: Path) -> None:
    source = written(tmp_path, line(PLAIN_KEY, solver("ConvAsm1x1U", "-1", 0, "Direct")))
    with pytest.raises(FormatError, match=r"find-db.*ufdb\.txt"):
        miopen_find_db.read([source])


def test_mutilated_lines_never_break_the_reader(tmp_path: Path) -> None:
    whole = bytearray((line(PLAIN_KEY, GEMM, NAIVE) + line(LAST_KEY, IGEMM)).encode() * 3)
    rolls = random.Random(7)
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(8):
            damaged[rolls.randrange(len(damaged))] = rolls.randrange(256)
        source = written(tmp_path, bytes(damaged[: rolls.randrange(1, len(damaged))]))
        for name in ("miopen-find-db", "miopen-perf-db"):
            with suppress(StepscopeError):
                read_report(name, [source])


def database(tmp_path: Path, name: str, *queries: str) -> Source:
    path = tmp_path / name
    with sqlite3.connect(path) as base:
        for query in queries:
            base.execute(query)
    base.close()
    return Source(path=path, label=str(path))


PERF_DB = (
    "CREATE TABLE IF NOT EXISTS `config` (`id` INTEGER PRIMARY KEY ASC, `layout` TEXT NOT NULL)",
    (
        "CREATE TABLE IF NOT EXISTS `perf_db` (`id` INTEGER PRIMARY KEY ASC, `solver` TEXT, "
        "`config` "
        "INTEGER, `params` TEXT)"
    ),
    "INSERT INTO config (layout) VALUES ('NCHW'), ('NHWC')",
    (
        "INSERT INTO perf_db (solver, config, params) VALUES ('ConvAsm1x1U', 1, '16,1'), "
        "('ConvAsm1x1U', 2, '8'), ('X', 2, '3')"
    ),
)
"""src/sqlite_db.cpp and src/include/miopen/sqlite_db.hpp."""


@pytest.mark.parametrize("pack", [bytes, bz2.compress])
def test_a_perf_db_is_told(tmp_path: Path, pack: object) -> None:
    source = database(tmp_path, "gfx90a6e_1.0.0.udb", *PERF_DB)
    assert isinstance(source.path, Path)
    source.path.write_bytes(pack(source.path.read_bytes()))  # type: ignore[operator]
    assert [each.name for each in formats_of(head_of(source), source.path.name)] == [
        "miopen-perf-db"
    ]
    (recording,) = texts_of(KernelReport(recordings=(miopen_perf_db.read_file(source),)))
    assert dict(recording.lines)["convolutions"] == "2, with 3 tuned solvers"
    assert "no times" in dict(recording.lines)["times"]
    assert recording.tables[0].rows == (("ConvAsm1x1U", "2"), ("X", "1"))


def test_a_perf_db_in_text_and_a_kernel_cache_are_told(tmp_path: Path) -> None:
    source = written(
        tmp_path,
        line(PLAIN_KEY, "ConvAsm1x1U:16,1,1", "ConvAsm3x3U:2,4") + "junk\n",
        "gfx906_60.HIP.udb.txt",
    )
    assert [each.name for each in formats_of(head_of(source), "gfx906_60.HIP.udb.txt")] == [
        "miopen-perf-db"
    ]
    (recording,) = texts_of(KernelReport(recordings=(miopen_perf_db.read_file(source),)))
    assert dict(recording.lines)["convolutions"] == "1, with 2 tuned solvers"
    (note,) = recording.notes
    assert mentions(note, "1 line", "left out")
    kernels = (
        "CREATE TABLE `kern_db` (`id` INTEGER PRIMARY KEY ASC, `kernel_name` TEXT, `kernel_blob` "
        "BLOB)"
    )
    cache = database(
        tmp_path,
        "gfx90a6e.ukdb",
        kernels,
        "INSERT INTO kern_db (kernel_name) VALUES ('naive_conv.cpp.o')",
    )
    (recording,) = texts_of(KernelReport(recordings=(miopen_perf_db.read_file(cache),)))
    ((label, words),) = recording.lines
    assert label == "compiled kernels"
    assert mentions(words, "1,", "sooner", "no faster")


def test_a_damaged_perf_db_is_one_clear_error(tmp_path: Path) -> None:
    source = database(tmp_path, "miopen.udb", *PERF_DB)
    assert isinstance(source.path, Path)
    data = source.path.read_bytes()
    source.path.write_bytes(data[: len(data) // 2])
    with pytest.raises(StepscopeError, match=r"miopen\.udb.*Copy it again") as caught:
        miopen_perf_db.read_file(source)
    assert "nsys" not in str(caught.value)


def test_diagnose_tells_a_find_db_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path, line(PLAIN_KEY, GEMM, NAIVE) + line(LAST_KEY, IGEMM))
    assert main(["diagnose", str(source.path), "--no-cache", "-v"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert mentions(shown, "untuned-convolution 80 %", "1 of 2 convolutions", "find-db")
    assert mentions(shown, "NHWC ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC", "0.100 ms")
    assert "MIOPEN_FIND_MODE=NORMAL" in shown
    assert main(["diagnose", str(source.path), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(told)
    assert [one["code"] for one in told["advice"]] == ["untuned-convolution"]
    assert told["advice"][0]["weight"] == pytest.approx(0.8)
    assert told["findings"] == []


def test_diagnose_advises_nothing_on_amds_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path, line(PLAIN_KEY, NAIVE), "gfx906_60.HIP.fdb.txt")
    assert main(["diagnose", str(source.path), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["advice"] == []
    assert told["recordings"][0]["format"] == "miopen-find-db"


def samples() -> Iterator[tuple[str, str, bytes]]:
    text = line(PLAIN_KEY, GEMM, NAIVE) + line(LAST_KEY, IGEMM)
    yield "miopen-find-db", "gfx90a6e.HIP.3_2_0.ufdb.txt", text.encode()
    with TemporaryDirectory() as folder:
        perf_db = database(Path(folder), "gfx90a6e.udb", *PERF_DB)
        assert isinstance(perf_db.path, Path)
        yield "miopen-perf-db", "gfx90a6e.udb", perf_db.path.read_bytes()
