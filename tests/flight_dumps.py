"""Flight-recorder dumps for tests: real ones of planted hangs, and formed ones.

`recordings/flight/gloo.tar.gz` has dumps of PyTorch 2.13 with gloo, `nccl.tar.gz` of PyTorch 2.11
with NCCL 2.28 on one H200, 4 ranks each: in each folder one hang was planted. `dump_bytes` forms a
dump as NCCL's recorder writes it.
"""

from __future__ import annotations

import pickle  # noqa: TID251 - dumps are written with it
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.core.recordings.nccl import FlightDump
from stepscope.readers.format import Source
from stepscope.recordings.flight.dump import read

FOLDER = Path(__file__).parent / "recordings" / "flight"
GLOO = FOLDER / "gloo.tar.gz"
NCCL = FOLDER / "nccl.tar.gz"


@cache
def real(archive: Path = GLOO) -> Mapping[str, Mapping[str, bytes]]:
    """By case and kind (`skip/pickle`), the files by name."""
    cases: dict[str, dict[str, bytes]] = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            if file is not None:
                case, _, name = member.name.partition("/")[2].rpartition("/")
                cases.setdefault(case, {})[name] = file.read()
    return cases


def write_case(folder: Path, case: str, archive: Path = GLOO) -> Path:
    """The files of `skip/pickle` in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in real(archive)[case].items():
        (folder / name).write_bytes(data)
    return folder


def read_folder(folder: Path) -> tuple[FlightDump, ...]:
    sources = [Source(path=path, label=str(path)) for path in sorted(folder.iterdir())]
    return read(sources).dumps


def entry(record: int, op: str = "all_reduce", **fields: Any) -> dict[str, Any]:
    """One, as torch 2.11 writes it for NCCL."""
    sequence = fields.pop("sequence", record + 1)
    line, size = fields.pop("line", 66), fields.pop("size", 4096)
    is_p2p = op.startswith(("send", "recv"))
    values = {
        "frames": [
            {
                "name": "all_reduce",
                "filename": "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py",
                "line": 2937,
            },
            {"name": "exchange", "filename": "/job/train.py", "line": line},
            {"name": "main", "filename": "/job/train.py", "line": 148},
        ],
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 0 if is_p2p else sequence,
        "p2p_seq_id": sequence if is_p2p else 0,
        "op_id": sequence,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_790_000_000_000_000_000 + record * 1_000_000,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 15_000,
        "is_p2p": is_p2p,
    }
    if fields.get("state", "completed") != "completed":
        values["retired"] = False
    return values | fields


def dump_bytes(
    entries: Sequence[dict[str, Any]],
    ranks: Sequence[int] = (0, 1, 2, 3),
    groups: Mapping[str, Sequence[int]] | None = None,
) -> bytes:
    configs = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}}
    for name, members in (groups or {}).items():
        configs[name] = {"name": name, "desc": f"mesh_{name}", "ranks": str(list(members))}
    value = {"version": "2.10", "pg_config": configs, "pg_status": {}, "entries": list(entries)}
    return pickle.dumps(value, protocol=2)


def write_dumps(folder: Path, by_rank: Mapping[int, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, data in by_rank.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder
