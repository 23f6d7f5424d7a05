"""nvidia-smi's samples: the lab's two against figures reckoned here, and what a file may hold
besides."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import pytest

from stepscope.core.recordings.system import SystemReport
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.system import device_samples, nvidia_smi
from tests.recording_texts import texts_of
from tests.shared_data import SAMPLES
from tests.wording import any_mentions

LAB = SAMPLES / "formats"
HEADER = (
    "timestamp, index, name, utilization.gpu [%], clocks.current.sm [MHz], clocks.max.sm [MHz], "
    "clocks_event_reasons.active\n"
)


def read(path: Path) -> SystemReport:
    return SystemReport(recordings=(nvidia_smi.read_file(Source(path=path, label=str(path))),))


def of_text(folder: Path, text: str | bytes) -> SystemReport:
    path = folder / "smi.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


def test_lab_csv_has_the_figures_of_its_cells() -> None:
    rows = list(
        csv.DictReader(
            (LAB / "nvidia_smi.csv").read_text(encoding="utf-8").splitlines(), skipinitialspace=True
        )
    )
    busy = [float(row["utilization.gpu [%]"].split()[0]) / 100 for row in rows]
    power = [float(row["power.draw [W]"].split()[0]) for row in rows]
    used = [float(row["memory.used [MiB]"].split()[0]) * 1024**2 for row in rows]
    clocks = [float(row["clocks.current.sm [MHz]"].split()[0]) for row in rows]

    (device,) = read(LAB / "nvidia_smi.csv").devices

    assert (device.index, device.name, device.num_samples) == (None, "NVIDIA H200", len(rows))
    assert device.busy_share is not None
    assert device.power_w is not None
    assert device.memory_used_bytes is not None
    assert device.sm_clock_mhz is not None
    assert device.sm_clock_working_mhz is not None
    assert device.busy_share.median == pytest.approx(median(busy))
    assert device.power_w.median == pytest.approx(median(power))
    assert device.memory_used_bytes.median == pytest.approx(median(used))
    assert device.sm_clock_mhz.median == median(clocks)
    assert device.num_working == sum(one >= 0.1 for one in busy) == 1
    assert device.sm_clock_working_mhz.median == 1965  # the one sample at 100 %
    assert device.throttled == {"sw_power_cap": 1.0}  # its mask is 0x4
    assert device.span_s == pytest.approx(25.053)  # 02:01:04.497 to 02:01:29.550
    assert device.max_sm_clock_mhz is None


def test_lab_dmon_has_the_figures_of_its_columns() -> None:
    lines = (LAB / "dmon.txt").read_text(encoding="utf-8").splitlines()
    names = lines[0].lstrip("# ").split()
    rows = [dict(zip(names, map(float, line.split()), strict=True)) for line in lines[2:]]

    (device,) = read(LAB / "dmon.txt").devices

    assert (device.index, device.num_samples, device.num_working) == (
        0,
        12,
        sum(row["sm"] >= 10 for row in rows),
    )
    assert device.power_w is not None
    assert device.pcie_rx_bytes_per_s is not None
    assert device.power_working_w is not None
    assert device.power_w.median == median(row["pwr"] for row in rows)
    assert device.power_working_w.median == 391
    assert (
        device.pcie_rx_bytes_per_s.high
        == sorted(row["rxpci"] for row in rows)[round(0.9 * 11)] * 1e6
    )
    assert device.throttled == {}  # told, and never so
    assert device.span_s is None  # no times


def test_only_its_own_files_of_the_lab_are_claimed() -> None:
    claimed = [
        path.name
        for path in sorted(LAB.iterdir())
        if nvidia_smi.is_mine(path.read_bytes()[: 64 << 10], path.name)
    ]

    assert claimed == ["dmon.txt", "nvidia_smi.csv"]


def test_csv_without_units_and_with_single_reasons(tmp_path: Path) -> None:
    text = (
        "index, utilization.gpu [%], power.draw [W], power.limit [W], "
        "clocks_throttle_reasons.hw_thermal_slowdown\n"
        "0, 97, 391.5, 700.00, Active\n"
        "1, [Not Supported], N/A, [N/A], Not Active\n"
        "0, 99, 400.5, 700.00, Not Active\n"
    )

    zero, one = of_text(tmp_path, text).devices

    assert zero.throttled == {"hw_thermal_slowdown": 0.5}
    assert zero.power_limit_w == 700
    assert zero.power_w is not None
    assert zero.power_w.median == 396
    assert (one.busy_share, one.power_w, one.num_working) == (None, None, None)
    assert one.throttled == {}


def test_devices_are_told_apart_by_what_there_is(tmp_path: Path) -> None:
    text = (
        "uuid, utilization.gpu [%], temperature.gpu\nGPU-b, 10 %, 40\nGPU-a, 20 %, 50\nGPU-b, 30 "
        "%, 60\n"
    )

    first, second = of_text(tmp_path, text).devices

    assert first.temperature_c is not None
    assert (first.num_samples, first.temperature_c.median, second.num_samples) == (2, 50, 1)


def test_dmon_with_date_and_time_and_violations(tmp_path: Path) -> None:
    text = (
        "#Date       Time        gpu    pwr     sm   pclk  pviol  tviol\n"
        "#YYYYMMDD   HH:MM:SS    Idx      W      %    MHz      %   bool\n"
        " 20261115   02:01:04      0    391     97   1400     50      0\n"
        " 20261115   02:01:06      0    391     97   1500    100      1\n"
        " 20261115   02:01:06      1      -      -      -      -      -\n"
    )

    zero, one = of_text(tmp_path, text).devices

    assert zero.throttled == {"power_violation": 0.75, "thermal_violation": 0.5}
    assert zero.span_s == 2
    assert (one.busy_share, one.throttled) == (None, None)


def test_damage_costs_its_lines_alone(tmp_path: Path) -> None:
    good = "2026/11/15 02:01:04.497, 0, GPU\x1b[31m, 97 %, 1980 MHz, 1980 MHz, 0x4\n"
    bad = (
        "2026/11/15, 0\n"
        + "x" * 200_000
        + "\n"
        + "t, 0, n, "
        + "9" * 60
        + ", -5 MHz, 1e999, 0x"
        + "f" * 99
        + "\n"
    )

    report = of_text(tmp_path, HEADER + good + bad + good + "2026/11/15 02:0")

    (device,) = report.devices
    assert device.num_samples == 3  # the one with absurd figures is a sample of nothing
    assert device.sm_clock_mhz is not None
    assert (device.sm_clock_mhz.num, device.sm_clock_mhz.median) == (2, 1980)
    assert any_mentions(report.recordings[0].notes, "3 line", "not be read")
    assert any("longer than" in note for note in report.recordings[0].notes)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00\xff" * 5000,
        HEADER.encode(),
        b"# gpu pwr sm\n",
        b"# gpu pwr sm\n# Idx W %\n x y z\n",
    ],
)
def test_nothing_to_read_is_said(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(FormatError, match="no sample"):
        of_text(tmp_path, text)


def test_any_cut_of_a_file_is_read_or_refused(tmp_path: Path) -> None:
    text = (
        HEADER + "2026/11/15 02:01:04.497, 0, H200, 97 %, 1980 MHz, 1980 MHz, 0x4\n" * 3
    ).encode()
    for end in range(0, len(text), 7):
        with suppress(FormatError):
            assert of_text(tmp_path, text[:end]).devices


def test_samples_beyond_the_limit_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_samples, "MAX_SAMPLES", 10)

    report = of_text(tmp_path, HEADER + "t, 0, n, 97 %, 1980 MHz, 1980 MHz, 0x4\n" * 25)

    assert report.devices[0].num_samples == 10
    assert any_mentions(report.recordings[0].notes, "15 samples", "first 10")


@pytest.mark.parametrize(
    "head",
    [
        b"name, value\na, 1\n",
        b'"ID","Process ID","Kernel Name"\n',
        b"# gpu memory was 3 GB\n",
        b"index, loss\n0, 1\n",
    ],
)
def test_other_tables_are_not_claimed(head: bytes) -> None:
    assert not nvidia_smi.is_mine(head, "x.csv")


def test_what_was_sampled_around_the_run_is_not_of_the_run() -> None:
    (device,) = read(LAB / "dmon.txt").devices
    assert device.busy_share is not None
    assert device.busy_run_share is not None
    assert (device.busy_share.median, device.busy_run_share.median, device.busy_run_share.num) == (
        0.0,
        0.97,
        1,
    )
    assert device.used_share == 0.97


def test_pauses_inside_the_run_count(tmp_path: Path) -> None:
    rows = "".join(f"    0  {busy}  100\n" for busy in (0, 0, 90, 0, 90, 0, 0, 0))
    (device,) = of_text(tmp_path, f"# gpu  sm  pwr\n# Idx  %  W\n{rows}    1  0  60\n").devices[:1]
    assert device.busy_run_share is not None
    assert (device.busy_run_share.num, device.busy_run_share.median) == (3, 0.9)
    assert read(tmp_path / "smi.csv").devices[1].used_share is None, "nobody used it"


def test_dmon_over_midnight_without_a_date(tmp_path: Path) -> None:
    head = "#Time        gpu    sm   pwr\n#HH:MM:SS    Idx     %     W\n"
    rows = [
        f" {time}  {gpu}  90  100\n"
        for time in ("23:59:58", "23:59:59", "00:00:00", "00:00:01")
        for gpu in (0, 1)
    ]
    report = of_text(tmp_path, head + "".join(rows[:3]) + head + "".join(rows[3:]))
    assert [device.span_s for device in report.devices] == [3.0, 3.0]


def test_devices_without_an_index_say_which_is_which(tmp_path: Path) -> None:
    text = "uuid, utilization.gpu [%], power.draw [W]\nGPU-bb, 90 %, 100 W\nGPU-aa, 10 %, 60 W\n"
    (recording,) = texts_of(of_text(tmp_path, text))
    assert any_mentions(recording.notes, "0 is GPU-bb", "1 is GPU-aa")


def samples() -> Iterator[tuple[str, str, bytes]]:
    rows = "".join(
        f"2026/01/01 00:00:0{second}.000, 0, NVIDIA H200, {90 + second} %, 1500 MHz, "
        "1980 MHz, 0x4\n"
        for second in range(4)
    )
    yield "nvidia-smi", "smi.csv", (HEADER + rows).encode()
