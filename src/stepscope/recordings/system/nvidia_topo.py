"""How a machine's devices are joined: `nvidia-smi topo -m`, and `rocm-smi --showtopo`.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0     X      NV18    PIX     0-23,96-119     0               N/A
    GPU1    NV18     X      NODE    0-23,96-119     0               N/A

No cell has a space in it but some of the header's, so that a table whose tabs became spaces is read
alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stepscope.api import FormatError, Reader, Source, SystemRecording, TextLines
from stepscope.core.recordings.system import DeviceLinks, SystemReport, Topology
from stepscope.readers.text_lines import COLOR

MAX_LINES = 4096
MAX_LINE_BYTES = 16 << 10
MAX_DEVICES = 1024
"""Devices of one machine at most: a rack of NVL72 shows 72."""
MAX_CELL = 200
PRELUDE = rb"\A(?:[^\n]{0,200}\n){0,8}?"
"""A prompt and its command, or a banner. A job's output that has such a table further on is not
taken for one."""
HEAD = re.compile(
    PRELUDE
    + (
        rb"[ \t]{0,40}(?:(?:\x1b\[\d{0,2}m)?[ \t]{0,40}GPU\d{1,4}(?:\x1b\[\d{0,2}m)?[ "
        rb"\t][^\n]{0,16000}CPU Affinity"
    )
    + rb"|=+ (?:Weight|Hops|Link Type) between two GPUs =+)"
)
COLUMNS = re.compile(r"^\s{0,40}(GPU\d{1,4}\s.{0,16000}?)\s*(CPU Affinity.{0,100})$")
ROW = re.compile(r"^\s{0,8}(GPU\d{1,4})\s")
NIC_NAME = re.compile(r"^\s{0,8}(NIC\d{1,4}):\s{1,8}(\S{1,80})\s*$")
ROCM_SECTION = re.compile(r"=+ (.{1,60}?) =+\s*$")
ROCM_LINKS = "Link Type between two GPUs"
ROCM_NUMA = re.compile(r"^GPU\s?\[?(\d{1,4})\]?\s*: \(Topology\) Numa Node: (\d{1,4})\s*$")
MEANS = {
    "NVLink": "NVLink",
    "XGMI": "XGMI (Infinity Fabric)",
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges, not through the host's",
    "PHB": "through a PCIe host bridge (the CPU)",
    "NODE": "through host bridges of one NUMA node",
    "SYS": "through the link between NUMA nodes",
    "SOC": "through the link between CPU sockets",
    "PCIE": "PCIe",
}
NEAREST = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
"""Links to a network card, the shortest way first."""


def is_mine(head: bytes, _name: str) -> bool:
    return HEAD.match(head) is not None


def read(sources: Sequence[Source]) -> SystemReport:
    topologies, notes = [], []
    for source in sources:
        lines = TextLines(source, max_line_bytes=MAX_LINE_BYTES, max_lines=MAX_LINES)
        text = [COLOR.sub("", line) for line in lines]
        notes += lines.notes
        devices = _nvidia(text) or _rocm(text)
        if not devices:
            raise FormatError(
                f"{source.label} begins like a table of nvidia-smi topo -m or rocm-smi --showtopo, "
                "and no row of it can be read. Record it anew: nvidia-smi topo -m > topo.txt"
            )
        if len(devices) > MAX_DEVICES:
            notes.append(
                f"{source.label}: {len(devices) - MAX_DEVICES} device(s) beyond {MAX_DEVICES} "
                "were left out"
            )
        tool = "rocm-smi" if any(ROCM_LINKS in line for line in text) else "nvidia-smi topo"
        topologies.append(
            Topology(path=source.label, tool=tool, devices=tuple(devices[:MAX_DEVICES]))
        )
    return SystemReport(
        recordings=tuple(
            SystemRecording(
                format="topology",
                paths=(topology.path,),
                notes=tuple(notes) if topology is topologies[0] else (),
                topologies=(topology,),
            )
            for topology in topologies
        )
    )


def _nvidia(lines: Sequence[str]) -> list[DeviceLinks]:
    """The rows under the header; the rows of network cards say the same from the other side."""
    header = next((match for line in lines if (match := COLUMNS.match(line)) is not None), None)
    if header is None:
        return []
    names: list[str] = header[1].split()
    near = re.findall(r"CPU Affinity|NUMA Affinity|GPU NUMA ID", header[2])
    cards: dict[str, str] = {
        match[1]: match[2] for match in map(NIC_NAME.match, lines) if match is not None
    }
    card_names = {name: cards.get(name) or name for name in names}
    devices = []
    for line in lines:
        cells = [cell[:MAX_CELL] for cell in line.split()] if ROW.match(line) else []
        if (
            len(cells) <= len(names)
            or cells[0] not in names
            or cells[1 + names.index(cells[0])] != "X"
        ):
            continue
        links = dict(zip(names, cells[1:], strict=False))
        # A cell that is empty is not there: only a row with all of them shows which is which.
        affinities = {}
        if len(cells) == 1 + len(names) + len(near):
            affinities = dict(zip(near, cells[1 + len(names) :], strict=True))
        devices.append(
            DeviceLinks(
                name=cells[0],
                peers={
                    name: kind
                    for name, kind in links.items()
                    if name.startswith("GPU") and name != cells[0]
                },
                networks={
                    card_names[name]: kind
                    for name, kind in links.items()
                    if not name.startswith("GPU")
                },
                cores=_stated(affinities.get("CPU Affinity")),
                numa=_stated(affinities.get("NUMA Affinity")),
            )
        )
    return devices


def _rocm(lines: Sequence[str]) -> list[DeviceLinks]:
    section, names, rows, numa = "", list[str](), dict[str, list[str]](), dict[str, str]()
    for line in lines:
        if match := ROCM_SECTION.match(line.strip()):
            section = match[1]
        elif (
            section == ROCM_LINKS
            and line.split()
            and all(re.fullmatch(r"GPU\d{1,4}", cell) for cell in line.split())
        ):
            names = line.split()
        elif section == ROCM_LINKS and ROW.match(line) and names:
            rows[line.split()[0]] = [cell[:MAX_CELL] for cell in line.split()[1:]]
        elif match := ROCM_NUMA.match(line):
            numa[f"GPU{match[1]}"] = match[2]
    return [
        DeviceLinks(
            name=name,
            peers={peer: kind for peer, kind in zip(names, cells, strict=False) if peer != name},
            numa=numa.get(name),
        )
        for name, cells in rows.items()
    ]


def _stated(cell: str | None) -> str | None:
    return None if cell in (None, "N/A") else cell


def kind_of(link: str) -> str:
    """NV18 as NVLink; the others as they are written."""
    return "NVLink" if re.fullmatch(r"NV\d{1,3}", link) else link


def nearest(networks: Mapping[str, str]) -> tuple[str, str]:
    """The network card with the shortest way, and its link."""
    return min(
        networks.items(),
        key=lambda pair: NEAREST.index(pair[1]) if pair[1] in NEAREST else len(NEAREST),
    )


READER = Reader(is_mine=is_mine, read_together=read)
