"""A rank's ledger: what each collective is, when it ran, and which of it nothing hid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from stepscope.analyses.collectives.records import collective_records_of, in_windows, op_of
from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import NONE, CollectiveArgs
from tests.rules.job_cases import Fleet, ddp
from tests.tracing import call, kernel, mark, op, trace_of

US = 1_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv", "sendrecv"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 0<-1", "recv"),
        ("all_to_allv", "all_to_all"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("gloo:barrier", "barrier"),
        ("nccl:coalesced", "other"),
    ],
)
def test_names_tell_the_operation(name: str, expected: str) -> None:
    assert op_of(name) == expected


def test_sizes_groups_and_steps_come_from_the_record() -> None:
    fleet = ddp(steps=3, buckets=[(1 << 20, 100.0), (1 << 22, 100.0)])
    collective_records = collective_records_of(build_context(fleet.traces()[0], None), 0)
    collective_records.self_check()
    assert [collective_records.kinds[kind].bytes for kind in collective_records.kind] == [
        1 << 20,
        1 << 22,
    ] * 3
    assert {
        (kind.op, kind.group, kind.group_ranks, kind.dtype) for kind in collective_records.kinds
    } == {("all_reduce", "0", (0, 1), "fp32")}
    assert collective_records.sequence.tolist() == [1, 2, 3, 4, 5, 6]
    assert collective_records.step.tolist() == [0, 0, 1, 1, 2, 2]
    assert bool((collective_records.launch_ns < collective_records.start_ns).all())
    assert bool(np.isin(in_windows(collective_records), np.arange(6)).all())


def test_a_kernel_without_a_record_is_told_by_its_name() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.compute(100)
        fleet.collective("sendrecv", 1 << 20, 10, told=False)
        fleet.step()
    collective_records = collective_records_of(build_context(fleet.traces()[0], None), 0)
    assert [(kind.op, kind.group, kind.bytes) for kind in collective_records.kinds] == [
        ("sendrecv", "", None)
    ]
    assert collective_records.sequence.tolist() == [NONE] * 3


def test_only_what_no_compute_covers_is_exposed() -> None:
    events = []
    for step in range(3):
        at = step * 1000 * US
        events += [
            mark(f"ProfilerStep#{step}", at, at + 999 * US),
            op("aten::mm", at, at + 20 * US),
            call("cudaLaunchKernel", at + US, at + 5 * US, 2 * step + 1),
            kernel("gemm", at + 10 * US, at + 300 * US, 2 * step + 1),
            op("record_param_comms", at + 30 * US, at + 50 * US),
            call("cudaLaunchKernel", at + 31 * US, at + 35 * US, 2 * step + 2),
            kernel(
                "ncclDevKernel_AllReduce_Sum_f32",
                at + 100 * US,
                at + 700 * US,
                2 * step + 2,
                stream=20,
            ),
        ]
    collective_records = collective_records_of(build_context(trace_of(*events), None), 0)
    spans = zip(
        collective_records.exposed_start_ns.tolist(),
        collective_records.exposed_end_ns.tolist(),
        collective_records.exposed_of.tolist(),
        strict=True,
    )
    assert list(spans) == [((1000 * i + 300) * US, (1000 * i + 700) * US, i) for i in range(3)]


def test_a_rank_without_collectives_has_an_empty_ledger() -> None:
    trace = trace_of(mark("ProfilerStep#0", 0, 100), op("aten::mm", 1, 50))
    collective_records = collective_records_of(build_context(trace, None), 0)
    collective_records.self_check()
    assert len(collective_records) == 0
    assert len(in_windows(collective_records)) == 0


def test_steps_keep_the_numbers_their_marks_have() -> None:
    events = []
    for step in range(3):
        at = step * 1000 * US
        events += [
            mark(f"ProfilerStep#{step + 12}", at, at + 999 * US),
            op("record_param_comms", at + 30 * US, at + 50 * US),
            call("cudaLaunchKernel", at + 31 * US, at + 35 * US, step + 1),
            kernel(
                "ncclDevKernel_AllReduce_Sum_f32", at + 100 * US, at + 700 * US, step + 1, stream=20
            ),
        ]
    found = collective_records_of(build_context(trace_of(*events), None), 0)
    assert (found.step.tolist(), found.step_number.tolist()) == ([0, 1, 2], [12, 13, 14])


def test_the_operator_tells_whom_its_kernel_sends_to() -> None:
    told = CollectiveArgs(
        name="send",
        group="0",
        description=None,
        ranks="[0, 1, 2]",
        group_size=3,
        dtype="Float",
        in_elements=4,
        out_elements=4,
        in_split=None,
        out_split=None,
        sequence=None,
        peer=2,
    )
    events = [
        op("record_param_comms", 30 * US, 50 * US, collective=told),
        call("cudaLaunchKernel", 31 * US, 35 * US, 1),
        kernel(
            "ncclDevKernel_SendRecv",
            100 * US,
            700 * US,
            1,
            stream=20,
            collective=structs.replace(told, peer=None),
        ),
    ]
    assert [
        (one.op, one.peer)
        for one in collective_records_of(build_context(trace_of(*events), None), 0).kinds
    ] == [("send", 2)]


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("runs/gpu-7_4711.1760000000000000000.pt.trace.json.gz", "gpu-7"),
        ("runs/rank0.pt.trace.json.gz", ""),
    ],
)
def test_the_recording_may_be_named_for_its_machine(path: str, node: str) -> None:
    trace = trace_of(op("aten::mm", 1, 50))
    named = replace(trace, meta=replace(trace.meta, path=path))
    assert collective_records_of(build_context(named, None), 0).node == node
