"""Metrics of Nsight Compute, by its own names, into KernelMetrics. Values are in base units: bytes,
hertz, nanoseconds, percent.

Names are those of the Nsight Compute profiling guide ("Metrics Structure" and the tables of its
sections). A metric that was not collected leaves its field None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepscope.api import KernelMetrics
from stepscope.core.recordings.kernels import Dim

Values = Mapping[str, float]

SECTOR_BYTES = 32
FULL = 0.995
"""A theoretical occupancy from which nothing limits it."""
PERCENT = {
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "theoretical_occupancy": ("sm__maximum_warps_per_active_cycle_pct",),
    "compute_throughput": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "dram_throughput": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "l2_throughput": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l1_throughput": (
        "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "tensor_pipe": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.sum.pct_of_peak_sustained_active",
    ),
    "fma_pipe": (
        "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    ),
    "issue": ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
    "l2_hits": ("lts__t_sector_hit_rate.pct",),
}
"""Fields that are shares, and the metrics in percent that tell them, the best first."""
PLAIN = {
    "duration_ns": ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max"),
    "registers": ("launch__registers_per_thread",),
    "waves": ("launch__waves_per_multiprocessor",),
    "l2_read_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum",),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_write_bytes": ("dram__bytes_write.sum",),
    "global_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "global_store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "l2_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_miss.sum",),
    "l2_store_sectors": ("l1tex__m_l1tex2xbar_write_sectors_mem_lg_op_st.sum",),
    "shared_wavefronts": (
        "memory_l1_wavefronts_shared",
        "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared.sum",
    ),
    "shared_wavefronts_ideal": (
        "memory_l1_wavefronts_shared_ideal",
        "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_ideal.sum",
    ),
    "spill_instructions": (
        "sass__inst_executed_register_spilling",
        "derived__local_spilling_requests",
    ),
    "instructions": ("smsp__inst_executed.sum",),
}
WHOLE = {
    "num_multiprocessors": ("launch__sm_count",),
    "l2_size_bytes": ("device__attribute_l2_cache_size",),
}
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
LOCAL = tuple(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st"))
L2_OUT = tuple(
    f"lts__{what}.avg.pct_of_peak_sustained_elapsed"
    for what in ("t_sectors", "lts2xbar_cycles_active")
)
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"
USED_BYTES = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.ratio"
ACTIVE = "sm__cycles_active.avg"
ELAPSED = ("sm__cycles_elapsed.avg", "sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
CYCLES = "smsp__cycles_elapsed.avg"
FLOPS = {"add": 1, "mul": 1, "fma": 2}
LANES = {"d": 1, "f": 1, "h": 2}
"""Half precision comes in pairs."""
VECTOR = {
    f"smsp__sass_thread_inst_executed_op_{kind}{op}_pred_on": flops * lanes
    for kind, lanes in LANES.items()
    for op, flops in FLOPS.items()
}
TENSOR = re.compile(r"sm__ops_path_tensor_src_(?!int)\w{1,80}\.sum")
TENSOR_PARTS = re.compile(
    r"sm__(?:inst_executed_pipe_tensor_op_\w{1,20}|pipe_tensor_op_\w{1,20}?_cycles_active)"
    r"\.avg\.pct_of_peak_sustained_(?:active|elapsed)"
)
"""Metrics of the tensor pipe by type of operation."""
TENSOR_5 = tuple(
    f"sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_{of}" for of in ("elapsed", "active")
)
"""Where tcgen05 runs, on Blackwell."""
STALL = re.compile(
    r"smsp__average_warps?(?:_latency)?_issue_stalled_(?!\w{1,40}_not_issued)(\w{1,40}?)(?:_per_issue_active)?\.ratio"
)
STALL_SHARE = re.compile(
    r"smsp__(?:average_)?warps?_issue_stalled_(?!\w{1,40}_not_issued)(\w{1,40}?)_per_warp_active\.pct"
)
SAMPLED_STALL = re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w{1,40}?)(?<!_not_issued)")
LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"
"""What all stalls add up to, the issue itself with them."""
COMMON = frozenset(
    {"selected", "not_selected", "wait", "long_scoreboard", "short_scoreboard", "barrier"}
)
"""Stalls of every generation of devices: where one of them is missing, a part was collected."""
PATTERNS = (TENSOR, TENSOR_PARTS, STALL, STALL_SHARE, SAMPLED_STALL)
EXACT = frozenset(
    {
        *(
            name
            for names in (*PERCENT.values(), *PLAIN.values(), *WHOLE.values())
            for name in names
        ),
        *LIMITS.values(),
        *SHARED,
        *LOCAL,
        *(pattern.format(op) for pattern in (REQUESTS, USED_BYTES) for op in ("ld", "st")),
        *(ACTIVE, *ELAPSED, CYCLES, LATENCY, *TENSOR_5, *L2_OUT),
        *(f"{name}.{ending}" for name in VECTOR for ending in ("sum", "sum.per_cycle_elapsed")),
        *(f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"),
    }
)


def is_wanted(name: str) -> bool:
    """Whether a field is made of this metric."""
    return name in EXACT or any(pattern.fullmatch(name) for pattern in PATTERNS)


def kernel_of(
    name: str, values: Values, *, device: str | None = None, grid: Dim | None, block: Dim | None
) -> KernelMetrics:
    """The kernel that these metrics are of."""
    fields: dict[str, float | None] = {
        field: _share(_first(values, names)) for field, names in PERCENT.items()
    }
    fields["tensor_pipe"] = _tensor_pipe(values, fields["tensor_pipe"])
    fields |= {field: _positive(_first(values, names)) for field, names in PLAIN.items()}
    whole = {field: _whole(_first(values, names)) for field, names in WHOLE.items()}
    loads, stores = _sectors(values, "ld"), _sectors(values, "st")
    limits = {
        limiter: values[metric] for limiter, metric in LIMITS.items() if values.get(metric, 0.0) > 0
    }
    return KernelMetrics(
        name=name,
        device=device,
        grid=grid or _dim(values, "grid"),
        block=block or _dim(values, "block"),
        num_multiprocessors=whole["num_multiprocessors"],
        l2_size_bytes=whole["l2_size_bytes"],
        shared_bytes=_sum(values, SHARED),
        limiters=_limiters(limits, fields["theoretical_occupancy"]),
        active=_ratio(values.get(ACTIVE), _first(values, ELAPSED)),
        l2_served=_share(max((values[name] for name in L2_OUT), default=None))
        if all(n in values for n in L2_OUT)
        else None,
        stalls=stall_shares(values),
        load_sectors=loads[0],
        load_sectors_ideal=loads[1],
        store_sectors=stores[0],
        store_sectors_ideal=stores[1],
        local_bytes=None if (sectors := _sum(values, LOCAL)) is None else sectors * SECTOR_BYTES,
        tensor_flops=_tensor_flops(values, fields["tensor_pipe"]),
        vector_flops=_vector_flops(values),
        **fields,  # type: ignore[arg-type]  # Every name in these tables is a field of this type.
    )


def stall_shares(values: Values) -> dict[str, float]:
    """Shares of a warp's time between two instructions, by what it waited for; by samples where the
    averages were not collected. Where a part of the reasons was collected, and not what all add up
    to, nothing tells their shares.

    Where a part of the reasons was collected, and not what all add up to, nothing tells their
    shares.
    """
    if stalls := _stalls(values, STALL):
        if stalls.keys() >= COMMON:
            return _shares(stalls, sum(stalls.values()))
        if LATENCY in values:
            return _shares(stalls, max(values[LATENCY], sum(stalls.values())))
    if stalls := _stalls(values, STALL_SHARE):
        return _shares(stalls, max(100.0, sum(stalls.values())))
    stalls = _stalls(values, SAMPLED_STALL)
    return _shares(stalls, sum(stalls.values())) if stalls.keys() >= COMMON else {}


def _stalls(values: Values, pattern: re.Pattern[str]) -> dict[str, float]:
    stalls: dict[str, float] = {}
    for name, value in values.items():
        if (match := pattern.fullmatch(name)) and value >= 0:
            reason = match[1].removesuffix("s") if match[1] == "no_instructions" else match[1]
            stalls[reason] = max(value, stalls.get(reason, 0.0))
    return stalls


def _shares(stalls: Values, total: float) -> dict[str, float]:
    """The largest first."""
    if total <= 0:
        return {}
    ordered = sorted(stalls.items(), key=lambda item: -item[1])
    return {reason: value / total for reason, value in ordered}


def _first(values: Values, names: tuple[str, ...]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _share(percent: float | None) -> float | None:
    return None if percent is None else max(percent, 0.0) / 100


def _positive(value: float | None) -> float | None:
    return None if value is None or value < 0 else value


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and 0 < value < 1 << 31 else None


def _sum(values: Values, names: tuple[str, ...]) -> float | None:
    """None unless all were collected."""
    return sum(values[name] for name in names) if all(name in values for name in names) else None


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under


def _dim(values: Values, what: str) -> Dim | None:
    x, y, z = (_whole(values.get(f"launch__{what}_dim_{axis}")) for axis in "xyz")
    return None if x is None or y is None or z is None else (x, y, z)


def _limiters(limits: Values, theoretical: float | None) -> tuple[str, ...]:
    if not limits or theoretical is None or theoretical >= FULL:
        return ()
    least = min(limits.values())
    return tuple(limiter for limiter, blocks in limits.items() if blocks == least)


def _sectors(values: Values, op: str) -> tuple[float | None, float | None]:
    """Sectors that one warp's access touches, and that its data would fill; None where there were
    no such accesses."""
    touched = _ratio(
        values.get(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum"),
        values.get(REQUESTS.format(op)),
    )
    used = values.get(USED_BYTES.format(op))
    return touched, None if touched is None or not used else touched * min(used / SECTOR_BYTES, 1.0)


def _tensor_pipe(values: Values, whole: float | None) -> float | None:
    """The whole pipe's, or its busiest part's. Parts that stand still do not say that the others
    do."""
    if whole is None:
        whole = (
            _share(
                max(
                    (value for name, value in values.items() if TENSOR_PARTS.fullmatch(name)),
                    default=None,
                )
            )
            or None
        )
    newest = _share(_first(values, TENSOR_5))
    return whole if not newest else max(newest, whole or 0.0)


def _tensor_flops(values: Values, tensor_pipe: float | None) -> float | None:
    """A count of one source type may be there whole and in parts: then the whole."""
    names = [name.removesuffix(".sum") for name in values if TENSOR.fullmatch(name)]
    if not names:
        return 0.0 if tensor_pipe == 0 else None
    whole = [name for name in names if not any(name.startswith(f"{other}_") for other in names)]
    return sum(values[f"{name}.sum"] for name in whole)


def _vector_flops(values: Values) -> float | None:
    total = 0.0
    for name, flops in VECTOR.items():
        count = values.get(f"{name}.sum")
        rate = values.get(f"{name}.sum.per_cycle_elapsed")
        if count is None and rate is not None and CYCLES in values:
            count = rate * values[CYCLES]
        if count is None:
            return None
        total += count * flops
    return total
