"""The query command, as a user calls it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.tables.query.command import ask, split_sql
from stepscope.tables.query.prompt import converse, next_question
from stepscope.tables.run import load
from tests.builders import kernel, trace_text, write
from tests.installed import need, needs, package
from tests.scaling_jobs import write_job
from tests.shared_data import DEMO, ROOT, SMALL, lab_traces
from tests.wording import mentions

need("duckdb")
parquet = package("pyarrow.parquet")
HOSTILE = ['a,"b"\nc', "<script>", "\x1b[31mred", "=1+1", "名前", "tab\tand\rreturn"]
BY_OP = "select op, sum(dur_ns) from kernels group by 1 order by 2 desc"


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["query", *words, "--no-cache"]) == 0
    return capsys.readouterr().out


def hostile_trace(folder: Path) -> str:
    return str(
        write(
            folder / "a.json",
            trace_text([kernel(70 + i, 10 + 30 * i, 20, name) for i, name in enumerate(HOSTILE)]),
        )
    )


def test_text_is_a_table_with_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    lines = asked(capsys, str(DEMO), BY_OP).splitlines()
    assert re.fullmatch(r"op +sum\(dur_ns\)", lines[0])
    assert re.fullmatch(r"aten::mm +\d+", lines[2])
    assert lines[-1].endswith(" rows)")
    found = json.loads(asked(capsys, str(DEMO), BY_OP, "--format", "json"))
    assert found["columns"] == ["op", "sum(dur_ns)"]
    assert [row[1] for row in found["rows"]] == sorted(
        (row[1] for row in found["rows"]), reverse=True
    )
    assert len(found["rows"]) == len(lines) - 3
    assert lines[2].split()[1] == str(found["rows"][0][1])
    assert [None, *(row[1] for row in found["rows"] if row[0] is None)][1:] != [], (
        "what no operator launched is null"
    )


def test_rows_can_be_fewer_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    many = "select event from events order by event limit 120"
    assert mentions(asked(capsys, str(SMALL), many), "120 rows", "first 50", "--rows 0")
    assert len(asked(capsys, str(SMALL), many, "--rows", "0").splitlines()) == 123
    assert len(asked(capsys, str(SMALL), many, "--rows", "7").splitlines()) == 10


def test_csv_and_parquet_hold_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select event, name, op, step, blocking from copies order by event"
    printed = asked(capsys, str(SMALL), sql, "--to", "csv")
    asked(capsys, str(SMALL), sql, "-o", str(tmp_path / "a.csv"))
    asked(capsys, str(SMALL), sql, "--to", "parquet", "-o", str(tmp_path / "a.bin"))
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == printed
    rows = list(csv.DictReader(io.StringIO(printed)))
    table = parquet.read_table(tmp_path / "a.bin").to_pylist()
    assert len(rows) == len(table) > 0
    for row, wanted in zip(rows, table, strict=True):
        assert row["name"] == wanted["name"]
        assert row["step"] == ("" if wanted["step"] is None else str(wanted["step"]))
        assert row["blocking"] == str(wanted["blocking"]).lower()


def test_hostile_names_survive_files_and_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, sql = hostile_trace(tmp_path), "select name from kernels order by start_ns"
    text = asked(capsys, path, sql, "--to", "csv")
    guarded = ["'=1+1" if name == "=1+1" else name for name in HOSTILE]
    assert [row[0] for row in csv.reader(io.StringIO(text, newline=""))] == ["name", *guarded]
    assert [
        row[0] for row in json.loads(asked(capsys, path, sql, "--format", "json"))["rows"]
    ] == HOSTILE
    asked(capsys, path, sql, "-o", str(tmp_path / "b.parquet"))
    assert parquet.read_table(tmp_path / "b.parquet").column("name").to_pylist() == HOSTILE
    shown = asked(capsys, path, sql)
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == len(HOSTILE) + 3, "a name is one line, whatever it holds"


FORMULAS = ["=cmd()", "+1", "-1", "@sum", "\t=1", "\r=1", "\uff1d1", "a=1", " =1", "'=1", "", "-"]


def test_csv_holds_no_formula(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ", ".join("'" + text.replace("'", "''") + "'" for text in FORMULAS)
    sql = "select unnest([" + texts + ']) as "=head", -1.5 as number'
    head, *rows = csv.reader(io.StringIO(asked(capsys, str(SMALL), sql, "--to", "csv"), newline=""))
    assert head == ["'=head", "number"]
    for text, (word, number) in zip(FORMULAS, rows, strict=True):
        is_formula = text[:1] in ("=", "+", "-", "@", "\t", "\r", "\uff1d") and text != ""
        assert word == ("'" + text if is_formula else text)
        assert number == "-1.5"  # a number is none


def test_csv_on_a_terminal_is_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = asked(
        capsys, hostile_trace(tmp_path), "select name from kernels order by start_ns", "--to", "csv"
    )
    assert "?[31mred" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["select * from read_text('/etc/passwd')"],
            "tables and nothing else",
        ),
        (["select * from kernelz"], "tables are events, kernels"),
        (["select opp from kernels"], '"op"'),
        (["select opp from kernels"], "\nkernels: rank,"),
        (["select from where"], "SQL cannot be"),
        (["select 1", "--to", "parquet"], "-o FILE"),
        (["select 1", "--to", "csv", "--format", "json"], "leave out one"),
        (["select 1", "-o", "answer.xyz"], "--to csv or --to parquet"),
        (["select 1", "-o", "/nowhere/at/all.csv"], "cannot write /nowhere/at/all.csv"),
        (["select 1", "--rows", "-1"], "--rows -1"),
        (["select 1", "--step-ms", "-3"], "step time"),
        ([".schema nothing at all"], ".schema TABLE"),
    ],
)
def test_mistakes_are_one_message_and_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", str(SMALL), *words, "--no-cache"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("stepscope: ")
    assert message in printed.err
    assert printed.out == ""


def test_without_duckdb_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert main(["query", str(SMALL), "select 1", "--no-cache"]) == 2
    assert "pip install 'stepscope[sql]'" in capsys.readouterr().err


def test_sql_comes_from_standard_input_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("select count(*) as n\nfrom copies;\n"))
    assert json.loads(asked(capsys, str(DEMO), "--format", "json")) == {
        "columns": ["n"],
        "rows": [[327]],
    }


def test_the_last_word_is_sql_unless_it_is_a_file(tmp_path: Path) -> None:
    spaced = tmp_path / "my trace.json"
    spaced.touch()
    assert split_sql(["a.json", "select 1"]) == (["a.json"], "select 1")
    assert split_sql(["a.json", "b.json"]) == (["a.json", "b.json"], None)
    assert split_sql(["a.json", str(spaced)]) == (["a.json", str(spaced)], None)
    assert split_sql(["select 1"]) == (["select 1"], None)
    assert split_sql(["a.json", ".tables"]) == (["a.json"], ".tables")
    assert split_sql(["a.json", "./b.json"]) == (["a.json", "./b.json"], None)


def test_two_ranks_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    paths = map(str, lab_traces("ranks2/ddp_even.slow.*"))
    found = json.loads(
        asked(capsys, *paths, "select rank, world_size from ranks", "--format", "json")
    )
    assert found["rows"] == [[0, 2], [1, 2]]


def typed(lines: list[str]) -> object:
    """What a user types, then the end of input."""
    waiting = iter(lines)

    def read(prompt: str) -> str:
        line = next(waiting, None)
        if line is None:
            raise EOFError
        if line == "^C":
            raise KeyboardInterrupt
        return line

    return read


def test_the_prompt_says_what_is_wrong_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    run = load(DEMO, cache=False)
    shown: list[list[dict[str, object]]] = []
    lines = [
        "select * from nothing;",
        "select count(*) as n",
        "from copies",
        "",
        ".tables",
        ".schema copies",
        ".what",
        ".quit",
        "select 2;",
    ]
    read: Any = typed(lines)
    assert converse(lambda text: shown.append(ask(run, text).to_arrow().to_pylist()), read) == 0
    assert shown[0] == [{"n": 327}]
    assert [row["table"] for row in shown[1]][:2] == ["events", "kernels"]
    assert "bytes_per_s" in [row["column"] for row in shown[2]]
    assert len(shown) == 3, "nothing is asked after .quit"
    errors = capsys.readouterr().err
    assert "nothing" in errors
    assert ".schema TABLE" in errors


def test_a_question_ends_with_a_semicolon_or_an_empty_line() -> None:
    assert next_question(typed(["select 1;"])) == "select 1;"  # type: ignore[arg-type]
    assert next_question(typed(["select", "1", ""])) == "select\n1"  # type: ignore[arg-type]
    assert next_question(typed(["selec", "^C", "select 2;"])) == "select 2;"  # type: ignore[arg-type]
    assert next_question(typed([])) is None  # type: ignore[arg-type]


@needs("pseudo-terminals")
def test_a_terminal_gets_a_prompt() -> None:
    master, slave = os.openpty()
    os.write(master, b"select count(*) as n from copies;\n.quit\n")
    command = [sys.executable, "-m", "stepscope", "query", str(DEMO), "--no-cache"]
    done = subprocess.run(command, stdin=slave, capture_output=True, text=True, check=False)
    os.close(slave)
    os.close(master)
    assert done.returncode == 0, done.stderr
    assert "327" in done.stdout


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "query.md").read_text(encoding="utf-8")
    example = re.search(
        r"    stepscope query traces/ (\".*?\" --rows 4)\n\n```text\n(.*?)```", text, re.DOTALL
    )
    assert example is not None
    assert asked(capsys, str(DEMO), *shlex.split(example[1])) == example[2]


def test_the_pages_questions_can_be_asked() -> None:
    text = (ROOT / "docs" / "query.md").read_text(encoding="utf-8").split("## Questions")[1]
    questions = re.findall(r"(?:^    .*\n?)+", text, re.MULTILINE)
    assert len(questions) == 4
    run = load(SMALL, cache=False)
    for question in questions:
        assert run.query(question).columns


def test_nothing_but_the_answer_is_said() -> None:
    """As a process of its own: what a library says when the interpreter ends, too."""
    words = ["query", str(SMALL), "select count(*) as num from kernels", "--no-cache"]
    asked = subprocess.run(
        [sys.executable, "-m", "stepscope", *words], capture_output=True, text=True, check=True
    )
    assert (asked.stdout.splitlines()[0].strip(), asked.stderr) == ("num", "")


def test_a_second_trace_of_a_rank_without_collectives_is_given_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_job(tmp_path / "job", 2, moving_us=500)
    header = {"distributedInfo": {"rank": 1, "world_size": 2}}
    text = trace_text([kernel(70, 10, 20, "k")], header)
    write(tmp_path / "job" / "again.json", text)
    counted = "select count(*), count(distinct rank) from collectives"
    found = json.loads(asked(capsys, folder, counted, "--format", "json"))
    num, num_ranks = found["rows"][0]
    assert num > 0
    assert num_ranks == 2
