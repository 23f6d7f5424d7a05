"""Nsight Compute's CSV, both pages: figures against the cells themselves, hostile files."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stepscope.core.recordings.kernels import KernelMetrics, KernelReport
from stepscope.errors import FormatError, StepscopeError
from stepscope.readers.detect import format_of
from stepscope.readers.format import Source
from stepscope.recordings.ncu import csv as ncu_csv
from stepscope.recordings.ncu.csv import metric_of_label
from stepscope.recordings.ncu.units import number_of, scale_of
from tests.recording_texts import texts_of
from tests.shared_data import SAMPLES
from tests.wording import any_mentions, mentions

RAW = SAMPLES / "formats/ncu_raw.csv"
DETAILS = SAMPLES / "formats/ncu_details.csv"
COPY, GEMM, SMALL_GRID, CAST, REDUCE = 1, 2, 7, 8, 11
"""Rows of the raw page by what they are."""


def read(path: Path) -> KernelReport:
    return ncu_csv.read([Source(path=path, label=path.name)])


def cells() -> list[dict[str, str]]:
    """The raw page, by nothing but the csv module."""
    lines = [line for line in RAW.read_text().splitlines() if line and not line.startswith("==")]
    names, _, *rows = csv.reader(lines)
    return [dict(zip(names, row, strict=True)) for row in rows]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def wide(
    tmp_path: Path,
    metrics: dict[str, tuple[str, str]],
    name: str = "k",
    before: str = "",
    after: str = "",
) -> Path:
    """A raw page with one launch: metric -> unit and value."""
    fixed = [
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Block Size",
        "Grid Size",
    ]
    rows = [
        [*fixed, *metrics],
        [*[""] * len(fixed), *(unit for unit, _ in metrics.values())],
        [
            "0",
            "1",
            "python",
            "h",
            name,
            "(128, 1, 1)",
            "(64, 2, 1)",
            *(value for _, value in metrics.values()),
        ],
    ]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    path = tmp_path / "ncu.csv"
    path.write_text(f"{before}{text}\n{after}")
    return path


def test_raw_page_has_the_figures_of_its_cells() -> None:
    rows, report = cells(), read(RAW)
    assert len(report.kernels) == len(rows) == 12
    percents = {
        "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "theoretical_occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "compute_throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "dram_throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "l2_throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "tensor_pipe": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "l2_hits": "lts__t_sector_hit_rate.pct",
        "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    }
    plain = {
        "duration_ns": "gpu__time_duration.sum",
        "registers": "launch__registers_per_thread",
        "waves": "launch__waves_per_multiprocessor",
        "dram_read_bytes": "dram__bytes_read.sum",
        "dram_write_bytes": "dram__bytes_write.sum",
        "instructions": "smsp__inst_executed.sum",
        "shared_wavefronts": "memory_l1_wavefronts_shared",
    }
    for kernel, row in zip(report.kernels, rows, strict=True):
        assert kernel.name == row["Kernel Name"]
        assert str(kernel.grid) == row["Grid Size"]
        assert str(kernel.block) == row["Block Size"]
        assert kernel.device == "NVIDIA H200"
        for field, metric in percents.items():
            assert getattr(kernel, field) == pytest.approx(number(row[metric]) / 100), (
                kernel.name,
                field,
            )
        for field, metric in plain.items():
            assert getattr(kernel, field) == pytest.approx(number(row[metric])), (
                kernel.name,
                field,
            )


def test_raw_page_tells_limits_stalls_and_sectors() -> None:
    rows, kernels = cells(), read(RAW).kernels
    assert kernels[GEMM].limiters == ("registers", "shared memory")
    assert kernels[REDUCE].limiters == ("registers",)
    assert kernels[COPY].limiters == ()
    start, end = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
    for kernel, row in zip(kernels, rows, strict=True):
        cycles = {
            name[len(start) : -len(end)]: number(row[name])
            for name in row
            if name.startswith(start)
        }
        assert kernel.stalls == pytest.approx(
            {reason: value / sum(cycles.values()) for reason, value in cycles.items()}
        )
    assert next(iter(kernels[COPY].stalls)) == "long_scoreboard"
    cast = kernels[CAST]
    assert (cast.load_sectors, cast.load_sectors_ideal) == (1048576 / 32768, 16)
    assert (cast.store_sectors, cast.store_sectors_ideal) == (262144 / 16384, 16)
    assert (cast.global_load_sectors, cast.l2_load_sectors) == (1048576, 524288)
    assert kernels[GEMM].load_sectors is None, (
        "the matrix product loads through TMA: no such requests"
    )
    assert kernels[SMALL_GRID].active == pytest.approx(9207.54 / 44106.82)
    assert kernels[SMALL_GRID].local_bytes == 0, "measured: none"


def test_raw_page_tells_the_roofline() -> None:
    kernels = read(RAW).kernels
    gemm = kernels[GEMM]
    assert gemm.tensor_flops == 2 * 4096 * 1024 * 32000
    assert gemm.vector_flops == 0
    assert gemm.intensity == pytest.approx(2 * 4096 * 1024 * 32000 / (419_870_976 + 61_566_464))
    assert gemm.roof is not None
    assert gemm.roof[0] == "tensor pipe"
    assert gemm.roof[1] == pytest.approx(0.8901)
    assert kernels[COPY].vector_flops == pytest.approx(222.29 * 4 * 589_059.77), (
        "two lanes, two operations an FMA"
    )


def test_details_page_agrees_with_the_raw_page() -> None:
    details, raw = read(DETAILS).kernels, read(RAW).kernels[:4]
    assert len(details) == 4
    for mine, theirs in zip(details, raw, strict=True):
        for field in (
            "name",
            "grid",
            "block",
            "registers",
            "shared_bytes",
            "waves",
            "limiters",
        ):
            assert getattr(mine, field) == getattr(theirs, field), field
        assert mine.num_multiprocessors == theirs.num_multiprocessors == 132
        for field in (
            "duration_ns",
            "occupancy",
            "compute_throughput",
            "dram_throughput",
            "l2_throughput",
            "l1_throughput",
        ):
            assert getattr(mine, field) == pytest.approx(getattr(theirs, field), rel=0.07), field
        assert mine.active == pytest.approx(theirs.active, rel=0.05)
        assert mine.stalls == {}
        assert mine.tensor_pipe is mine.dram_read_bytes is mine.load_sectors is None, (
            "not in the basic set"
        )
    recording = texts_of(read(DETAILS))[0]
    assert any(
        "AchievedOccupancy" in cell
        for table in recording.tables
        for row in table.rows
        for cell in row
    )


def test_formats_are_told_by_their_bytes() -> None:
    for path in sorted((SAMPLES / "formats").iterdir()):
        if path.suffix == ".zst":
            continue
        mine = ncu_csv.is_mine(path.read_bytes()[: 64 << 10], path.name)
        assert mine == (path in (RAW, DETAILS)), path.name
    for path in (RAW, DETAILS):
        found = format_of(path.read_bytes()[: 64 << 10], "stats.txt")
        assert found is not None
        assert found.name == "ncu-csv"


def test_units_become_base_units(tmp_path: Path) -> None:
    path = wide(
        tmp_path,
        {
            "gpu__time_duration.sum": ("us", "78.91"),
            "launch__shared_mem_per_block_static": ("Kbyte/block", "1.02"),
            "launch__shared_mem_per_block_dynamic": ("byte/block", "16"),
            "dram__bytes_read.sum": ("Mbyte", "1,234.5"),
            "dram__bytes.sum.peak_sustained": ("byte/cycle", "1,504"),
            "dram__cycles_elapsed.avg.per_second": ("cycle/nsecond", "3.2"),
            "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "14.95"),
            "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "no data"),
            "launch__sm_count": ("", "132 (1; 1; 1)"),
        },
    )
    (kernel,) = read(path).kernels
    assert kernel.duration_ns == pytest.approx(78_910)
    assert kernel.shared_bytes == pytest.approx(1036)
    assert kernel.dram_read_bytes == pytest.approx(1.2345e9)
    assert (
        kernel.dram_write_bytes is kernel.dram_bytes is kernel.l2_throughput is kernel.flops is None
    )
    assert kernel.compute_throughput == pytest.approx(0.1495)
    assert (kernel.num_multiprocessors, kernel.grid, kernel.block) == (132, (64, 2, 1), (128, 1, 1))


@pytest.mark.parametrize(
    ("unit", "scale"),
    [
        ("ns", 1),
        ("usecond", 1e3),
        ("msecond", 1e6),
        ("s", 1e9),
        ("Ghz", 1e9),
        ("cycle/usecond", 1e6),
        ("Gbyte/second", 1e9),
        ("Gbyte/s", 1e9),
        ("%", 1),
        ("sector", 1),
        ("register/thread", 1),
        ("", 1),
    ],
)
def test_scale_of_a_unit(unit: str, scale: float) -> None:
    assert scale_of(unit) == pytest.approx(scale)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nan",
        "inf",
        "no data",
        "PolicySpread",
        "64,75",
        "1,2,3",
        "--1",
        "0x10",
        "1e999",
        "1e200",
        "9" * 70,
    ],
)
def test_what_is_no_number_is_not_zero(text: str) -> None:
    assert number_of(text) is None


STALL, ISSUE = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio", ("inst", "1.0")
EVERY = ("selected", "not_selected", "wait", "long_scoreboard", "short_scoreboard", "barrier")


def test_stalls_are_shares_only_of_all_of_them(tmp_path: Path) -> None:
    """A metric that was asked for alone is not 100 % of the warps' time."""

    def stalls(metrics: dict[str, tuple[str, str]]) -> dict[str, float]:
        return dict(read(wide(tmp_path, metrics)).kernels[0].stalls)

    alone = {STALL.format("long_scoreboard"): ("inst", "2.0")}
    assert stalls(alone) == {}
    latency = {"smsp__average_warp_latency_per_inst_issued.ratio": ("cycle", "10.0")}
    assert stalls(alone | latency) == {"long_scoreboard": 0.2}
    whole = {STALL.format(reason): ISSUE for reason in EVERY}
    assert stalls(whole) == {reason: pytest.approx(1 / 6) for reason in EVERY}
    again = {STALL.format(f"{reason}_not_issued"): ISSUE for reason in EVERY}
    assert stalls(whole | again) == stalls(whole), "the same time, counted another way"
    sampled = {f"smsp__pcsamp_warps_issue_stalled_{reason}": ("", "5") for reason in EVERY}
    assert stalls(sampled) == stalls(whole)
    assert stalls({"smsp__pcsamp_warps_issue_stalled_wait": ("", "5")}) == {}
    percent = {"smsp__warp_issue_stalled_barrier_per_warp_active.pct": ("%", "37.5")}
    assert stalls(percent) == {"barrier": 0.375}, "as the table for users of nvprof names it"


def test_tensor_pipes_of_all_generations(tmp_path: Path) -> None:
    def pipe(metrics: dict[str, str]) -> float | None:
        kernel = read(
            wide(
                tmp_path,
                {"launch__waves_per_multiprocessor": ("", "2")}
                | {k: ("%", v) for k, v in metrics.items()},
            )
        )
        return kernel.kernels[0].tensor_pipe

    whole = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
    blackwell = "sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_elapsed"
    half = "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active"
    assert pipe({}) is None
    assert pipe({whole: "52.36", blackwell: "59.93"}) == pytest.approx(0.5993)
    assert pipe({whole: "69.19", blackwell: "0"}) == pytest.approx(0.6919)
    assert pipe({half: "40"}) == pytest.approx(0.4)
    assert pipe({half: "0"}) is None, "other types of operation were not asked for"
    assert pipe({whole: "0"}) == 0


def test_a_limit_of_zero_blocks_is_none(tmp_path: Path) -> None:
    limits = {"registers": "4", "shared_mem": "8", "warps": "16", "blocks": "32", "barriers": "0"}
    metrics = {
        f"launch__occupancy_limit_{name}": ("block", value) for name, value in limits.items()
    }
    (kernel,) = read(
        wide(tmp_path, metrics | {"sm__maximum_warps_per_active_cycle_pct": ("%", "25")})
    ).kernels
    assert kernel.limiters == ("registers",)


def test_decimal_commas_are_refused_not_misread(tmp_path: Path) -> None:
    """1.024 is a thousand there, and 78,91 no number here."""
    metrics = {
        "gpu__time_duration.sum": ("us", "78,91"),
        "launch__waves_per_multiprocessor": ("", "1.024"),
    }
    with pytest.raises(FormatError, match=r"decimal commas.*LC_ALL=C"):
        read(wide(tmp_path, metrics))
    one = wide(tmp_path, metrics).read_text()
    other = wide(tmp_path, {"gpu__time_duration.sum": ("us", "78.91")}).read_text()
    path = tmp_path / "both.csv"
    path.write_text(one + other)
    report = read(path)
    assert [kernel.duration_ns for kernel in report.kernels] == [78_910]
    assert any_mentions(report.recordings[0].notes, "1 launches", "decimal commas")


def test_details_with_decimal_commas_are_refused_too(tmp_path: Path) -> None:
    text = DETAILS.read_text()
    path = tmp_path / "details.csv"
    path.write_text(
        text.replace('"%","64.75"', '"%","64,75"').replace('"%","61.96"', '"%","61,96"')
    )
    assert len(read(path).kernels) == len(read(DETAILS).kernels) - 1


def test_without_the_line_of_units_times_and_bytes_are_not_told(tmp_path: Path) -> None:
    path = wide(
        tmp_path,
        {
            "gpu__time_duration.sum": ("us", "78.91"),
            "launch__waves_per_multiprocessor": ("", "2.5"),
        },
    )
    names, _, row = path.read_text().splitlines()
    path.write_text(f"{names}\n{row}\n")
    report = read(path)
    assert (report.kernels[0].duration_ns, report.kernels[0].waves) == (None, 2.5)
    assert any_mentions(report.recordings[0].notes, "without", "units")


def test_labels_of_2020() -> None:
    assert metric_of_label("SM [%]", "%") == "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def test_labels_with_two_meanings_go_by_their_unit() -> None:
    assert metric_of_label("DRAM Throughput", "%") is not None
    assert metric_of_label("DRAM Throughput", "byte/second") is None
    assert metric_of_label("Stall Long Scoreboard", "inst") == (
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
    )
    assert metric_of_label("gpu__time_duration.sum", "ns") == "gpu__time_duration.sum"
    assert metric_of_label("Mem Busy", "%") is None


def test_output_of_the_program_between_is_no_row(tmp_path: Path) -> None:
    noise = 'loss 0.5, "step", 3\n==PROF== Disconnected\n5 warnings\n"0"\n'
    path = wide(tmp_path, {"gpu__time_duration.sum": ("ns", "7")}, before=noise, after=noise)
    report = read(path)
    assert [kernel.duration_ns for kernel in report.kernels] == [7]
    (note,) = report.recordings[0].notes
    assert mentions(note, "1 rows", "cut short", "left out")


def test_two_tables_in_a_file_keep_their_own_columns(tmp_path: Path) -> None:
    first = wide(tmp_path, {"gpu__time_duration.sum": ("us", "7")}).read_text()
    second = wide(
        tmp_path,
        {"launch__sm_count": ("", "3"), "gpu__time_duration.sum": ("ns", "9")},
        name="other",
    ).read_text()
    path = tmp_path / "both.csv.gz"
    path.write_bytes(gzip.compress((first + second).encode()))
    report = ncu_csv.read([Source(path=path, label="both")])
    assert [(kernel.name, kernel.duration_ns) for kernel in report.kernels] == [
        ("k", 7000),
        ("other", 9),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "CSV table"),
        (
            (
                "==PROF== Connected to process 1 (python)\n==ERROR== ERR_NVGPUCTRPERM - no "
                "permission\n"
            ),
            "ERR_NVGPUCTRPERM",
        ),
        ("==PROF== Connected to process 1 (python)\n", "--csv --page raw"),
        ('"ID","Process ID","Process Name","Host Name","Kernel Name"\n', "has no kernel"),
        ("\x00\xff garbage " * 100, "CSV table"),
    ],
)
def test_nothing_measured_says_what_to_do(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=words):
        read(path)


@pytest.mark.parametrize("sample", [RAW, DETAILS], ids=["raw", "details"])
def test_truncated_files_give_whole_kernels_or_a_reason(tmp_path: Path, sample: Path) -> None:
    data, whole = sample.read_bytes(), read(sample).kernels
    path = tmp_path / "cut.csv"
    counts = []
    for part in range(0, len(data), len(data) // 25):
        path.write_bytes(data[:part])
        try:
            found: tuple[KernelMetrics, ...] = read(path).kernels
        except StepscopeError:
            found = ()
        counts.append(len(found))
        for mine, theirs in list(zip(found, whole, strict=False))[: None if sample is RAW else -1]:
            assert mine == theirs
    assert counts == sorted(counts)
    assert counts[-1] >= 3


def test_hostile_tables_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_csv, "MAX_KERNELS", 3)
    monkeypatch.setattr(ncu_csv, "MAX_LINE_BYTES", 4096)
    path = wide(
        tmp_path,
        {
            "gpu__time_duration.sum": ("ns", "-7"),
            "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "x"),
        },
    )
    row = path.read_text().splitlines()[-1]
    path.write_text(
        path.read_text()
        + f"{row}\n" * 9
        + '"'
        + "a" * 5000
        + '"\n'
        + '"7","unclosed\n'
        + row.replace("128", "9" * 30)
    )
    report = read(path)
    assert len(report.kernels) == 3
    assert all(kernel.duration_ns is None and kernel.occupancy is None for kernel in report.kernels)
    notes = " ".join(report.recordings[0].notes)
    assert mentions(notes, "after the first 3")
    assert "too long" in notes


def test_long_page_with_a_new_launch_in_every_row_is_capped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu_csv, "MAX_KERNELS", 5)
    header = (
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Metric Name","Metric '
        'Unit","Metric Value","Rule Name"\n'
    )
    rows = "".join(f'"{i}","1","p","h","k{i}","Duration","us","{i}",""\n' for i in range(50))
    path = tmp_path / "d.csv"
    path.write_text(header + rows)
    report = read(path)
    assert [kernel.duration_ns for kernel in report.kernels] == [0, 1000, 2000, 3000, 4000]
    assert "45 rows of launches" in report.recordings[0].notes[0]


def samples() -> Iterator[tuple[str, str, bytes]]:
    metrics = {
        "gpu__time_duration.sum": ("us", "78.91"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "61.2"),
        "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "44.1"),
        "dram__bytes_read.sum": ("Mbyte", "12.5"),
        "launch__registers_per_thread": ("register/thread", "128"),
    }
    with TemporaryDirectory() as folder:
        yield "ncu-csv", "ncu.csv", wide(Path(folder), metrics).read_bytes()
