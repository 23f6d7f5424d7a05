"""The rules that judge the recordings of other tools alone, in the order in which they are asked. A
new one is its file, beside the tool's readers, and its line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.recordings.flight import hung_collective
from stepscope.recordings.host import gil_contention, page_cache_misses
from stepscope.recordings.job_log import advice, killed_workers
from stepscope.recordings.ncu import (
    barrier_stalls,
    dram_bound,
    idle_tensor_cores,
    latency_bound,
    low_l2_hits,
    low_occupancy,
    memory_stalls,
    register_pressure,
    tail_wave,
    uncoalesced_access,
)
from stepscope.recordings.network import link_errors, network_congestion
from stepscope.recordings.system import idle_device, one_busy_core, underloaded_gpu, uneven_devices

RULES: tuple[Rule, ...] = (
    barrier_stalls.RULE,
    dram_bound.RULE,
    gil_contention.RULE,
    idle_device.RULE,
    idle_tensor_cores.RULE,
    latency_bound.RULE,
    killed_workers.RULE,
    low_l2_hits.RULE,
    low_occupancy.RULE,
    memory_stalls.RULE,
    one_busy_core.RULE,
    page_cache_misses.RULE,
    register_pressure.RULE,
    hung_collective.RULE,
    link_errors.RULE,
    network_congestion.RULE,
    tail_wave.RULE,
    uncoalesced_access.RULE,
    underloaded_gpu.RULE,
    uneven_devices.RULE,
)
ADVISERS: tuple[Callable[[Auxiliary], Sequence[Advice]], ...] = (advice.advise,)
"""What recordings say of the faults of other rules too."""
