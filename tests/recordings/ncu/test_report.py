"""Reports of Nsight Compute through a module that answers as NVIDIA's `ncu_report` does."""

from __future__ import annotations

import csv
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from stepscope.errors import FormatError, InputError
from stepscope.readers.format import Source
from stepscope.recordings.ncu import csv as ncu_csv
from stepscope.recordings.ncu import report as ncu_rep
from tests.shared_data import SAMPLES
from tests.wording import mentions

RAW = SAMPLES / "formats/ncu_raw.csv"
NVR = b"NVR\x00\x08\x01 a report"


class Metric:
    def __init__(self, text: str, unit: str) -> None:
        self._text, self._unit = text.replace(",", ""), unit
        try:
            self._number: float | None = float(self._text)
        except ValueError:
            self._number = None

    def has_value(self) -> bool:
        return self._text not in ("", "no data")

    def kind(self) -> int:
        return 2 if self._number is None else 4

    def as_double(self) -> float:
        return 0.0 if self._number is None else self._number

    def as_string(self) -> str:
        return self._text

    def unit(self) -> str:
        return self._unit


class Action:
    def __init__(self, name: str, metrics: dict[str, Metric], workload: int = 0) -> None:
        self._name, self._metrics, self._workload = name, metrics, workload

    def name(self, base: int = 0) -> str:
        return self._name if base == 1 else self._name.split("<")[0]

    def workload_type(self) -> int:
        return self._workload

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self._metrics)

    def metric_by_name(self, name: str) -> Metric | None:
        return self._metrics.get(name)


class Range:
    def __init__(self, actions: list[Action]) -> None:
        self._actions = actions

    def num_actions(self) -> int:
        return len(self._actions)

    def action_by_idx(self, at: int) -> Action:
        return self._actions[at]


def module(monkeypatch: pytest.MonkeyPatch, *ranges: Range) -> list[str]:
    """Put the module in place; gives the list of paths that it is asked to load."""
    loaded: list[str] = []

    def load_report(path: str) -> SimpleNamespace:
        loaded.append(path)
        assert Path(path).read_bytes() == NVR
        return SimpleNamespace(num_ranges=lambda: len(ranges), range_by_idx=lambda at: ranges[at])

    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=load_report))
    return loaded


def report_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.ncu-rep"
    path.write_bytes(NVR)
    return path


def test_report_gives_what_its_csv_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for line in RAW.read_text().splitlines() if line and not line.startswith("==")]
    names, units, *rows = csv.reader(lines)
    actions = []
    for row in rows:
        cells = dict(zip(names, zip(row, units, strict=True), strict=True))
        metrics = {
            name: Metric(text, unit)
            for name, (text, unit) in cells.items()
            if "__" in name or "_l1_" in name
        }
        actions.append(Action(cells["Kernel Name"][0], metrics))
    module(monkeypatch, Range(actions[:5]), Range([*actions[5:], Action("graph", {}, workload=2)]))
    mine = ncu_rep.read([Source(path=report_file(tmp_path), label="run")])
    theirs = ncu_csv.read([Source(path=RAW, label="raw")])
    assert len(mine.kernels) == 12
    assert mine.kernels == theirs.kernels
    assert mentions(mine.recordings[0].notes[0], "1 workloads", "no kernel")


def test_report_in_an_archive_is_copied_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "all.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(report_file(tmp_path), "run.ncu-rep")
    with tarfile.open(archive) as tar:
        member = tar.getmember("run.ncu-rep")
    loaded = module(
        monkeypatch, Range([Action("k<1>", {"gpu__time_duration.sum": Metric("7", "us")})])
    )
    source = Source(
        path=archive, label="all.tar/run.ncu-rep", offset=member.offset_data, length=member.size
    )
    (kernel,) = ncu_rep.read([source]).kernels
    assert (kernel.name, kernel.duration_ns, kernel.occupancy) == ("k<1>", 7000, None)
    assert not Path(loaded[0]).exists(), "the copy goes away"
    monkeypatch.setattr(ncu_rep, "MAX_COPY_BYTES", -1)
    with pytest.raises(FormatError, match="unpack it"):
        ncu_rep.read([source])


def test_missing_module_names_both_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(
        InputError, match=r"pip install ncu-report.*ncu --import FILE.ncu-rep --csv --page raw"
    ):
        ncu_rep.read([Source(path=report_file(tmp_path), label="run")])


def test_reports_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(path=report_file(tmp_path), label="run")
    module(monkeypatch)
    with pytest.raises(FormatError, match=r"run: ncu_report .*no kernel"):
        ncu_rep.read([source])
    module(monkeypatch, Range([Action("k", {})]))
    with pytest.raises(FormatError, match=r"run: ncu_report cannot read"):
        ncu_rep.read([replace(source, path=tmp_path / "gone.ncu-rep")])

    class Broken(Action):
        def metric_names(self) -> tuple[str, ...]:
            raise RuntimeError("bad block")

    module(monkeypatch, Range([Broken("k", {})]))
    with pytest.raises(FormatError, match=r"cannot be read \(RuntimeError: bad block\)"):
        ncu_rep.read([source])


def test_first_bytes_decide() -> None:
    assert ncu_rep.is_mine(NVR, "anything")
    assert ncu_rep.is_mine(b"\x00\x01", "run.ncu-rep")
    assert not ncu_rep.is_mine(b'"ID","Process ID"', "run.ncu-rep")
    assert not ncu_rep.is_mine(b"\x00\x01", "run.sqlite")


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "ncu-rep", "run.ncu-rep", NVR
