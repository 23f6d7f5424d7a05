"""What the details page of Nsight Compute calls a metric, and the metric's own name.

Labels are those of the sections that come with Nsight Compute 2020 to 2025; older words stand
beside the newer ones. A label that has two meanings is distinguished by its unit.
"""

from __future__ import annotations

import re

from stepscope.readers.ncu.metrics import is_wanted

LABELS = {
    "Duration": "gpu__time_duration.sum",
    "Elapsed Cycles": "sm__cycles_elapsed.max",
    "SM Active Cycles": "sm__cycles_active.avg",
    "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL L2 Cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Local Memory Spilling Requests": "derived__local_spilling_requests",
    "Registers Per Thread": "launch__registers_per_thread",
    "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
    "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
    "Waves Per SM": "launch__waves_per_multiprocessor",
    "# SMs": "launch__sm_count",
    "Block Limit Registers": "launch__occupancy_limit_registers",
    "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
    "Block Limit Warps": "launch__occupancy_limit_warps",
    "Block Limit SM": "launch__occupancy_limit_blocks",
    "Block Limit Barriers": "launch__occupancy_limit_barriers",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
PERCENT_ONLY = {label for label, metric in LABELS.items() if "pct" in metric}
STALL = re.compile(r"(?:Stall )?(Selected|(?<=Stall )[A-Z][\w ]{1,40})")


def metric_of_label(label: str, unit: str) -> str | None:
    """The metric; None for one that no field is made of."""
    if (metric := LABELS.get(label)) is not None:
        return metric if label not in PERCENT_ONLY or unit in ("%", "") else None
    if match := STALL.fullmatch(label):
        reason = match[1].lower().replace(" ", "_")
        return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    return label if is_wanted(label) else None
