"""The table that nvidia-smi prints: one look at each device, which is no run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.errors import FormatError
from stepscope.readers.detect import format_of
from stepscope.readers.format import Source
from stepscope.recordings.system import idle_device
from stepscope.recordings.system.nvidia_smi_table import read_file
from tests.recording_texts import system_report
from tests.wording import mentions

TABLE = """\
Thu Nov 19 08:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
| N/A   41C    P0             119W / 700W |   78000MiB /  81559MiB |     35%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GeForce RTX 3090        Off |   00000000:2A:00.0 Off |                  N/A |
| 30%   52C    P2             340W / 350W |   20000MiB /  24576MiB |    100%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|  Processes:                                                                             |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|    0   N/A  N/A      4711      C   python                                      77990MiB |
+-----------------------------------------------------------------------------------------+
"""


def source_of(tmp_path: Path, text: str) -> Source:
    path = tmp_path / "smi.txt"
    path.write_text(text)
    return Source(path=path, label="smi.txt")


def test_each_device_is_read(tmp_path: Path) -> None:
    found = format_of(TABLE.encode(), "smi.txt")
    assert found is not None
    assert found.name == "nvidia-smi-table"
    first, second = read_file(source_of(tmp_path, TABLE)).devices
    assert (first.index, first.name) == (0, "NVIDIA H100 80GB HBM3")
    assert first.used_share == pytest.approx(0.35)
    assert first.power_limit_w == 700.0
    assert (first.memory_total_bytes, first.num_samples) == (81559 * 2**20, 1)
    assert second.name == "NVIDIA GeForce RTX 3090"
    assert second.power_w is not None
    assert (second.used_share, second.power_w.median) == (1.0, 340.0)


def test_one_look_is_said_to_be_one(tmp_path: Path) -> None:
    devices = read_file(source_of(tmp_path, TABLE)).devices
    said = idle_device.advise(Auxiliary(system=system_report(devices=devices)))
    assert isinstance(said, Advice)
    assert mentions(said.summary, "only look", "35%")
    devices = read_file(source_of(tmp_path, 6 * TABLE)).devices
    said = idle_device.advise(Auxiliary(system=system_report(devices=devices)))
    assert isinstance(said, Advice)
    assert mentions(said.summary, "35% of the time")
    assert "look" not in said.summary


@pytest.mark.parametrize("size", range(0, len(TABLE), 61))
def test_a_table_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path, size: int) -> None:
    try:
        devices = read_file(source_of(tmp_path, TABLE[:size])).devices
    except FormatError:
        devices = ()
    assert len(devices) <= 2


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "nvidia-smi-table", "smi.txt", TABLE.encode()
