"""SQL reaches the run's tables, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from stepscope.errors import UsageError
from stepscope.tables.arrow import ArrowTable
from stepscope.tables.database import Database, named_tables
from tests.installed import need, package

need("duckdb")
pa = package("pyarrow")


def build(names: Iterable[str]) -> Mapping[str, ArrowTable]:
    return {name: pa.table({"rank": [0, 1], "dur_ns": [5, 7]}) for name in names}


@pytest.fixture
def database() -> Database:
    return Database(build)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('{secret}')",
        "select * from read_csv('{secret}')",
        "select * from read_blob('{secret}')",
        "select * from '{secret}'",
        "select * from glob('{folder}/*')",
        "copy kernels to '{folder}/out.csv'",
        "copy (select 1) to '{folder}/out.csv'",
        "attach '{folder}/out.db'",
        "export database '{folder}/out'",
        "install httpfs",
        "load httpfs",
        "load '{secret}'",
        "set enable_external_access = true",
        "reset enable_external_access",
        "set lock_configuration = false",
        "set temp_directory = '{folder}'",
        "pragma profiling_output = '{folder}/out'",
        "set threads = 1",
        # `table` is a variable where the SQL is run, and DuckDB finds variables by their names
        # unless told not to.
        'select * from "table", kernels',
    ],
)
def test_what_is_outside_is_refused(database: Database, tmp_path: Path, sql: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("open sesame\n")
    with pytest.raises(UsageError, match="SQL cannot be"):
        database.query(sql.format(secret=secret, folder=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_a_mistake_is_said_in_one_message_with_what_there_is(database: Database) -> None:
    with pytest.raises(UsageError, match=r"kernelz(.|\n)*tables are events, kernels, launches"):
        database.query("select * from kernelz")
    with pytest.raises(UsageError, match="dur_ns"):
        database.query("select dur from kernels")
    with pytest.raises(UsageError, match="no SQL"):
        database.query(" ;\n")
    with pytest.raises(UsageError) as problem:
        database.query("select error(chr(27) || '[31m')")
    assert "\x1b" not in str(problem.value)
    assert database.query("select sum(dur_ns) as s from kernels").to_pylist() == [{"s": 12}], (
        "and it goes on"
    )


def test_views_last_and_a_dropped_table_comes_back(database: Database) -> None:
    database.query("create view slow as select * from kernels where dur_ns > 5")
    assert database.query("select rank from slow").to_pylist() == [{"rank": 1}]
    database.query("drop view kernels")
    assert database.query("select count(*) as n from kernels").to_pylist() == [{"n": 2}]


def test_sums_are_whole_and_names_are_unique(database: Database) -> None:
    answer = database.query(
        "select sum(dur_ns) as a, 2 as a, 3 as a_1, 1e300 as b, 36893488147419103232::hugeint as "
        "c from kernels"
    )
    assert answer.column_names == ["a", "a_1", "a_1_1", "b", "c"]
    assert [str(kind) for kind in answer.schema.types][:1] == ["int64"]
    assert int(answer.column("c").to_pylist()[0]) == 2**65, "what does not fit stays as it is"


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select * from kernels", ["kernels"]),
        ('FROM "Kernels" k JOIN ranks USING (rank)', ["kernels", "ranks"]),
        ("with a as (select * from steps) select * from a", ["steps"]),
        ("summarize copies", ["copies"]),
        ("select 1", []),
        ("select my_kernels from x", []),
    ],
)
def test_the_tables_that_sql_names(sql: str, tables: list[str]) -> None:
    assert named_tables(sql) == tables
