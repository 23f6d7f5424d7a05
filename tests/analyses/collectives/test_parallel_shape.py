"""The shape of a job, from its groups' names and the pattern of its collectives."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepscope.analyses.collectives.group_families import Families
from stepscope.analyses.collectives.job import job_comms
from stepscope.analyses.collectives.lateness import lateness
from stepscope.analyses.collectives.matching import match
from stepscope.analyses.collectives.parallel_shape import parallel_shape
from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.rank_context import build_context
from stepscope.core.comms import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    CollectiveRecords,
    ProcessGroup,
)
from stepscope.core.trace import NONE
from stepscope.readers.cache import read_trace
from tests.builders import source
from tests.rank_records import MS, Call, collective_records
from tests.shared_data import lab_trace

Part = tuple[str, int]


def judged(*rank_records: CollectiveRecords) -> list[tuple[str, str | None, int | None]]:
    return [
        (one.kind, one.scheme, one.size)
        for _, one in parallel_shape(rank_records, Families(rank_records))
    ]


def of_pattern(
    *parts: Part, uneven: float = float("nan")
) -> list[tuple[str, str | None, int | None]]:
    calls = [
        Call(at=10 + i, end=10.5 + i, op=op, phase=phase, uneven=uneven)
        for i, (op, phase) in enumerate(parts)
    ]
    return judged(collective_records(0, calls))


@pytest.mark.parametrize(
    ("parts", "kind", "scheme"),
    [
        ([("all_reduce", BACKWARD)], "data", "DDP"),
        ([("all_reduce", FORWARD), ("all_reduce", BACKWARD)], "tensor", "Megatron"),
        (
            [("all_gather", FORWARD), ("all_gather", BACKWARD), ("reduce_scatter", BACKWARD)],
            "data",
            "FSDP (ZeRO-3)",
        ),
        (
            [("all_gather", FORWARD), ("reduce_scatter", BACKWARD)],
            "data",
            "FSDP without resharding (ZeRO-2)",
        ),
        ([("reduce_scatter", BACKWARD), ("all_gather", OPTIMIZER)], "data", "ZeRO-1/2"),
        (
            [
                ("all_gather", FORWARD),
                ("reduce_scatter", FORWARD),
                ("all_gather", BACKWARD),
                ("reduce_scatter", BACKWARD),
            ],
            "tensor",
            "with sequence parallelism",
        ),
        ([("send", FORWARD), ("recv", FORWARD)], "pipeline", None),
        ([("sendrecv", FORWARD), ("sendrecv", BACKWARD)], "context", "ring attention"),
        ([("all_to_all", FORWARD), ("all_to_all", BACKWARD)], "not known", None),
        ([("all_reduce", FORWARD)], "not known", None),
        ([("all_reduce", NONE)], "not known", None),
    ],
)
def test_pattern_tells_the_scheme(parts: list[Part], kind: str, scheme: str | None) -> None:
    assert of_pattern(*parts) == [(kind, scheme, 2)]


def test_uneven_all_to_alls_are_experts() -> None:
    assert of_pattern(("all_to_all", FORWARD), uneven=1.4) == [("expert", None, 2)]


def test_broadcasts_and_counters_say_nothing() -> None:
    calls = [
        Call(at=1, end=2, op="broadcast", phase=FORWARD),
        Call(at=3, end=4, phase=FORWARD, bytes=4),
        Call(at=10, end=20, phase=BACKWARD),
    ]
    assert judged(collective_records(0, calls)) == [("data", "DDP", 2)]


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("DATA_PARALLEL_GROUP", "data"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("CONTEXT_PARALLEL_GROUP", "context"),
        ("mesh_tp", "tensor"),
        ("mesh_dp_shard", "data"),
        ("mesh_dp_replicate", "data"),
        ("mesh_pp", "pipeline"),
        ("mesh_cp", "context"),
        ("mesh_ep", "expert"),
    ],
)
def test_description_names_the_dimension(description: str, kind: str) -> None:
    calls = [Call(at=10, end=20, op="all_gather", phase=NONE)]
    assert [
        one[0] for one in judged(collective_records(0, calls, descriptions={"0": description}))
    ] == [kind]


def test_two_dimensions_are_told_apart_by_their_stride() -> None:
    rank_records = []
    for rank in range(4):
        tensor = (0, 1) if rank < 2 else (2, 3)
        data = (0, 2) if rank % 2 == 0 else (1, 3)
        calls = [
            Call(at=5, end=6, group=f"t{tensor[0]}", ranks=tensor, phase=FORWARD),
            Call(at=15, end=16, group=f"t{tensor[0]}", ranks=tensor, phase=BACKWARD),
            Call(at=20, end=30, group=f"d{data[0]}", ranks=data, phase=BACKWARD),
        ]
        rank_records.append(collective_records(rank, calls, world_size=4))
    found = [one for _, one in parallel_shape(rank_records, Families(rank_records))]
    assert [(one.kind, one.scheme, one.size, one.num_groups) for one in found] == [
        ("data", "DDP", 2, 2),
        ("tensor", "Megatron", 2, 2),
    ]


def test_buckets_fire_in_order_and_the_last_is_late() -> None:
    calls = [Call(at=20, end=40, bytes=25_000_000), Call(at=45, end=80, bytes=10_000_000)]
    rank_records = [collective_records(rank, calls) for rank in range(2)]
    matched = match(rank_records)
    found = job_comms([], rank_records, matched, lateness(rank_records, matched)).buckets
    assert found is not None
    assert found.bytes == (25_000_000, 10_000_000)
    assert found.fired_ns == (15 * MS, 40 * MS)
    assert found.backward_ns == 45 * MS
    assert found.tail_ns == 30 * MS


def test_fsdp_of_the_lab_gathers_when_needed_in_forward_and_one_ahead_in_backward() -> None:
    path = lab_trace("ranks2/fsdp_even.slow.rank0")
    mine = collective_records_of(build_context(read_trace(source(path), use_cache=False), None), 0)
    found = job_comms([], [mine], match([mine]), ())
    assert [(one.kind, one.scheme, one.size) for one in found.shape] == [
        ("data", "FSDP (ZeRO-3)", 2)
    ]
    assert [(one.phase, one.count_per_step, one.ahead) for one in found.gathers] == [
        ("forward", 7, 0),
        ("backward", 7, 1),
    ]
    # 6 blocks of 3150336 floats and the rest of the model, 33031168.
    assert found.gathers[0].bytes_per_step == 4 * (6 * 3_150_336 + 33_031_168)


def test_each_of_thousands_of_groups_has_its_name() -> None:
    """Looked up, and not looked for among all the others."""
    groups = tuple(
        ProcessGroup(name=f"pair {last}", description="", ranks=(last, 0), size=2)
        for last in range(1, 20_001)
    )
    families = Families([replace(collective_records(0, []), groups=groups)])
    labels = [families.label(family) for family in list(families.groups)]
    assert labels == [group.name for group in groups]
