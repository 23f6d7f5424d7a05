"""What DeepSpeed's lines and tables tell. Lines are its own formats (deepspeed/utils/timer.py,
comms_logging.py, profiler.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.recordings.training_log import CLOCK, STATED, SUM
from stepscope.recordings.frameworks.deepspeed_tables import size_of
from tests.recording_texts import texts_of
from tests.recordings.frameworks.test_log import megatron, only, read_texts
from tests.wording import any_mentions, mentions


def micro(fwd: float, bwd: float) -> str:
    return (
        f"[Rank 0] time (ms) | fwd_microstep: {fwd:.2f} | bwd_microstep: {bwd:.2f} | "
        f"bwd_inner_microstep: {bwd - 1:.2f} | "
        "bwd_allreduce_microstep: 1.00 | step_microstep: 0.05"
    )


def whole(fwd: float, bwd: float, step: float) -> str:
    inner = f"bwd_inner: {bwd - 4:.2f} | bwd_allreduce: 4.00"
    return f"[Rank 0] time (ms) | fwd: {fwd:.2f} | bwd: {bwd:.2f} | {inner} | step: {step:.2f}"


def progress(step: int, clock: str) -> str:
    return (
        f"[2024-04-04 {clock}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=4, "
        "lr=[0.0003, 0.0003], "
        "mom=[(0.9, 0.999), (0.9, 0.999)]"
    )


def speed(step: int, clock: str) -> str:
    return (
        f"[2024-04-04 {clock}] [INFO] [timer.py:260:stop] "
        f"epoch=0/micro_step={4 * step}/global_step={step}, "
        "RunningAvgSamplesPerSec=25.025771473496132, CurrSamplesPerSec=25.704280480541442, "
        "MemAllocated=4.32GB, "
        "MaxMemAllocated=38.49GB"
    )


BREAKDOWN = [
    line for _ in range(6) for line in (micro(10, 20), micro(10, 20), whole(20.5, 40.25, 8))
]


def test_a_breakdown_alone_tells_the_engine_s_part_of_the_step(tmp_path: Path) -> None:
    log = only(tmp_path, "\n".join([micro(500, 900), whole(1000, 1800, 30), *BREAKDOWN]))
    assert (log.framework, log.step_ns, log.step_source, log.num_steps) == (
        "DeepSpeed",
        68_750_000,
        SUM,
        6,
    )
    assert {phase.name: phase.ns for phase in log.phases if not phase.is_micro} == {
        "bwd": 40_250_000,
        "bwd_inner": 36_250_000,
        "fwd": 20_500_000,
        "step": 8_000_000,
        "bwd_allreduce": 4_000_000,
    }
    assert {phase.name: phase.ns for phase in log.phases if phase.is_micro}[
        "fwd_microstep"
    ] == 10_000_000
    assert any("outside the engine" in note for note in log.notes)
    assert log.ranks == (0,)


def test_micro_batches_alone_tell_no_step(tmp_path: Path) -> None:
    log = only(tmp_path, "\n".join(micro(10, 20) for _ in range(20)))
    assert log.step_ns is None
    assert all(phase.is_micro for phase in log.phases)


def test_the_times_of_progress_lines_are_the_whole_step(tmp_path: Path) -> None:
    clocks = [f"09:09:{second:02d},313" for second in range(0, 50, 10)]
    lines = [
        line
        for at, clock in enumerate(clocks)
        for line in (progress(10 * at + 10, clock), speed(10 * at + 10, clock), *BREAKDOWN)
    ]
    log = only(tmp_path, "\n".join(lines))
    # Ten seconds for ten steps; 68.75 ms of each inside the engine.
    assert (log.step_ns, log.step_source, log.num_steps) == (1_000_000_000, CLOCK, 30)
    assert any_mentions(log.notes, "93% of the step", "outside")
    assert any_mentions(log.notes, "4 step", "skipped")
    assert log.samples_per_s is not None
    assert log.samples_per_s.value == pytest.approx(25.70428)
    assert log.memory_bytes is not None
    assert log.memory_bytes.value == pytest.approx(38.49 * 2**30)


def test_the_pipeline_engine_tells_its_step(tmp_path: Path) -> None:
    lines = [
        f"steps: {at} loss: {3 - at / 100:0.4f} iter time (s): {seconds:0.3f} samples/sec: 72.231"
        for at, seconds in zip(range(10, 60, 10), (9.0, 0.443, 0.445, 0.447, 0.444), strict=True)
    ]
    log = only(tmp_path, "\n".join(lines))
    assert (log.step_ns, log.step_source, log.num_steps) == (444_500_000, STATED, 40)
    assert (log.first_loss, log.last_loss) == (2.9, 2.5)


HEADER = (
    f"{'Comm. Op': <20}{'Message Size': <20}{'Count': <20}{'Total Latency(ms)': <20}"
    f"{'Avg Latency(ms)': <20}{'tput_avg (Gbps)': <20}{'busbw_avg (Gbps)': <20}"
)
STRAGGLER = (
    f"{'Comm. Op': <20}{'Message Size': <20}{'Count': <20}{'Total comm lat(ms)': <20}"
    f"{'Total straggler(ms)': <20}{'Avg comm lat(ms)': <20}{'Avg straggler(ms)': <20}"
)


def row(size: str, num: int, *values: float) -> str:
    return f"{' ': <20}{size: <20}{num: <20}" + "".join(f"{value: <20.2f}" for value in values)


COMMS = [
    HEADER,
    "broadcast | [Caller Func: _broadcast_model]",
    row("0B", 2, 0.19, 0.10, 0, 0),
    row("98.25 MB", 1, 8317.12, 8317.12, 0.20, 0.19),
    "all_gather_base",
    row("6.0 MB", 219, 16.63, 0.07, 1401.24, 1313.66),
    row("6.0 MB", 6, 0.51, 0.08, 1234.17, 1157.03),
]


def test_the_comms_table_is_read_with_sizes_that_are_written_alike(tmp_path: Path) -> None:
    log = only(
        tmp_path,
        "\n".join(
            [
                "hello",
                *COMMS,
                "saving a model",
                "it is saved",
                "and so on",
                "not_a_collective",
                row("1.0 B", 1, 2, 3, 4, 5),
            ]
        ),
    )
    assert [(one.op, one.size, one.size_bytes, one.num, one.total_ns) for one in log.comms] == [
        (
            "broadcast | [Caller Func: _broadcast_model]",
            "98.25 MB",
            round(98.25 * 2**20),
            1,
            8_317_120_000,
        ),
        ("all_gather_base", "6.0 MB", 6 * 2**20, 219, 16_630_000),
        ("all_gather_base", "6.0 MB", 6 * 2**20, 6, 510_000),
        ("broadcast | [Caller Func: _broadcast_model]", "0B", 0, 2, 190_000),
    ]
    assert (log.comms[1].busbw_gbit_s, log.comms[1].mean_ns) == (1313.66, 70_000)
    assert log.step_ns is None


def test_a_later_table_takes_the_place_and_stragglers_stand_beside(tmp_path: Path) -> None:
    later = [
        HEADER,
        "all_reduce",
        row("1.0 KB", 20, 50, 2.5, 1, 1),
        "___",
        "Breakdown with straggler effect",
        "---",
        STRAGGLER,
    ]
    later += ["all_reduce", row("1.0 KB", 20, 10, 40, 0.5, 2)]
    (one,) = only(tmp_path, "\n".join([*COMMS, *later])).comms
    assert (one.op, one.num, one.total_ns, one.straggler_ns) == (
        "all_reduce",
        20,
        50_000_000,
        40_000_000,
    )


def test_collectives_written_one_by_one_are_counted(tmp_path: Path) -> None:
    line = (
        "[2022-06-26 01:39:56,470] [INFO] [logging.py:69:log_dist] [Rank 0] rank=0 | comm op: "
        "all_gather_base | time (ms): {} | "
    )
    line += "msg size: 6.0 MB | algbw (Gbps): 954.41  | busbw (Gbps): 894.76"
    (one,) = only(tmp_path, "\n".join(line.format(ms) for ms in (0.11, 0.08))).comms
    assert (one.op, one.num, one.total_ns, one.mean_ns, one.busbw_gbit_s) == (
        "all_gather_base",
        2,
        190_000,
        95_000,
        None,
    )


def test_sizes_are_of_1024() -> None:
    assert [
        size_of(text) for text in ("0B", "128.0 B", "2.0 KB", "1.5 GB", "nonsense", "9e9 KB")
    ] == [
        0,
        128,
        2048,
        3 * 2**29,
        None,
        None,
    ]


FLOPS = """
-------------------------- DeepSpeed Flops Profiler --------------------------
Profile Summary at step 5:
Notations:
data parallel size (dp_size), model parallel size(mp_size),

world size:                                                             8
data parallel size:                                                     8
batch size per GPU:                                                     80
params per GPU:                                                         336.23 M
fwd MACs per GPU:                                                       3139.93 GMACs
fwd flops per GPU:                                                      6279.86 G
fwd latency:                                                            76.67 ms
bwd latency:                                                            108.02 ms
step latency:                                                           34.09 us
iter latency:                                                           184.73 ms
FLOPS per GPU = 3 * fwd flops per GPU / iter latency:                   101.98 TFLOPS
samples/second:                                                         3464.31

----------------------------- Aggregated Profile per GPU -----------------------------
Top 1 modules in terms of params, MACs or fwd latency at different model depths:
"""


def test_the_flops_profiler_s_summary_is_read(tmp_path: Path) -> None:
    log = only(tmp_path, FLOPS)
    assert log.tflops is not None
    assert log.tflops.value == pytest.approx(101.98)
    assert "3 * fwd flops per GPU / iter latency" in log.tflops.convention
    assert log.world_size == 8
    assert mentions(dict(log.remarks)["iter latency"], "184.73 ms", "flops profiler", "one step")
    assert log.step_ns is None  # one step, with hooks on every module


def test_megatron_and_deepspeed_share_a_file(tmp_path: Path) -> None:
    lines = [line for step in range(10, 90, 10) for line in (megatron(step, 450), *BREAKDOWN[:3])]
    log = read_texts(tmp_path, "\n".join(lines))
    assert {one.framework: one.step_ns for one in log.logs} == {
        "Megatron": 450_000_000,
        "DeepSpeed": 68_750_000,
    }
    assert log.step_ns == 450_000_000
    assert [recording.pairs[0][1] for recording in texts_of(log)] == ["Megatron", "DeepSpeed"]
