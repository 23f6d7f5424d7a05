"""Tables of nvidia-smi topo -m and rocm-smi --showtopo, as people have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.system import SystemReport
from stepscope.errors import FormatError
from stepscope.readers.detect import formats_of
from stepscope.readers.format import Source
from stepscope.recordings.system.nvidia_topo import MAX_DEVICES, is_mine, read
from tests.recording_texts import texts_of
from tests.shared_data import SAMPLES
from tests.wording import mentions

NVIDIA = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\tSYS\t0-23,96-119\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tNODE\tSYS\t0-23,96-119\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\tPHB\t48-71\tN/A\t\tN/A
NIC0\tPIX\tNODE\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPHB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_0
"""  # noqa: E501
ROCM = """\


============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           40
GPU1   15           0            40
GPU2   40           40           0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[2]\t\t: (Topology) Numa Node: 3
================================== End of ROCm SMI Log ===================================
"""


def read_text(tmp_path: Path, text: str) -> SystemReport:
    path = tmp_path / "topo.txt"
    path.write_text(text)
    return read([Source(path=path, label="topo.txt")])


def test_a_real_table_of_one_device() -> None:
    path = SAMPLES / "formats" / "topo.txt"
    assert is_mine(path.read_bytes(), path.name)
    report = read([Source(path=path, label=str(path))])
    (device,) = report.topologies[0].devices
    assert (device.name, device.peers, device.networks, device.cores, device.numa) == (
        "GPU0",
        {},
        {},
        "0-15",
        "0",
    )
    assert ("devices", "1, by nvidia-smi topo") in texts_of(report)[0].pairs


@pytest.mark.parametrize("spaces", [False, True])
def test_pairs_cards_and_cores_are_told(tmp_path: Path, spaces: bool) -> None:
    text = NVIDIA.replace("\t", "    ") if spaces else NVIDIA
    assert is_mine(text.encode(), "x")
    (one,) = read_text(tmp_path, "$ nvidia-smi topo -m\n" + text).topologies
    assert one.pairs == {("GPU0", "GPU1"): "NV18", ("GPU0", "GPU2"): "SYS", ("GPU1", "GPU2"): "SYS"}
    assert one.devices[0].networks == {"mlx5_0": "PIX", "mlx5_bond_0": "SYS"}
    assert [(device.cores, device.numa) for device in one.devices] == [("0-23,96-119", "0")] * 2 + [
        ("48-71", None)
    ]


def test_a_device_without_a_near_card_is_named(tmp_path: Path) -> None:
    (recording,) = texts_of(read_text(tmp_path, NVIDIA))
    (words,) = [value for name, value in recording.pairs if name == "network"]
    assert words.startswith("GPU1, GPU2: ")
    assert mentions(words, "no network card", "PCIe switch")
    assert recording.tables[0].rows[2] == ("GPU2", "2 x SYS", "mlx5_bond_0 PHB", "48-71", "")


def test_older_tables_name_their_cards_in_the_header(tmp_path: Path) -> None:
    text = (
        "\tGPU0\tGPU1\tmlx4_0\tCPU Affinity\nGPU0\t X \tPIX\tPHB\t0-9,20-29\nGPU1\tPIX\t X "
        "\tPHB\t0-9,20-29\n"
    )
    text += "mlx4_0\tPHB\tPHB\t X\n"
    (one,) = read_text(tmp_path, text).topologies
    assert one.pairs == {("GPU0", "GPU1"): "PIX"}
    assert one.devices[1].networks == {"mlx4_0": "PHB"}
    assert one.devices[1].cores == "0-9,20-29"
    assert one.devices[1].numa is None


def test_an_empty_cell_is_not_taken_for_its_neighbour(tmp_path: Path) -> None:
    (one,) = read_text(tmp_path, NVIDIA.replace("48-71\tN/A\t\tN/A", "\t1\t\t")).topologies
    assert (one.devices[2].cores, one.devices[2].numa) == (None, None)


def test_rocm_tells_links_and_nodes(tmp_path: Path) -> None:
    assert is_mine(ROCM.encode(), "x")
    (one,) = read_text(tmp_path, ROCM).topologies
    assert one.tool == "rocm-smi"
    assert one.pairs == {
        ("GPU0", "GPU1"): "XGMI",
        ("GPU0", "GPU2"): "PCIE",
        ("GPU1", "GPU2"): "PCIE",
    }
    assert [device.numa for device in one.devices] == ["0", None, "3"]


def test_a_jobs_output_with_such_a_table_in_it_is_a_jobs_output() -> None:
    text = "line\n" * 20 + NVIDIA + "Anomaly Detection has been enabled. \n"
    assert not is_mine(text.encode(), "job.log")
    assert [each.name for each in formats_of(text.encode(), "job.log")] == ["job-log"]


def test_a_header_alone_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no row"):
        read_text(tmp_path, NVIDIA.splitlines()[0] + "\nGPU0\t X\n")


def test_hostile_tables_are_bounded(tmp_path: Path) -> None:
    names = [f"GPU{i}" for i in range(MAX_DEVICES + 3)]
    rows = "".join(f"{name}\tX\t0-1\n" for name in names[:1]) + "GPU1\tX\n" * 50
    read_text(tmp_path, "\tGPU0\tCPU Affinity\n" + rows)
    with pytest.raises(FormatError):
        read_text(tmp_path, "\t" + "\t".join(names) + "\tCPU Affinity\nGPU0" + "\tX" * 9 + "\n")
    for size in range(0, len(NVIDIA), 61):
        text = NVIDIA[:size]
        if is_mine(text.encode(), "x"):
            try:
                read_text(tmp_path, text)
            except FormatError:
                continue


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "topology", "topo.txt", NVIDIA.encode()
    yield "topology", "rocm.txt", ROCM.encode()
