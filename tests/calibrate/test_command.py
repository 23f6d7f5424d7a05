"""`stepscope calibrate` from its options to its file, on the CPU, with shapes so small that it
takes no time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stepscope.calibrate.sweep import Sweep
from stepscope.cli.main import main
from stepscope.core.hardware import ProbeFile
from stepscope.readers.hardware_file import read_hardware
from tests.cli.test_progress import Terminal
from tests.wording import mentions

TINY = Sweep(
    gemms=((16, 16, 16), (16, 32, 16), (32, 32, 32), (64, 16, 32)),
    attention=((1, 2, 16, 8),),
    copies=(1024,),
    host_copies=(),
    collectives=(1024, 4096, 16384),
    point_s=0.0,
    longest_call_s=10.0,
    collective_s=1.0,
    warm_s=0.0,
    sustained_s=0.0,
)
TESTS = """\
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  1 on  node-a device  0 [0x07] NVIDIA \x1b[31mH100
#  Rank  1 Group  0 Pid  2 on  node-a device  1 [0x08] NVIDIA H100
        1024           256     float     sum      -1    10.00    0.10    0.10      0    10.00    0.10    0.10    N/A
     1048576        262144     float     sum      -1    20.00   52.43   52.43      0    20.00   52.43   52.43    N/A
   104857600      26214400     float     sum      -1  1010.00  103.82  103.82      0  1010.00  103.82  103.82    N/A
"""  # noqa: E501


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.calibrate.sweep.sweep_of", lambda kind, quick: TINY)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def failed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["calibrate", *options]) == 2
    return capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
def test_a_machine_is_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    timed = ProbeFile(device="x", torch="2.1", rows=())
    asked: list[str] = []

    def probe_files(device: str) -> tuple[ProbeFile, ...]:
        asked.append(device)
        return (timed,)

    monkeypatch.setattr("stepscope.readers.probe_file.probe_files", probe_files)
    tmp_path = tmp_path / "here"
    assert main(["calibrate", "--device", "cpu", "--plot", "machine.svg"]) == 0
    printed = capsys.readouterr()
    assert "Written to stepscope-hardware.json" in printed.out
    assert "Drawn in machine.svg" in printed.out
    assert "fp32" in printed.out
    assert "measuring matrix products" in printed.err
    assert "left" not in printed.err, "no bar off a terminal"
    found = read_hardware(tmp_path / "stepscope-hardware.json")
    assert found.machine.kind == "cpu"
    assert asked == [found.machine.device]
    assert found.operators == (timed,)
    assert found.machine.num_ranks is None, "no ranks were measured"
    assert found.collectives == ()
    assert len(found.gemms) == 8
    assert {point.precision for point in found.sustained} == {"fp32", "bf16"}
    assert "<svg" in (tmp_path / "machine.svg").read_text()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "machine.svg",
        "stepscope-hardware.json",
    ]


@pytest.mark.usefixtures("tiny")
def test_a_terminal_is_shown_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["calibrate", "--device", "cpu", "--out", str(tmp_path / "machine.json")]) == 0
    drawn = terminal.getvalue()
    assert "measuring matrix products" in drawn
    assert "left" in drawn
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1


def test_nccl_tests_become_a_hardware_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests, out = tmp_path / "tests.txt", tmp_path / "out.json"
    tests.write_text(TESTS)
    assert (
        main(
            [
                "calibrate",
                "--nccl-tests",
                str(tests),
                "--out",
                str(out),
                "--plot",
                str(tmp_path / "x.png"),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "all_reduce, 2 ranks, node" in printed
    assert "\x1b" not in printed
    found = read_hardware(out)
    fit = found.collective("all_reduce", 2, "node")
    assert fit is not None
    # Two ranks: two steps, and the bus carries what the message has. 10 us, and 1 MB in another 10.
    assert fit.regions[0].alpha_s == pytest.approx(5e-6, rel=0.05)
    assert fit.regions[0].beta_bytes_per_s == pytest.approx(104.86e9, rel=0.05)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tiny")
def test_nccl_tests_join_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests, out = tmp_path / "tests.txt", tmp_path / "out.json"
    tests.write_text(TESTS)
    assert main(["calibrate", "--device", "cpu", "--out", str(out)]) == 0
    alone = read_hardware(out)
    assert main(["calibrate", "--nccl-tests", str(tests), "--out", str(out)]) == 0
    assert mentions(capsys.readouterr().err, f"{out} keeps")
    both = read_hardware(out)
    assert both.gemms == alone.gemms
    assert both.machine.device == alone.machine.device
    assert [point.size_bytes for point in both.collectives] == [1024, 1048576, 104857600]


def test_a_stranger_at_out_is_not_overwritten_by_tests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests, out = tmp_path / "tests.txt", tmp_path / "notes.txt"
    tests.write_text(TESTS)
    out.write_text("my notes")
    said = failed(capsys, "--nccl-tests", str(tests), "--out", str(out))
    assert mentions(said, str(out), "a hardware file")
    assert out.read_text() == "my notes"


def test_ranks_are_started_and_their_file_joined(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The ranks are played by a script that writes what nccl-tests would have given; what they are
    told is looked at."""
    tests, out = tmp_path / "tests.txt", tmp_path / "out.json"
    tests.write_text(TESTS)
    play = f"""
import json, os, sys
from stepscope.cli.main import main
at = sys.argv.index("--out")
called = [sys.argv[1:at], os.environ["STEPSCOPE_CALIBRATE_QUIET"]]
json.dump(called, open({str(tmp_path / "told.json")!r}, "w"))
sys.exit(main(["calibrate", "--nccl-tests", {str(tests)!r}, "--out", sys.argv[at + 1]]))
"""
    player = tmp_path / "python"
    player.write_text(f"#!{sys.executable}\n{play}")
    player.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(player))
    assert main(["calibrate", "--device", "cpu", "--ranks", "2", "--quick", "--out", str(out)]) == 0
    found = read_hardware(out)
    assert len(found.gemms) == 8
    assert len(found.collectives) == 3
    assert found.machine.num_ranks == 2
    command, quiet = json.loads((tmp_path / "told.json").read_text())
    launcher, ranks = command[: command.index("--no-python")], command[-4:]
    assert launcher[:2] == ["-I", "-c"]
    assert launcher[-3:] == ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    assert ranks == ["stepscope", "calibrate", "--only", "collectives"]
    assert command[command.index("--no-python") + 1 :][:3] == [str(player), "-I", "-c"]
    assert quiet == "1"
    assert capfd.readouterr().out.count("Written to") == 1


def test_ranks_that_fail_are_told(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    player = tmp_path / "python"
    player.write_text("#!/bin/sh\nexit 3\n")
    player.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(player))
    said = failed(
        capfd,
        "--device",
        "cpu",
        "--only",
        "collectives",
        "--ranks",
        "2",
        "--out",
        str(tmp_path / "x.json"),
    )
    assert mentions(said, "2 ranks", "code 3")
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--out", "/nowhere/at/all.json"), "no folder /nowhere/at"),
        (("--out", "."), "is a folder"),
        (("--plot", "x.doc"), "must end in .svg, .png, .pdf"),
        (("--only", "collectives"), "give --ranks N"),
        (("--only", "device", "--ranks", "2"), "leave out --ranks"),
        (("--nccl-tests", "x", "--ranks", "2"), "measures nothing"),
        (("--nccl-tests", "/nowhere"), "cannot read /nowhere"),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_mistakes_are_said_before_anything_is_measured(
    options: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    told = failed(capsys, *options)
    assert said in told
    assert "measuring" not in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("tiny")
def test_a_gpu_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "PyTorch sees no GPU here" in failed(
        capsys, "--device", "cuda", "--out", str(tmp_path / "x.json")
    )


@pytest.mark.usefixtures("tiny")
def test_matplotlib_missing_names_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'stepscope[notebook]'" in failed(capsys, "--plot", "x.svg")


@pytest.mark.usefixtures("tiny")
def test_torch_missing_names_its_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in failed(capsys, "--out", str(tmp_path / "x.json"))


def test_ranks_within_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    said = failed(capsys, "--ranks", "2", "--out", str(tmp_path / "x.json"))
    assert mentions(said, "torchrun's ranks")


@pytest.mark.parametrize(
    ("text", "words"),
    [(text, "2 or more") for text in ("1", "0", "-3", "two")] + [("9999999", "is more than 4096")],
)
def test_a_number_of_ranks_that_cannot_be(
    text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["calibrate", "--ranks", text])
    assert words in capsys.readouterr().err
