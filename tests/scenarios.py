"""Hand-built diagnoses that every report must render.

The numbers are made up but add up: `self_check()` holds for each. `SCENARIOS` has them all by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from stepscope.analyses.peak_waterfall import with_waterfalls
from stepscope.core.comms import (
    Buckets,
    CollectiveRow,
    CommsFacts,
    Dimension,
    Gathers,
    Link,
    LinkFit,
    RankComms,
)
from stepscope.core.diagnosis import (
    Diagnosis,
    Finding,
    ReplayCheck,
    SourceLocation,
    StepTime,
    Verdict,
)
from stepscope.core.facts import (
    PARTS,
    CallRow,
    CategoryRow,
    CopyRow,
    DeviceTotals,
    Facts,
    Host,
    KernelRow,
    Launches,
    Partition,
    Phases,
    RangeRow,
    RankFacts,
    Roofline,
    Steps,
)
from stepscope.core.peak import ComputeSplit

MS = 1_000_000
JITTER = (1000, 990, 1015)
"""Length of each measured window, in thousandths of the first."""

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, "
    "at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNN"
FLASH = (
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1_"
    "cga1x1x1_kernel0_0"
)
EVIL_NAMES = (
    "[red]x[/red]",
    "[link=file:///etc/passwd]click[/link]",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;new title\x07",
    "\x9b2Jcleared",
    "two\nlines\r\tand a tab",
    "back\x08\x08\x08space",
    "\u202egnp.lenrek",
    "lone \ud800 surrogate",
    "z\u0335\u0321\u0322\u0327\u0328\u0334algo",
    "核函数" * 40,
    "☁️" * 60,
    "void " + "ns::" * 900 + "kernel<" + "std::tuple<" * 300,
    "",
)
"""What a stranger's file may call a kernel, an operator, a path or a device."""

HEALTHY_ROOF = Roofline(
    device="NVIDIA H100 SXM",
    model_flops=18.9e12,
    hardware_flops=18.9e12,
    mfu=0.413,
    hfu=0.413,
    peak_precision="bf16",
    modelled_share=0.94,
    bandwidth_bound_ns=9 * MS,
    arithmetic_bound_ns=31 * MS,
    tensor_core_share=0.99,
)
NO_ROOF = Roofline(
    device=None,
    model_flops=None,
    hardware_flops=None,
    mfu=None,
    hfu=None,
    peak_precision=None,
    modelled_share=None,
    bandwidth_bound_ns=None,
    arithmetic_bound_ns=None,
    tensor_core_share=None,
)
QUIET_HOST = Host(syncs=(), allocator=(), loader=(), compile=())
AHEAD = Launches(
    num_device_events=3600,
    num_unlinked=0,
    num_graph_launches=0,
    num_in_graphs=0,
    median_delay_ns=8 * MS,
    median_queue_depth=212.0,
    starved_share=0.004,
    median_call_ns=4_800,
    median_kernel_ns=21_000,
)


FINDINGS = (
    Finding(
        code="serial-loader",
        bound="data",
        summary="The loader makes each batch in the training process, "
        "while the device waits 36.0 ms "
        "a step for it.",
        action="DataLoader(..., num_workers=4, pin_memory=True, persistent_workers=True)",
        evidence=("_SingleProcessDataLoaderIter.__next__ takes 36.7 ms a step",),
        ranks=(0,),
        predicted_speedup=2.05,
        predicted_low=1.9,
        predicted_high=2.2,
        predicted_step_ms=31.9,
    ),
    Finding(
        code="fp32-matmul",
        bound="compute",
        summary="Matrix kernels run in fp32 without tensor cores.",
        action='torch.set_float32_matmul_precision("high")',
        evidence=(),
        ranks=(0,),
        predicted_speedup=1.12,
        predicted_low=1.05,
        predicted_high=1.18,
        predicted_step_ms=58.5,
        changes_numerics=True,
        source_locations=(
            SourceLocation(line="model.py:25 in forward", module="GPT_0 > Block_*", share=0.7),
            SourceLocation(line=None, module="A_0", share=0.1),
        ),
    ),
)


def windows_of(
    parts_ms: Mapping[str, float], num: int
) -> tuple[tuple[tuple[int, int], ...], Partition]:
    """Contiguous windows, each split alike but for the jitter, and their partition."""
    columns = {
        part: tuple(
            int(parts_ms.get(part, 0.0) * MS) * JITTER[i % len(JITTER)] // 1000 for i in range(num)
        )
        for part in PARTS
    }
    totals = tuple(sum(columns[part][i] for part in PARTS) for i in range(num))
    starts = [sum(totals[:i]) for i in range(num)]
    windows = tuple((start, start + total) for start, total in zip(starts, totals, strict=True))
    return windows, Partition(parts=columns, totals=totals, waits_split="comms_wait" in parts_ms)


def rank_facts(
    parts_ms: Mapping[str, float],
    *,
    rank: int = 0,
    num_windows: int = 3,
    hidden_ms: float = 0.0,
    **changes: Any,
) -> RankFacts:
    """One rank whose steps are split like this; `changes` replace any of its other fields."""
    windows, split = windows_of(parts_ms, num_windows)
    exposed = tuple(
        split.parts["comms_wait"][i] + split.parts["comms_transfer"][i] for i in range(num_windows)
    )
    busy = tuple(
        split.parts["compute"][i] + exposed[i] + split.parts["transfer"][i]
        for i in range(num_windows)
    )
    hidden = tuple(int(hidden_ms * MS) for _ in range(num_windows))
    totals = DeviceTotals(
        span=sum(split.totals),
        busy=sum(busy),
        compute=sum(split.parts["compute"]),
        comms=sum(exposed) + sum(hidden),
        copy=sum(split.parts["transfer"]),
        comms_under_compute=sum(hidden),
    )
    steps = Steps(
        source="ProfilerStep",
        where="device",
        num_seen=num_windows + 1,
        num_marked=num_windows + 1,
        windows=windows,
        is_step_interval=True,
    )
    facts = RankFacts(
        rank=rank,
        path=f"traces/job.rank{rank}.pt.trace.json.gz",
        device_name="NVIDIA H100 80GB HBM3",
        num_events=25_000,
        device=totals,
        steps=steps,
        partition=split,
        launches=AHEAD,
        categories=(),
        kernels=(),
        ops=(),
        modules=None,
        marks=(),
        phases=None,
        copies=(),
        host=QUIET_HOST,
        roofline=NO_ROOF,
        busy_ns=busy,
        comms_hidden_ns=hidden,
    )
    return replace(facts, **changes)


def kernel(
    name: str, category: str, op: str | None, count: int, total_ms: float, roof: float | None = None
) -> KernelRow:
    """A kernel that reaches this share of its roof."""
    return KernelRow(
        name=name,
        category=category,
        op=op,
        count=count,
        total_ns=int(total_ms * MS),
        tensor_core=None,
        precision=None,
        flops=None,
        bytes=None,
        floor_ns=None if roof is None else total_ms * MS * roof,
    )


def diagnosis(
    bound: str,
    summary: str,
    ranks: Sequence[RankFacts],
    *,
    step: StepTime | None = None,
    findings: Sequence[Finding] = (),
    notes: Sequence[str] = (),
) -> Diagnosis:
    """A diagnosis of these ranks; the step time is the first rank's, from its trace, unless
    given."""
    step_interval = ranks[0].steps.step_interval_ns if ranks else None
    step_interval_ms = None if step_interval is None else step_interval / MS
    count = len(ranks[0].steps.windows) if ranks else 0
    return Diagnosis(
        verdict=Verdict(bound=bound, summary=summary, shares={}),
        step=step
        or StepTime(count=count, ms=step_interval_ms, profiled_ms=step_interval_ms, source="trace"),
        ladder=(),
        replay=None,
        findings=tuple(findings),
        facts=Facts(ranks=tuple(ranks)),
        notes=tuple(notes),
        unknown_events=sum(sum(rank.unknown.values()) for rank in ranks),
    )


def _training_kernels(scale: float = 1.0) -> dict[str, Any]:
    kernels = (
        kernel(GEMM, "gemm", "aten::addmm", 288, 61.2, 0.81),
        kernel(
            FLASH, "attention", "aten::_scaled_dot_product_cudnn_attention_backward", 72, 22.4, 0.55
        ),
        kernel(
            ELEMENTWISE,
            "elementwise",
            "autograd::engine::evaluate_function: AddBackward0",
            1440,
            14.0,
            0.88,
        ),
        kernel("triton_poi_fused_gelu_view_8", "triton", None, 72, 6.1, 0.93),
        kernel(
            "void at::native::reduce_kernel<512, 1, at::native::R<float>>(R)",
            "reduction",
            "aten::sum",
            300,
            4.2,
        ),
    )
    categories = (
        CategoryRow(category="gemm", count=1020, total_ns=int(72.3 * MS)),
        CategoryRow(category="attention", count=144, total_ns=int(26.9 * MS)),
        CategoryRow(category="elementwise", count=2000, total_ns=int(15.5 * MS)),
        CategoryRow(category="reduction", count=436, total_ns=int(6.3 * MS)),
    )
    return {
        "kernels": tuple(
            replace(
                row,
                total_ns=int(row.total_ns * scale),
                floor_ns=row.floor_ns and row.floor_ns * scale,
            )
            for row in kernels
        ),
        "categories": tuple(replace(row, total_ns=int(row.total_ns * scale)) for row in categories),
    }


def healthy() -> Diagnosis:
    """The device computes almost all the time."""
    phases = Phases(
        forward_ns=41 * MS,
        backward_ns=83 * MS,
        optimizer_ns=6 * MS,
        unknown_ns=0,
        recomputed_ns=0,
        num_recomputed_ops=0,
    )
    copies = (
        CopyRow(
            kind="HtoD (Pinned -> Device)",
            count=6,
            total_ns=3 * MS // 2,
            bytes=37_748_736,
            num_blocking=0,
        ),
    )
    host = replace(
        QUIET_HOST,
        syncs=(
            CallRow(name="cudaStreamSynchronize", count=3, total_ns=96 * MS, longest_ns=33 * MS),
        ),
        loader=(
            CallRow(
                name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                count=3,
                total_ns=MS // 2,
                longest_ns=MS // 5,
            ),
        ),
    )
    rank = rank_facts(
        {
            "compute": 44.1,
            "transfer": 0.02,
            "idle_launch": 1.4,
            "idle_sync": 0.6,
            "idle_other": 0.18,
        },
        phases=phases,
        copies=copies,
        host=host,
        roofline=HEALTHY_ROOF,
        **_training_kernels(),
    )
    step = StepTime(count=40, ms=44.9, profiled_ms=46.3, source="measured")
    made = diagnosis(
        "compute",
        "The device computes 95 % of the step: arithmetic limits this run.",
        [replace(rank, compute_split=_compute_split(rank))],
        step=step,
    )
    return replace(made, facts=with_waterfalls(made.facts))


def _compute_split(rank: RankFacts) -> ComputeSplit:
    """Of kernels that do as HEALTHY_ROOF says."""
    assert rank.partition is not None
    compute = rank.partition.parts["compute"]
    shares = {"achieved": 0.43, "memory_bound": 0.17, "below_bandwidth": 0.05, "not_filled": 0.04}
    parts = {part: tuple(round(ns * share) for ns in compute) for part, share in shares.items()}
    left = (ns - sum(column) for ns, *column in zip(compute, *parts.values(), strict=True))
    return ComputeSplit(
        device="NVIDIA H100 SXM",
        precision="bf16",
        peak_flops=989.4e12,
        num_sms=132,
        parts=parts | {"below_peak": tuple(left)},
        arithmetic_ns=tuple(round(ns * 0.7) for ns in compute),
    )


def data_bound() -> Diagnosis:
    """The device waits for the loader more than half of the step; one finding says what to do."""
    host = replace(
        QUIET_HOST,
        loader=(
            CallRow(
                name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                count=3,
                total_ns=110 * MS,
                longest_ns=39 * MS,
            ),
        ),
    )
    copies = (
        CopyRow(
            kind="HtoD (Pageable -> Device)",
            count=6,
            total_ns=9 * MS,
            bytes=115_605_504,
            num_blocking=6,
        ),
        CopyRow(kind="DtoD", count=30, total_ns=MS, bytes=None, num_blocking=0),
    )
    rank = rank_facts(
        {"compute": 26.4, "transfer": 2.9, "idle_input": 36.0, "idle_launch": 0.3},
        host=host,
        copies=copies,
        roofline=replace(
            HEALTHY_ROOF, mfu=0.12, hfu=0.16, hardware_flops=25e12, modelled_share=None
        ),
        phases=Phases(
            forward_ns=27 * MS,
            backward_ns=46 * MS,
            optimizer_ns=5 * MS,
            unknown_ns=MS,
            recomputed_ns=11 * MS,
            num_recomputed_ops=96,
        ),
        notes=("launches: 3 kernels had no launching call on record",),
        **_training_kernels(0.6),
    )
    step = StepTime(count=3, ms=65.5, profiled_ms=65.6, source="given")
    found = diagnosis(
        "data", "Waiting for input takes 55 % of the step.", [rank], step=step, findings=FINDINGS
    )
    return replace(found, replay=ReplayCheck(ms=65.1, error=-0.006))


def launch_bound() -> Diagnosis:
    """Kernels shorter than their launches."""
    launches = replace(
        AHEAD,
        num_unlinked=12,
        num_graph_launches=3,
        num_in_graphs=640,
        median_delay_ns=7_400,
        median_queue_depth=0.0,
        starved_share=0.92,
        median_call_ns=6_100,
        median_kernel_ns=2_300,
    )
    host = Host(
        syncs=tuple(
            CallRow(name=f"cudaSync{i}", count=100, total_ns=(5 - i) * MS, longest_ns=80_000)
            for i in range(5)
        ),
        allocator=(CallRow(name="cudaMalloc", count=1, total_ns=MS, longest_ns=MS),),
        loader=(),
        compile=(CallRow(name="compile_fx", count=1, total_ns=4 * MS, longest_ns=4 * MS),),
    )
    kernels = tuple(
        kernel(f"tiny_kernel_{i}", "elementwise", f"aten::op{i}", 900 - i, 2.0 - i / 10)
        for i in range(12)
    )
    categories = tuple(CategoryRow(category=f"kind {i}", count=900, total_ns=MS) for i in range(11))
    parts = {
        "compute": 6.1,
        "idle_launch": 27.4,
        "idle_sync": 0.9,
        "idle_allocator": 0.33,
        "idle_compile": 1.3,
        "idle_io": 0.0004,
    }
    rank = rank_facts(parts, launches=launches, host=host, kernels=kernels, categories=categories)
    return diagnosis(
        "host", "The host launches too slowly: the device waits 76 % of the step for work.", [rank]
    )


def comms_eight_ranks() -> Diagnosis:
    """Eight ranks; the last arrives late, so all but it wait."""
    ranks = []
    for i in range(8):
        late = 0.0 if i < 7 else 11.0
        parts = {
            "compute": 40.0 + late + i / 100,
            "comms_wait": 11.5 - late,
            "comms_transfer": 21.0,
            "idle_launch": 0.7,
        }
        allreduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        kernels = (
            kernel(GEMM, "gemm", "aten::mm", 288, 90.0, 0.7),
            kernel(allreduce, "collective", "c10d::allreduce_", 24, 99.0),
        )
        categories = (
            CategoryRow(category="collective", count=24, total_ns=99 * MS),
            CategoryRow(category="gemm", count=288, total_ns=90 * MS),
        )
        notes = ("clock: aligned on 24 collectives",) + (
            ("a truncated file: its last step was dropped",) if i == 5 else ()
        )
        ranks.append(
            rank_facts(
                parts, rank=i, hidden_ms=6.0, kernels=kernels, categories=categories, notes=notes
            )
        )
    return diagnosis("imbalance", "Seven ranks wait for rank 7, which arrives 11 ms late.", ranks)


def unsplit_comms() -> Diagnosis:
    """One rank of many: its communication cannot be split into waiting and moving."""
    rank = rank_facts({"compute": 40.0, "comms_transfer": 31.0, "idle_launch": 0.7}, hidden_ms=9.0)
    return diagnosis(
        "comms",
        "Communication that nothing hides takes 43 % of the step.",
        [rank],
        notes=["the other ranks' traces were not read"],
    )


def collective(op: str = "all_reduce", **fields: Any) -> CollectiveRow:
    """A row of 64 MB over eight ranks, unless said otherwise."""
    row = CollectiveRow(
        op=op,
        group="0",
        num_groups=1,
        num_ranks=8,
        dtype="bf16",
        bytes=64_000_000,
        num_sizes=1,
        count_per_step=4.0,
        ns_per_step=21.0 * MS,
        wait_ns_per_step=3.0 * MS,
        exposed_share=0.8,
        moving_ns=4 * MS,
        includes_waits=False,
        algbw_bytes_per_s=16e9,
        busbw_bytes_per_s=28e9,
    )
    return replace(row, **fields)


def rank_comms(rank: int, **fields: Any) -> RankComms:
    one = RankComms(
        rank=rank,
        wait_ns=11.0 * MS,
        transfer_ns=21.0 * MS,
        late_ns=0,
        share_last=0.0,
        offset_ns=0,
        overlap_efficiency=0.25,
        replayed=True,
    )
    return replace(one, **fields)


def meshed_ranks() -> Diagnosis:
    """512 ranks, tensor parallel by eight; one comes late, and one group is slow."""
    late = {"wait_ns": 0.0, "late_ns": 11 * MS, "share_last": 0.97, "is_straggler": True}
    ranks = [
        rank_facts(
            {"compute": 51.0, "comms_transfer": 21.0}
            if i == 77
            else {"compute": 40.0, "comms_wait": 11.0, "comms_transfer": 21.0},
            rank=i,
        )
        for i in range(512)
    ]
    tensor = {"group": "mesh_tp", "num_groups": 64}
    comms = CommsFacts(
        world_size=512,
        rows=(
            collective(
                "all_gather", **tensor, slowest_group="72-79", slowest_busbw_bytes_per_s=9e9
            ),
            collective("reduce_scatter", **tensor, includes_waits=True, wait_ns_per_step=None),
            collective(
                "all_reduce",
                num_ranks=512,
                bytes=None,
                algbw_bytes_per_s=None,
                busbw_bytes_per_s=None,
            ),
            collective(
                "all_to_all",
                group="mesh_ep",
                num_groups=64,
                num_sizes=40,
                imbalance=1.7,
                crosses_nodes=True,
            ),
            *(
                collective(
                    bytes=1000 * i, num_ranks=None, group="", on_device=False, exposed_share=None
                )
                for i in range(1, 9)
            ),
        ),
        num_rows_left_out=7,
        fits=(
            LinkFit(
                op="all_gather",
                group="mesh_tp",
                num_ranks=8,
                alpha_ns=4200.0,
                beta_bytes_per_s=180e9,
                num_sizes=5,
                min_bytes=20_000,
                max_bytes=64_000_000,
                goodness=0.97,
                worst=0.18,
                worst_bytes=20_000,
            ),
        ),
        ranks=tuple(rank_comms(i, **(late if i == 77 else {})) for i in range(512)),
        shape=(
            Dimension(
                kind="tensor",
                scheme=None,
                size=8,
                num_groups=64,
                group="mesh_tp",
                because="its groups are called mesh_tp",
            ),
            Dimension(
                kind="not known",
                scheme=None,
                size=None,
                num_groups=1,
                group="x",
                because="all_reduce in forward",
            ),
        ),
        buckets=Buckets(
            group="0",
            bytes=(25_000_000,) * 9,
            fired_ns=tuple(i * MS for i in range(9)),
            backward_ns=30 * MS,
            tail_ns=2 * MS,
        ),
        gathers=(
            Gathers(
                phase="forward",
                group="0",
                count_per_step=33.0,
                bytes_per_step=1.4e10,
                hidden_share=0.93,
                ahead=2.0,
            ),
            Gathers(
                phase="backward",
                group="0",
                count_per_step=32.5,
                bytes_per_step=None,
                hidden_share=0.0,
                ahead=None,
            ),
        ),
        link=Link(name="nvlink", bytes_per_s=450e9, source="datasheet"),
        clock_noise_ns=40_000,
    )
    made = diagnosis("imbalance", "511 ranks wait for rank 77, which arrives 11 ms late.", ranks)
    return replace(made, facts=replace(made.facts, comms=comms))


def lone_rank_with_collectives() -> Diagnosis:
    """One rank of eight: waiting is in the times of its collectives."""
    alone = {"includes_waits": True, "wait_ns_per_step": None}
    comms = CommsFacts(
        world_size=8,
        rows=(
            collective("all_reduce", **alone),
            collective("broadcast", **alone, bytes=160, count_per_step=None, ns_per_step=None),
        ),
        num_rows_left_out=0,
        fits=(),
        ranks=(
            rank_comms(
                0, wait_ns=None, transfer_ns=None, late_ns=None, share_last=None, offset_ns=None
            ),
        ),
        shape=(),
    )
    made = unsplit_comms()
    return replace(made, facts=replace(made.facts, comms=comms))


def evil_groups() -> Diagnosis:
    """Groups whose names want to do something to the terminal."""
    names = [name for name in EVIL_NAMES if "\ud800" not in name]
    rows = tuple(
        collective(
            name,
            group=name,
            dtype=name,
            num_ranks=3,
            slowest_group=name,
            slowest_busbw_bytes_per_s=1.0,
        )
        for name in names
    )
    shape = tuple(
        Dimension(kind="data", scheme=name, size=2, num_groups=1, group=name, because=name)
        for name in names
    )
    made = meshed_ranks()
    comms = made.facts.comms
    assert comms is not None
    return replace(made, facts=replace(made.facts, comms=replace(comms, rows=rows, shape=shape)))


def thousand_ranks() -> Diagnosis:
    """More different ranks than there are lines."""
    ranks = [
        rank_facts({"compute": 40.0 + i * i / 500, "idle_launch": 1.0 + i % 7}, rank=i)
        for i in range(512)
    ]
    nothing = rank_facts(
        {},
        rank=512,
        num_windows=0,
        partition=None,
        num_events=0,
        launches=None,
        notes=("no events",),
    )
    return diagnosis("compute", "The device's arithmetic limits this run.", [*ranks, nothing])


def cpu_only() -> Diagnosis:
    """Nothing ran on a device."""
    rank = rank_facts({"compute": 120.0, "idle_input": 20.0, "idle_other": 4.0})
    steps = replace(rank.steps, where="host", source="Optimizer.step")
    ops = (
        RangeRow(name="aten::addmm", count=90, device_ns=0, host_ns=210 * MS),
        RangeRow(name="aten::gelu", count=36, device_ns=0, host_ns=44 * MS),
        RangeRow(name="aten::view", count=900, device_ns=0, host_ns=None),
    )
    totals = DeviceTotals(span=0, busy=0, compute=0, comms=0, copy=0, comms_under_compute=0)
    rank = replace(
        rank,
        steps=steps,
        device=totals,
        device_name=None,
        launches=None,
        ops=ops,
        busy_ns=(0, 0, 0),
    )
    return diagnosis(
        "compute",
        "Operators on the host take 83 % of the step.",
        [rank],
        notes=["no device events in the trace"],
    )


def zero_events() -> Diagnosis:
    """A readable file with nothing in it."""
    rank = rank_facts(
        {}, num_windows=0, partition=None, num_events=0, launches=None, device_name=None
    )
    steps = Steps(
        source="whole trace",
        where="host",
        num_seen=0,
        num_marked=0,
        windows=(),
        is_step_interval=False,
    )
    return diagnosis(
        "unknown",
        "",
        [replace(rank, steps=steps)],
        notes=["traces/job.rank0.pt.trace.json.gz has no events"],
    )


def no_ranks() -> Diagnosis:
    """Nothing could be read at all."""
    return diagnosis(
        "unknown", "What limits this run is not known.", [], notes=["no trace could be read"]
    )


def unknown_device() -> Diagnosis:
    """A device in none of our tables; the work itself is known."""
    roof = replace(NO_ROOF, model_flops=3.2e12, hardware_flops=3.2e12, modelled_share=0.5)
    rank = rank_facts(
        {"compute": 9.1, "idle_launch": 0.9}, device_name="Acme Tensor 9000", roofline=roof
    )
    return diagnosis("compute", "The device computes 91 % of the step.", [rank])


def one_step() -> Diagnosis:
    """One step, cut from its first work to its last."""
    rank = rank_facts({"compute": 1412.0, "idle_launch": 96.0, "idle_io": 0.2}, num_windows=1)
    rank = replace(
        rank, steps=replace(rank.steps, num_seen=1, num_marked=1, is_step_interval=False)
    )
    return diagnosis(
        "compute",
        "The device computes 94 % of the step.",
        [rank],
        notes=["one step only: its length is not a step interval"],
    )


def device_without_steps() -> Diagnosis:
    """Device work, but no whole step to measure it in."""
    rank = rank_facts({"compute": 5.0, "idle_launch": 3.0}, num_windows=1)
    steps = replace(rank.steps, num_seen=1, num_marked=1, windows=(), is_step_interval=False)
    rank = replace(rank, steps=steps, partition=None, busy_ns=(), comms_hidden_ns=(), launches=None)
    return diagnosis(
        "unknown", "What limits this run is not known: no whole step was recorded.", [rank]
    )


def unknown_categories() -> Diagnosis:
    """Events of kinds that nobody has told us about."""
    unknown = {
        "privateuse1_driver": 4000,
        "mtia_ccp_events": 120,
        **{f"kind_{i}": 10 - i for i in range(9)},
    }
    rank = rank_facts({"compute": 9.1, "idle_launch": 0.9}, unknown=unknown, launches=None)
    return diagnosis("compute", "The device computes 91 % of the step.", [rank])


def evil_names() -> Diagnosis:
    """Every name in the trace wants to do something to the terminal."""
    names = EVIL_NAMES
    everything = "".join(names[:10])
    rank = rank_facts(
        {"compute": 9.1, "transfer": 0.5, "idle_launch": 0.9},
        path=f"traces/{everything}.json",
        device_name=everything,
        kernels=tuple(
            kernel(name, name, name, 7 * 3, 3.0 - i / 10, 0.5) for i, name in enumerate(names)
        ),
        categories=tuple(CategoryRow(category=name, count=21, total_ns=3 * MS) for name in names),
        copies=tuple(
            CopyRow(kind=name, count=1, total_ns=MS, bytes=1, num_blocking=1) for name in names
        ),
        host=Host(
            syncs=tuple(
                CallRow(name=name, count=1, total_ns=MS, longest_ns=MS) for name in names[:3]
            ),
            allocator=tuple(
                CallRow(name=name, count=1, total_ns=MS, longest_ns=MS) for name in names[3:6]
            ),
            loader=tuple(
                CallRow(name=name, count=1, total_ns=MS, longest_ns=MS) for name in names[6:9]
            ),
            compile=tuple(
                CallRow(name=name, count=1, total_ns=MS, longest_ns=MS) for name in names[9:]
            ),
        ),
        unknown=dict.fromkeys(names, 3),
        notes=names,
    )
    steps = replace(rank.steps, source=everything)
    roof = replace(HEALTHY_ROOF, device=everything, peak_precision="[b]bf16[/b]\x1b[5m")
    finding = replace(FINDINGS[0], code=everything, summary=everything, action=everything)
    ranks = [replace(rank, steps=steps, roofline=roof)]
    return diagnosis("compute", everything, ranks, findings=[finding], notes=names)


SCENARIOS: Mapping[str, Callable[[], Diagnosis]] = {
    builder.__name__: cache(builder)
    for builder in (
        healthy,
        data_bound,
        launch_bound,
        comms_eight_ranks,
        unsplit_comms,
        thousand_ranks,
        meshed_ranks,
        lone_rank_with_collectives,
        evil_groups,
        cpu_only,
        zero_events,
        no_ranks,
        unknown_device,
        one_step,
        device_without_steps,
        unknown_categories,
        evil_names,
    )
}


def kept_diagnosis(code: str, speedup: float = 1.4, low: float = 1.3, high: float = 1.6) -> str:
    """A diagnosis in JSON with one finding, as `stepscope diagnose --format json` keeps it."""
    from stepscope.report.diagnosis.json import to_json

    finding = Finding(
        code=code,
        bound="data",
        summary="s",
        action="a",
        evidence=(),
        ranks=(0,),
        predicted_speedup=speedup,
        predicted_low=low,
        predicted_high=high,
        predicted_step_ms=10.0,
    )
    return to_json(replace(healthy(), findings=(finding,), ladder=(speedup,)))
