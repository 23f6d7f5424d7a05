"""`stepscope.load`: lazy, whole, escaped."""

from __future__ import annotations

import html.parser
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.core.diagnosis import Diagnosis
from stepscope.errors import InputError, UsageError
from stepscope.pipeline import contexts, recording
from stepscope.readers.cache import read_trace
from stepscope.tables import run_tables
from tests.builders import kernel, trace_text, write
from tests.installed import package
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.nccl_logs import two_nodes
from tests.shared_data import DEMO, SMALL, lab_trace

HOSTILE = (
    '<script>alert("x")</script>',
    'a,"b"\nc;\td',
    "=cmd()|'/C calc'!A0",
    "\x1b[31mred",
    "$\\frac{$",
    "half \ud800",
    "'; drop table",
)


def hostile_trace(folder: Path) -> Path:
    return write(
        folder / "a.json",
        trace_text([kernel(70 + i, 10 + 30 * i, 20, name) for i, name in enumerate(HOSTILE)]),
    )


class _Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_load_is_part_of_the_package() -> None:
    assert "load" in stepscope.__all__
    assert stepscope.load(str(SMALL), cache=False).paths == (str(SMALL),)


def test_nothing_is_read_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(source: Any, **options: Any) -> Any:
        read.append(source.label)
        return read_trace(source, **options)

    monkeypatch.setattr(contexts, "read_trace", counted)
    run = stepscope.load(SMALL, cache=False)
    assert "not built yet" in repr(run.kernels)
    assert "dur_ns" in run.kernels.columns
    assert read == []
    assert (
        len(run.kernels)
        == run.query("select count(*) as n from kernels").to_arrow().to_pylist()[0]["n"]
        > 0
    )
    assert len(run.copies) > 0
    assert read == [str(SMALL)], "one trace is read once, whatever is asked"


def test_only_the_named_tables_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    run = stepscope.load(SMALL, cache=False)
    monkeypatch.setitem(
        run_tables.OF_EVENTS, "events", lambda found: pytest.fail("events was built")
    )
    monkeypatch.setattr(recording, "diagnose_job", lambda job: pytest.fail("a diagnosis was made"))
    assert (
        run.query("select count(*) from kernels join launches using (rank, correlation)")
        .to_arrow()
        .num_rows
        == 1
    )


def test_traces_too_large_to_keep_are_in_memory_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "MAX_KEPT_EVENTS", 10)
    for rank in range(2):
        shutil.copy(SMALL, tmp_path / f"rank{rank}.pt.trace.json.gz")
    run = stepscope.load(tmp_path, cache=False)
    assert len(run.kernels) > 0
    assert len(run._recording.contexts._kept) == 1
    assert len(run.launches) > 0


def test_frames_agree_with_arrow() -> None:
    run = stepscope.load(SMALL, cache=False)
    arrow = run.kernels.to_arrow()
    pandas, polars = run.kernels.to_pandas(), run.kernels.to_polars()
    assert list(pandas.columns) == polars.columns == arrow.column_names
    assert len(pandas) == len(polars) == arrow.num_rows
    total = sum(arrow.column("dur_ns").to_pylist())
    assert pandas["dur_ns"].sum() == polars["dur_ns"].sum() == total
    assert str(pandas["step"].dtype) == "Int64", "whole numbers with gaps stay whole"
    assert str(pandas["dur_ns"].dtype) == "int64"
    assert pandas["name"].dtype == "category"
    by_op = run.query("select op, sum(dur_ns) as ns from kernels group by op").to_pandas()
    assert str(by_op["ns"].dtype) == "int64", "a sum of nanoseconds is a whole number"
    assert by_op["ns"].sum() == total


def test_names_are_kept_once() -> None:
    table = stepscope.load(SMALL, cache=False).events.to_arrow()
    names = table.column("name")
    assert names.num_chunks == 1
    assert len(names.chunk(0).dictionary) < len(table) / 10


def test_the_diagnosis_shows_itself_and_is_one() -> None:
    run = stepscope.load(DEMO, 65.48, cache=False)
    diagnosis = run.diagnosis
    assert isinstance(diagnosis, Diagnosis)
    assert diagnosis is run.diagnosis
    shown = _Tags(run._repr_html_())
    assert run._repr_html_() == diagnosis._repr_html_()
    for text in (
        diagnosis.verdict.summary,
        "65.5\u00a0ms",
        "serial-loader",
        diagnosis.findings[0].summary[:60],
    ):
        assert text in shown.text
    ours = (
        "div p strong b small table thead tbody tr th td details summary ul li dl dt dd section "
        "article h3 h4 code svg rect"
    )
    assert shown.tags <= set(ours.split())


def test_hostile_names_are_text_in_html(tmp_path: Path) -> None:
    run = stepscope.load(hostile_trace(tmp_path), cache=False)
    for table in (
        run.kernels,
        run.events,
        run.query('select name as "<b onclick=x>", \'<i>\' as "<i>" from kernels'),
    ):
        shown = _Tags(table._repr_html_())
        own = {"details", "summary", "ul", "li"} if table.spec is not None else set()
        grid = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert shown.tags == grid | own
        assert shown.attributes == {"class", "scope", "style"}
        assert '<script>alert("x")</script>' in shown.text
        assert "\x1b" not in table._repr_html_()
    bar = {"viewbox", "width", "height", "aria-hidden"}
    assert _Tags(run._repr_html_()).attributes <= {"class", "scope", "style", *bar}


def test_a_table_is_used_as_its_data_frame_is() -> None:
    pandas, polars = (package(name, "pandas and polars") for name in ("pandas", "polars"))

    run = stepscope.load(SMALL, cache=False)
    kernels = run.kernels
    assert len(kernels.head()) == 5
    assert len(kernels.head(2).to_pandas()) == 2
    assert list(kernels) == list(kernels.columns)
    assert isinstance(kernels["dur_ns"], pandas.Series)
    assert kernels.groupby("op", observed=True)["dur_ns"].sum().max() == (
        kernels.to_pandas().groupby("op", observed=True)["dur_ns"].sum().max()
    )
    assert kernels.shape == (len(kernels), len(kernels.columns))
    assert len(polars.DataFrame(kernels)) == len(kernels)
    assert not hasattr(kernels, "_no_such_thing")
    with pytest.raises(AttributeError):
        kernels.no_such_thing  # noqa: B018 - the look itself is what raises


def test_a_cell_that_shows_a_table_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    table = stepscope.load(SMALL, cache=False).steps
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    shown = _Tags(table._repr_html_())
    assert shown.tags == {"p"}
    assert "pip install 'stepscope[" in shown.text


def test_the_first_rows_need_no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = stepscope.load(SMALL, cache=False).steps
    assert "2 rows" in table.head(2)._repr_html_().replace("\u00a0", " ")
    with pytest.raises(UsageError, match="stepscope\\[notebook\\]"):
        table.describe()


def test_the_report_is_a_widget_and_a_file(tmp_path: Path) -> None:
    report = stepscope.load(SMALL, cache=False).report(height=400)
    shown = report._repr_html_()
    assert shown.startswith("<iframe sandbox=")
    assert "height:400px" in shown
    assert "<script" not in shown, "the page stands in an attribute, escaped"
    assert report.save(tmp_path / "r.html").read_text(encoding="utf-8") == report.html


def test_hostile_names_come_back_from_arrow(tmp_path: Path) -> None:
    names = (
        stepscope.load(hostile_trace(tmp_path), cache=False)
        .query("select name from kernels order by start_ns")
        .to_arrow()
    )
    wanted = [name.encode("utf-8", "replace").decode() for name in HOSTILE]
    assert names.column("name").to_pylist() == wanted


def test_ranks_are_those_of_a_folder_of_links(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json.zst").symlink_to(
            lab_trace(f"ranks2/fsdp_even.slow.rank{rank}")
        )
    (tmp_path / "rank2.json").write_text("{")
    run = stepscope.load(tmp_path, cache=False)
    rows = (
        run.query("select rank, count(*) as n from kernels group by rank order by rank")
        .to_arrow()
        .to_pylist()
    )
    assert [row["rank"] for row in rows] == [0, 1]
    assert any("rank2.json" in note for note in run.notes), "the rank that cannot be read is named"


def test_an_archive_is_let_go_of(tmp_path: Path) -> None:
    path = tmp_path / "traces.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(SMALL, "rank0.json.gz")
    run = stepscope.load(path, cache=False)
    folder = run._recording.inputs.sources[0].path.parent
    assert Path(str(folder)).exists()
    assert len(run.kernels) > 0
    run.close()
    assert not Path(str(folder)).exists()
    assert len(run.kernels) > 0, "what was built stays"


def test_a_run_folder_gives_its_recording_and_its_measured_step(tmp_path: Path) -> None:
    folder = write_rank(write_run(tmp_path), 0)
    add_steps(folder, [row(step, 70.0) for step in range(40)])
    run = stepscope.load(tmp_path, cache=False)
    with pytest.raises(InputError, match="recorded no step"):
        len(run.kernels)
    assert len(run.findings) == 0, "a run with no recording has a diagnosis all the same"
    assert run.diagnosis.step.ms == pytest.approx(70.0)
    shutil.copy(SMALL, folder / "window-20.pt.trace.json.gz")
    run = stepscope.load(tmp_path, cache=False)
    alone = stepscope.load(SMALL, cache=False)
    assert len(run.kernels) == len(alone.kernels) > 0
    assert run.diagnosis.step.ms == pytest.approx(70.0)
    mfu = [one.ranks.to_arrow().to_pylist()[0]["mfu"] for one in (run, alone)]
    assert mfu[0] == pytest.approx(mfu[1] * (alone.diagnosis.step.profiled_ms or 0) / 70.0), (
        "of the step that was measured"
    )


def test_a_log_alone_holds_no_tables(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_text(two_nodes())
    with pytest.raises(InputError, match="no trace"):
        len(stepscope.load(tmp_path / "nccl.log").kernels)


@pytest.mark.parametrize("step_ms", [0, -1, float("nan"), float("inf")])
def test_a_step_time_that_is_none_is_refused(step_ms: float) -> None:
    with pytest.raises(UsageError, match="step time"):
        stepscope.load(SMALL, step_ms)


def test_a_path_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        stepscope.load(tmp_path / "nothing.json")


def test_a_file_that_is_no_trace_is_said_when_it_is_read(tmp_path: Path) -> None:
    run = stepscope.load(write(tmp_path / "a.json", "no json"), cache=False)
    with pytest.raises(InputError, match="not a trace"):
        len(run.kernels)


@pytest.mark.parametrize(
    ("module", "extra"),
    [("pandas", "notebook"), ("polars", "notebook"), ("pyarrow", "sql"), ("duckdb", "sql")],
)
def test_a_missing_package_is_named_with_its_command(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stepscope.load(SMALL, cache=False)
    uses = {
        "pandas": run.steps.to_pandas,
        "polars": run.steps.to_polars,
        "pyarrow": run.steps.to_arrow,
    }
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install 'stepscope\[{extra}\]'"):
        uses.get(module, lambda: run.query("select 1"))()


def test_the_first_rows_print_themselves() -> None:
    first = stepscope.load(SMALL, cache=False).kernels.head(2)
    assert "rank" in repr(first)
    assert "2 rows" in str(first)
    assert "<stepscope table" not in repr(first)
