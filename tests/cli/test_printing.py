"""Nothing that a terminal obeys gets out, whoever wrote it: files, their names, arguments, SQLite,
DuckDB, the system."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sqlite3
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.cli import printing
from stepscope.cli.main import main
from stepscope.protocol.json_text import json_text
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.scenarios import EVIL_NAMES
from tests.shared_data import DEMO, ROOT

EVIL = "a\x1b[2J\x07\x08\x0d\x7f\x85\x9b31m\u202e\u2066\u200f\udc9bb"
"""ESC, BEL, backspace, carriage return, DEL, C1, overrides of direction, and a byte that is no
UTF-8, as paths hold it."""
SQL = EVIL[:-2]
"""DuckDB takes no half characters."""
TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CLI = ROOT / "src" / "stepscope" / "cli"


def is_obeyed(char: str) -> bool:
    """Controls, half characters, ends of lines, and what turns the direction of the text."""
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in TURNS


def assert_harmless(text: str) -> None:
    bad = {char for char in text if char not in "\n\t" and is_obeyed(char)}
    assert not bad, sorted(map(hex, map(ord, bad)))


def test_every_character_that_is_obeyed_is_replaced() -> None:
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if char in "\n\t":
            assert printing.harmless(char) == char
        elif is_obeyed(char):
            assert printing.harmless(char) == "?", hex(code)
    assert (
        printing.harmless("kernel<4> 核函数 \u00a0 é ok\n\tnext")
        == "kernel<4> 核函数 \u00a0 é ok\n\tnext"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp1252", "utf-16"])
def test_no_text_is_too_strange_to_print(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    for text in (*EVIL_NAMES, EVIL, "核"):
        printing.put(text, stream)
    stream.flush()
    assert_harmless(stream.buffer.getvalue().decode(encoding).lstrip("\ufeff"))


def test_json_has_no_control_character() -> None:
    text = json_text({EVIL: [EVIL, *EVIL_NAMES]}, indent=2)
    assert_harmless(text)
    assert json.loads(text)[EVIL][0] == EVIL


def _prints(path: Path) -> list[str]:
    """Calls that write to the terminal by another door. rich's consoles draw cleaned text alone."""
    calls = [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    return [
        call
        for call in calls
        if call == "print" or call.endswith(("stdout.write", "stderr.write", "stdout.writelines"))
    ]


def test_the_commands_have_one_door() -> None:
    assert not {path.name: calls for path in CLI.glob("*.py") if (calls := _prints(path))}
    reports = {path.name for path in (CLI.parent / "report").rglob("*.py") if _prints(path)}
    assert not reports


COMMANDS: dict[str, list[str]] = {
    "a command that is none": [EVIL],
    "an argument that is none": ["diagnose", str(DEMO), EVIL[1:], "--" + EVIL],
    "a choice that is none": ["diagnose", str(DEMO), "--format", EVIL],
    "a number that is none": ["diagnose", str(DEMO), "--step-ms", EVIL],
    "a file that is not there": ["diagnose", EVIL],
    "a file that is not there, of a report": ["report", EVIL],
    "a code that is none": ["explain", EVIL],
    "a run that is none": ["watch", EVIL],
    "SQL that is none": ["query", str(DEMO), f"select {SQL} from"],
    "a name in SQL": ["query", str(DEMO), f"select '{SQL}' as \"{SQL}\""],
    "a path to write to": ["query", str(DEMO), "select 1", "-o", f"no/{EVIL}.csv"],
    "a gate": ["diagnose", str(DEMO), "--fail-if", EVIL],
    "a model that is none": [
        "plan",
        "--model",
        EVIL,
        "--cluster",
        EVIL,
        "--seq",
        "8192",
        "--global-batch",
        "64",
    ],
    "a process that is none": ["attach", EVIL],
    "a file of a format": ["formats", EVIL],
    "a folder of a run": ["verify", "--out", EVIL, "--steps", EVIL, "--", "true"],
    "a hardware file": ["diagnose", str(DEMO), "--hardware", EVIL],
    "a tag that is none": ["runs", "tag", EVIL],
    "a tag that is not there": ["runs", "untag", EVIL],
    "a folder of runs": ["runs", "--in", EVIL],
    "a folder to serve": ["serve", EVIL],
    "a root of a server": ["mcp", "--root", EVIL],
    "a folder of skills": ["skill", "--to", str(DEMO / EVIL)],
    "runs to compare": ["compare", EVIL, EVIL + "2"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_an_echo_of_an_argument_is_harmless(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        main(arguments)
    out, err = capsys.readouterr()
    assert "a?[2J" in out + err or "a[2J" in out + err or "\\x1b" in err
    assert_harmless(out)
    assert_harmless(err)


def broken_schema(path: Path) -> None:
    """A database whose schema holds control characters: SQLite's words quote it."""
    with sqlite3.connect(path) as base:
        base.execute("create table kern_db (id integer)")
    base.close()
    data = path.read_bytes()
    at = data.index(b"CREATE TABLE" if b"CREATE TABLE" in data else b"create table")
    path.write_bytes(data[: at + 13] + b"\x14\x9b\x1b" + data[at + 16 :])


def broken_sqlite(folder: Path) -> Path:
    path = folder / f"{EVIL[:9]}.ukdb"
    broken_schema(path)
    return path


def broken_json(folder: Path) -> Path:
    path = folder / "rank0\x1b[2J.json"
    path.write_bytes(b'\x1b[2J\x9b{"traceEvents"')
    return path


def strange_run(folder: Path) -> Path:
    run = write_run(folder / "run\x1b]0;x\x07", command=[EVIL, *EVIL_NAMES])
    rank = write_rank(run, 0)
    add_steps(rank, [row(step) for step in range(1, 60)])
    told = json.loads((rank / "rank.json").read_text())
    told |= {
        "models": [{"class": EVIL, "num_params": 7}],
        "optimizers": [{"class": EVIL}],
        "ddp": [{EVIL: EVIL}],
    }
    (rank / "rank.json").write_text(json.dumps(told))
    (rank / "problem.txt").write_text(EVIL.replace("\udc9b", ""))
    alert = {"kind": EVIL, "ranks": [0], "step": 3, "words": EVIL, "at_wall_ns": 1}
    (run / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
    return run


INPUTS: dict[str, Callable[[Path], Path]] = {
    "sqlite": broken_sqlite,
    "json": broken_json,
    "run": strange_run,
}


@pytest.mark.parametrize(
    "command", ["diagnose", "json", "markdown", "formats", "watch", "query", "export", "report"]
)
@pytest.mark.parametrize("name", INPUTS)
def test_what_a_file_says_is_harmless(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(INPUTS[name](tmp_path))
    arguments = {
        "diagnose": ["diagnose", path],
        "json": ["diagnose", path, "--format", "json"],
        "markdown": ["diagnose", path, "--format", "markdown"],
        "formats": ["formats", path],
        "watch": ["watch", "--once", path],
        "query": ["query", path, "select * from findings"],
        "export": ["export", "perfetto", path, "-o", str(tmp_path / "out\x1b.pftrace")],
        "report": ["report", path, "-o", str(tmp_path / "out\x1b.html")],
    }[command]
    main(arguments)
    out, err = capsys.readouterr()
    assert out + err
    assert_harmless(out)
    assert_harmless(err)


def test_a_long_text_is_made_harmless_to_its_end() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    text = "x" * (printing.PIECE - 1) + "\x1b\u00e9" * 3 + "y" * printing.PIECE + "\x9b\n"
    printing.put(text, out, errors="xmlcharrefreplace")
    out.seek(0)
    wanted = "x" * (printing.PIECE - 1) + "?&#233;" * 3 + "y" * printing.PIECE + "?\n"
    assert out.read() == wanted
