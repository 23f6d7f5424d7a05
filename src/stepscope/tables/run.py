"""Run: a recorded run in a notebook, from `stepscope.load(path)`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import asdict

from stepscope.core.diagnosis import Diagnosis
from stepscope.errors import UsageError
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording
from stepscope.readers.run_folder.kept_runs import resolve
from stepscope.tables.arrow import ArrowTable
from stepscope.tables.database import Database
from stepscope.tables.html import diagnosis_html, report_html
from stepscope.tables.rows.columns import TABLES
from stepscope.tables.run_tables import RunTables
from stepscope.tables.table import Table


class ShownDiagnosis(Diagnosis, frozen=True, kw_only=True):
    """A Diagnosis that Jupyter can show."""

    def _repr_html_(self) -> str:
        return diagnosis_html(self)


def load(
    path: str | Path | Sequence[str | Path],
    step_ms: float | None = None,
    cache: bool = True,
    *,
    jobs: int | None = 1,
    hardware: str | Path | None = None,
    all_findings: bool = False,
) -> Run:
    """A run's diagnosis and tables.

    `path` is what `stepscope diagnose` takes: a trace, several, a folder, an archive.
    step_ms is the step time with no profiler attached, when you know it; cache whether parsed
    traces are kept in your cache folder; jobs the number of processes that a diagnosis of several
    ranks may use, None for one per core; hardware a file that `stepscope calibrate` wrote;
    all_findings whether findings that give less than 2 % are among them.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    options = Options(
        step_ms=step_ms,
        use_cache=cache,
        jobs=jobs,
        hardware=None if hardware is None else Path(hardware),
        all_findings=all_findings,
    )
    named = [resolve(each) if isinstance(each, str) else each for each in paths]
    return Run(named, options)


def diagnose(
    path: str | Path | Sequence[str | Path],
    step_ms: float | None = None,
    cache: bool = True,
    *,
    jobs: int | None = 1,
    hardware: str | Path | None = None,
    all_findings: bool = False,
) -> ShownDiagnosis:
    """What `stepscope diagnose` says of what the path holds, as a Diagnosis.

    The arguments are those of `load`.
    """
    run = load(path, step_ms, cache, jobs=jobs, hardware=hardware, all_findings=all_findings)
    try:
        return run.diagnosis
    finally:
        run.close()


class Report:
    """The HTML report of a run: shows itself in Jupyter, and can be kept."""

    def __init__(self, html: str, height: int) -> None:
        self.html = html
        self.height = height

    def save(self, path: str | Path) -> Path:
        """Writes the page to a file, which opens anywhere."""
        target = Path(path)
        target.write_text(self.html, encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        return report_html(self.html, self.height)

    def __repr__(self) -> str:
        return f"<stepscope report: {len(self.html) // 1000} kB; save(path) keeps it>"


class Run:
    """A recorded run. Nothing is read until it is asked for, and then once."""

    def __init__(self, paths: Sequence[str | Path], options: Options) -> None:
        step_ms = options.step_ms
        if step_ms is not None and not (0 < step_ms < 1e9 and math.isfinite(step_ms)):
            raise UsageError(
                f"{step_ms!r} is not a step time in milliseconds; give a number above 0, such as "
                "65.5"
            )
        self.paths = tuple(map(str, paths))
        self._recording = Recording(paths, options)
        # An archive's temporary copy goes with the run.
        self._end = weakref.finalize(self, self._recording.close)
        self._run_tables = RunTables(self._recording)
        self._diagnosis: ShownDiagnosis | None = None
        self._database: Database | None = None
        self._built: dict[str, ArrowTable] = {}
        self._tables = {
            name: Table(name, self._builder(name), spec) for name, spec in TABLES.items()
        }

    @property
    def diagnosis(self) -> ShownDiagnosis:
        """What `stepscope diagnose` says; made at the first look."""
        if self._diagnosis is None:
            plain = self._recording.diagnosis
            self._diagnosis = ShownDiagnosis(**asdict(plain))
        return self._diagnosis

    @property
    def tables(self) -> Mapping[str, Table]:
        """Every table by its name."""
        return MappingProxyType(self._tables)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out or is in doubt about the tables built so far."""
        return tuple(self._run_tables.notes)

    @property
    def events(self) -> Table:
        return self._tables["events"]

    @property
    def kernels(self) -> Table:
        return self._tables["kernels"]

    @property
    def launches(self) -> Table:
        return self._tables["launches"]

    @property
    def copies(self) -> Table:
        return self._tables["copies"]

    @property
    def collectives(self) -> Table:
        return self._tables["collectives"]

    @property
    def steps(self) -> Table:
        return self._tables["steps"]

    @property
    def ranks(self) -> Table:
        return self._tables["ranks"]

    @property
    def findings(self) -> Table:
        return self._tables["findings"]

    def query(self, sql: str, *, most_s: float | None = None) -> Table:
        """The answer to SQL over the tables. Views made by one query are there for the next. SQL
        that runs for longer than `most_s` seconds is ended."""
        if self._database is None:
            self._database = Database(self._build)
        rows = self._database.query(sql, most_s)
        return Table("answer", lambda: rows)

    def plot_step(self) -> Any:
        """The parts of each rank's median step, as a matplotlib Figure."""
        from stepscope.tables.plots import step_figure

        return step_figure(self.diagnosis)

    def plot_findings(self) -> Any:
        """Today's step, and what it becomes after each finding's fix, as a matplotlib Figure."""
        from stepscope.tables.plots import findings_figure

        return findings_figure(self.diagnosis)

    def plot_ranks(self) -> Any:
        """Each rank's step time, step by step, as a matplotlib Figure."""
        from stepscope.tables.plots import ranks_figure

        return ranks_figure(self.diagnosis)

    def report(self, height: int = 800) -> Report:
        """The report of `stepscope report`, as a widget that Jupyter shows."""
        from stepscope.pipeline.page import page_of_recording
        from stepscope.report.html import render_page
        from stepscope.report.html.model import page_of

        return Report(render_page(page_of(page_of_recording(self._recording))), height)

    def close(self) -> None:
        """Let go of an archive's temporary copy now; the tables that were built stay."""
        if self._database is not None:
            self._database.close()
            self._database = None
        self._end()

    def __repr__(self) -> str:
        return f"<stepscope run {', '.join(map(repr, self.paths))}>"

    def _repr_html_(self) -> str:
        return diagnosis_html(self.diagnosis)

    def _builder(self, name: str) -> Any:
        return lambda: self._build([name])[name]

    def _build(self, names: Iterable[str]) -> Mapping[str, ArrowTable]:
        """Build these tables, those that are not there yet in one pass over the traces."""
        wanted = list(names)
        missing = [name for name in wanted if name not in self._built]
        if missing:
            self._built |= self._run_tables.build(missing)
        return {name: self._built[name] for name in wanted}
