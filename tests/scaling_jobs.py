"""Jobs of several widths whose loss is known: a product, then an all-reduce that waits for the last
rank. Microseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.builders import Event, event, kernel, trace_text, write

AHEAD = 20
"""How long before its work a launch is made: the device never waits for the host."""
FEATURES = 1024


def write_job(
    folder: Path,
    width: int,
    *,
    compute_us: int = 8000,
    late_us: int = 0,
    moving_us: int = 0,
    rows: int = 512,
    num_steps: int = 4,
    jitter_us: int = 0,
    gradient: int = 1_000_000,
    op: str = "aten::mm",
    shapes: bool = True,
    recorded_width: bool = True,
) -> str:
    """One file per rank. A step takes the sum of the times; the last rank computes `late_us`
    longer, odd steps `jitter_us`."""
    folder.mkdir()
    for rank in range(width):
        events: list[Event] = []
        start = 1000
        for number in range(num_steps):
            own = compute_us + (jitter_us if number % 2 else 0)
            slowest = own + (late_us if width > 1 else 0)
            mine = slowest if rank == width - 1 else own
            events += _compute(number, start, mine, rows, op, shapes)
            if moving_us and width > 1:
                events += _exchange(number, start, mine, slowest + moving_us, width, gradient)
            start += slowest + (moving_us if width > 1 else 0)
        told = {"world_size": width} if recorded_width else {}
        device = {
            "id": 0,
            "name": "NVIDIA H100 80GB HBM3",
            "totalGlobalMem": 85_000_000_000,
            "numSms": 132,
        }
        header = {
            "deviceProperties": [device],
            "distributedInfo": {"backend": "nccl", "rank": rank} | told,
        }
        write(folder / f"rank{rank}.json", trace_text(events, header, record_shapes=int(shapes)))
    return str(folder)


def _compute(number: int, start: int, us: int, rows: int, op: str, shapes: bool) -> list[Event]:
    launched = start - AHEAD
    correlation = 10 * number + 1
    dims: dict[str, Any] = {
        "Input Dims": [[rows, FEATURES], [FEATURES, FEATURES]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
    }
    return [
        event(name=f"ProfilerStep#{number}", cat="user_annotation", ts=launched - 1, dur=15),
        event(
            name=op,
            ts=launched,
            dur=4,
            args={"External id": correlation} | (dims if shapes else {}),
        ),
        event(
            cat="cuda_runtime",
            name="cudaLaunchKernel",
            ts=launched + 1,
            dur=2,
            args={"correlation": correlation},
        ),
        kernel(
            correlation, start, us, "nvjet_sm90_tst_128x256_64x4", **{"External id": correlation}
        ),
    ]


def _exchange(
    number: int, start: int, begins: int, ends: int, width: int, gradient: int
) -> list[Event]:
    launched = start - AHEAD + 6
    correlation = 10 * number + 2
    nccl = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(width))),
        "In msg nelems": gradient,
        "Out msg nelems": gradient,
        "Group size": width,
        "dtype": "Float",
        "Seq": number + 1,
    }
    accumulate = "torch::autograd::AccumulateGrad"
    return [
        event(name=f"autograd::engine::evaluate_function: {accumulate}", ts=launched - 0.5, dur=5),
        event(name=accumulate, ts=launched - 0.25, dur=4.5),
        event(
            name="record_param_comms", ts=launched, dur=4, args={"External id": correlation} | nccl
        ),
        event(
            cat="cuda_runtime",
            name="cudaLaunchKernel",
            ts=launched + 1,
            dur=2,
            args={"correlation": correlation},
        ),
        kernel(
            correlation,
            start + begins,
            ends - begins,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            stream=20,
            **nccl,
        ),
    ]


def strong_series(folder: Path) -> list[str]:
    """Widths 1, 2 and 4 of a job whose ranks share its work: the second loses to its links, the
    third to its last rank."""
    return [
        write_job(folder / "w1", 1),
        write_job(folder / "w2", 2, compute_us=4000, rows=256, moving_us=1000),
        write_job(folder / "w4", 4, compute_us=2000, rows=128, late_us=1200, moving_us=300),
    ]
