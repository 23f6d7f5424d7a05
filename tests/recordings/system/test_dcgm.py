"""DCGM's two texts, by hand-written samples in the shape its tools print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.system import SystemReport
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.system import dcgm
from tests.wording import any_mentions

DMON = """\
#Entity   GRACT        SMACT        TENSO        DRAMA        POWER            SMCLK  DVCCTR
ID                                                            W
GPU 1     N/A          N/A          N/A          N/A          140737488355328  2147483632  0
GPU 0     0.984        0.930        0.100        0.252        391.2            1800   4
GPU 1     1.000        0.926        0.038        0.869        300.0            1980   0
GPU 0     0.500        0.916        0.300        0.881        399.2            1900   36
"""
LABELS = 'gpu="3",UUID="GPU-5f",modelName="NVIDIA H200",Hostname="node7"'
SCRAPE = f"""\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{{LABELS}}} %s
DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 95
DCGM_FI_DEV_FB_USED{{{LABELS}}} 1024
DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} 0
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{{LABELS}}} %s
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{LABELS}}} 0.25
DCGM_FI_DEV_GPU_UTIL{{gpu="3",GPU_I_ID="1",Hostname="node7"}} 5
"""


def of_text(folder: Path, text: str | bytes) -> SystemReport:
    path = folder / "dcgm.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return SystemReport(recordings=(dcgm.read_file(Source(path=path, label=str(path))),))


def test_dmon_takes_columns_by_their_short_names(tmp_path: Path) -> None:
    assert dcgm.is_mine(DMON.encode(), "x")

    zero, one = of_text(tmp_path, DMON).devices

    assert zero.engine_active_share is not None
    assert zero.tensor_active_share is not None
    assert zero.power_w is not None
    assert one.power_w is not None
    assert one.sm_clock_mhz is not None
    assert zero.engine_active_share.median == pytest.approx(0.742)
    assert zero.tensor_active_share.median == pytest.approx(0.2)
    assert zero.power_w.median == pytest.approx(395.2)
    assert (one.num_samples, one.num_working) == (2, 1)
    assert (one.power_w.num, one.power_w.median) == (1, 300)  # DCGM's blank is no power
    assert (one.sm_clock_mhz.num, one.sm_clock_mhz.median) == (1, 1980)
    assert zero.throttled == {"sw_power_cap": 1.0, "sw_thermal_slowdown": 0.5}
    assert one.throttled == {}
    assert zero.busy_share is None


def test_exporter_looks_become_samples(tmp_path: Path) -> None:
    text = "".join(SCRAPE % pair for pair in ((1980, 0), (1500, 64), (1400, 64)))
    assert dcgm.is_mine(text.encode(), "metrics")

    report = of_text(tmp_path, text)

    (device,) = report.devices
    assert (device.host, device.index, device.name, device.num_samples) == (
        "node7",
        3,
        "NVIDIA H200",
        3,
    )
    assert device.sm_clock_mhz is not None
    assert device.busy_share is not None
    assert device.memory_used_bytes is not None
    assert device.sm_clock_mhz.median == 1500
    assert device.busy_share.median == pytest.approx(0.95)
    assert device.memory_used_bytes.median == 2**30
    assert device.throttled == {"hw_thermal_slowdown": 2 / 3}
    assert any_mentions(report.recordings[0].notes, "3 value", "parts")


def test_damaged_rows_are_counted(tmp_path: Path) -> None:
    report = of_text(
        tmp_path,
        DMON
        + "GPU 0     0.5\nGPU 0     "
        + "9" * 400
        + " a b c d e f\n"
        + 'DCGM_FI_DEV_GPU_UTIL{gpu="0\n',
    )

    assert report.devices[0].num_samples == 3
    assert any_mentions(report.recordings[0].notes, "2 line", "not be read")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\x00" * 999,
        b"#Entity   GRACT\nID\n",
        b"DCGM_FI_DEV_GPU_UTIL 1\n",
        DMON[:90].encode(),
    ],
)
def test_nothing_to_read_is_said(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(FormatError, match="no sample"):
        of_text(tmp_path, text)


@pytest.mark.parametrize(
    "head",
    [b"# HELP node_cpu_seconds_total x\n", b"# gpu pwr\n", b"#Entity\n", b'{"a": "DCGM_FI_"}'],
)
def test_other_texts_are_not_claimed(head: bytes) -> None:
    assert not dcgm.is_mine(head, "x")


def test_rows_of_parts_of_a_device_are_counted(tmp_path: Path) -> None:
    report = of_text(
        tmp_path,
        DMON
        + (
            "GPU-I 3   0.5  0.5  0.5  0.5  100.0  1800  0\nGPU-CI 7   0.5  0.5  0.5  0.5  100.0  "
            "1800  0\n"
        ),
    )
    assert [device.num_samples for device in report.devices] == [2, 2]
    assert any_mentions(report.recordings[0].notes, "2 row", "parts")


@pytest.mark.parametrize("names", ["EPLMT  PMLMT", "PMLMT  EPLMT"])
def test_the_limit_that_is_enforced_is_the_one_that_counts(tmp_path: Path, names: str) -> None:
    enforced_first = names.startswith("EPLMT")
    limits = "600  700" if enforced_first else "700  600"
    text = f"#Entity  POWER  {names}\nID\nGPU 0  500.0  {limits}\nGPU 0  500.0  {limits}\n"

    (device,) = of_text(tmp_path, text).devices

    assert device.power_limit_w == 600


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "dcgm", "dcgm.txt", DMON.encode()
    yield "dcgm", "metrics.txt", (SCRAPE % (1980, 0) + SCRAPE % (1500, 64)).encode()
