"""What rules advise from recordings of the machine: one recording where each speaks, and its
look-alike where it is silent."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.kernels import (
    KernelMetrics,
    KernelRecording,
    KernelReport,
    KernelTotal,
    OtherTotals,
)
from stepscope.core.recordings.system import (
    DeviceSeries,
    HostCounters,
    HostStacks,
    HostThread,
    HotSpot,
    Spread,
)
from stepscope.recordings.host import (
    gil_contention,
    page_cache_misses,
    python_overhead,
    serial_loader,
    starved_loader,
)
from stepscope.recordings.ncu import dram_bound, idle_tensor_cores, latency_bound
from stepscope.recordings.nsys import allocator_churn, device_sync, fp32_matmul, launch_overhead
from stepscope.recordings.system import idle_device, one_busy_core, underloaded_gpu, uneven_devices
from stepscope.rules.host import thread_oversubscription
from stepscope.rules.imbalance import throttled_gpu
from tests.recording_texts import system_report
from tests.wording import mentions

RULES = (
    dram_bound,
    gil_contention,
    idle_device,
    idle_tensor_cores,
    latency_bound,
    one_busy_core,
    page_cache_misses,
    python_overhead,
    thread_oversubscription,
    throttled_gpu,
    underloaded_gpu,
    uneven_devices,
)


def flat(value: float) -> Spread:
    return Spread(num=20, low=value, median=value, high=value, mean=value)


def device(index: int = 0, *, clock: float = 1900, **more: Any) -> DeviceSeries:
    told: dict[str, Any] = {
        "name": "H200",
        "num_samples": 20,
        "num_working": 20,
        "busy_share": flat(0.95),
        "sm_clock_working_mhz": flat(clock),
        "max_sm_clock_mhz": 1980.0,
        "throttled": {},
    }
    return DeviceSeries(index=index, **(told | more))


def stacks(**more: Any) -> HostStacks:
    told: dict[str, Any] = {
        "tool": "py-spy",
        "path": "host.txt",
        "unit": "samples",
        "amount": 100.0,
    }
    return HostStacks(**(told | more))


def beside(*parts: DeviceSeries | HostStacks | HostCounters) -> Auxiliary:
    return Auxiliary(
        system=system_report(
            devices=tuple(part for part in parts if isinstance(part, DeviceSeries)),
            stacks=tuple(part for part in parts if isinstance(part, HostStacks)),
            counters=tuple(part for part in parts if isinstance(part, HostCounters)),
        )
    )


@pytest.mark.parametrize("rule", RULES)
def test_nothing_recorded_is_nothing_said(rule: Any) -> None:
    assert not rule.advise(Auxiliary())
    assert not rule.advise(
        beside(device(), DeviceSeries(index=1), stacks(), HostCounters(path="stat.txt"))
    )


def test_heat_holds_the_clock_down() -> None:
    hot = device(
        clock=1400,
        throttled={"hw_thermal_slowdown": 0.8, "sw_power_cap": 0.3},
        temperature_c=flat(88),
    )

    (advice,) = throttled_gpu.advise(beside(hot))

    assert (advice.code, advice.weight, advice.weight_of) == (
        "throttled-gpu",
        0.8,
        "the samples at work",
    )
    assert "1400 of 1980 MHz" in advice.evidence[0]
    assert "88 C" in advice.evidence[0]
    assert not throttled_gpu.advise(beside(replace(hot, throttled={"hw_thermal_slowdown": 0.4})))
    assert not throttled_gpu.advise(beside(replace(hot, num_working=4)))
    assert not throttled_gpu.advise(beside(replace(hot, sm_clock_working_mhz=flat(1970))))


def test_a_power_limit_is_told_only_where_it_costs_much() -> None:
    capped = device(
        clock=1500, throttled={"sw_power_cap": 0.9}, power_limit_w=400.0, power_working_w=flat(398)
    )

    (advice,) = throttled_gpu.advise(beside(capped))

    assert "power limit" in advice.summary
    assert "398 of 400 W" in advice.evidence[0]
    assert not throttled_gpu.advise(beside(replace(capped, sm_clock_working_mhz=flat(1850))))
    assert not throttled_gpu.advise(
        beside(replace(capped, max_sm_clock_mhz=None))
    )  # no word of how far down
    assert not throttled_gpu.advise(beside(replace(capped, throttled={"gpu_idle": 1.0})))


def test_one_device_behind_its_peers() -> None:
    (advice,) = throttled_gpu.advise(beside(device(0), device(1, clock=1520), device(2)))

    assert mentions(advice.summary, "device 1", "1520 MHz", "peers at 1900")
    assert advice.weight == pytest.approx(0.2)
    assert not throttled_gpu.advise(beside(device(0), device(1, clock=1520, name="A100")))


def test_threads_wait_for_the_lock() -> None:
    threads = (
        HostThread(name="MainThread", share=0.5, gil_wait_share=0.6),
        HostThread(name="log", share=0.5, gil_wait_share=0.1),
    )

    (advice,) = gil_contention.advise(beside(stacks(threads=threads)))

    assert (advice.weight, advice.weight_of) == (0.6, "that thread's samples")
    assert "MainThread" in advice.summary
    for share in (0.05, None):
        calm = (
            replace(threads[0], gil_wait_share=share),
            replace(threads[1], gil_wait_share=share),
        )
        assert not gil_contention.advise(beside(stacks(threads=calm)))


def test_python_runs_for_most_samples() -> None:
    spots = (HotSpot(name="mask", file="model.py", line=12, self_share=0.5, total_share=0.6),)
    host = stacks(interpreter_share=0.55, training=spots)

    (advice,) = python_overhead.advise(beside(host))

    assert advice.weight == 0.55
    (why,) = advice.evidence
    assert mentions(why, "mask (model.py:12)", "50% of the samples")
    assert not python_overhead.advise(beside(replace(host, interpreter_share=0.2)))
    assert not python_overhead.advise(
        beside(replace(host, interpreter_share=None))
    )  # without native frames nobody knows
    assert not python_overhead.advise(
        beside(host, device())
    )  # the device is busy: it costs nothing
    unused = device(1, busy_share=flat(0.0), num_working=0)
    assert not python_overhead.advise(beside(host, device(), unused)), (
        "what nobody uses waits for nobody"
    )


def test_threads_are_swapped_and_moved() -> None:
    counted = HostCounters(path="stat.txt", cpu_s=5.11, context_switches=11922, migrations=266)
    fitting = HostCounters(path="stat.txt", cpu_s=4.80, context_switches=1188, migrations=6)
    locked = HostCounters(path="stat.txt", cpu_s=1.385, context_switches=1932, migrations=2)

    (advice,) = thread_oversubscription.advise(beside(counted))

    assert mentions(advice.summary, "2,333 times", "elsewhere 52")
    assert not thread_oversubscription.advise(beside(fitting, locked))


def test_more_threads_than_cores_that_are_never_free() -> None:
    crowded = stacks(tool="perf", num_cores=4, busy_cores=3.9, even_threads=16, num_threads=20)

    (advice,) = thread_oversubscription.advise(beside(crowded))

    assert mentions(advice.summary, "16 threads", "4 cores")
    assert not thread_oversubscription.advise(beside(replace(crowded, busy_cores=2.0)))
    assert not thread_oversubscription.advise(beside(replace(crowded, even_threads=5)))
    assert not thread_oversubscription.advise(beside(replace(crowded, num_cores=None)))


def test_pages_are_fetched_while_threads_wait() -> None:
    counted = HostCounters(path="stat.txt", elapsed_s=10.0, major_faults=5000)
    sampled = stacks(tool="perf", page_read_share=0.12)

    one, two = page_cache_misses.advise(beside(counted, sampled))

    assert "500 pages a second" in one.summary
    assert two.weight == 0.12
    calm = (
        replace(counted, major_faults=900),
        replace(counted, major_faults=None),
        replace(sampled, page_read_share=0.01),
    )
    assert not page_cache_misses.advise(beside(*calm))


def test_one_core_busy_and_the_device_not() -> None:
    counted = HostCounters(path="stat.txt", busy_cores=1.02)
    waiting = device(busy_share=flat(0.35))

    advice = one_busy_core.advise(beside(waiting, counted))

    assert isinstance(advice, Advice)
    assert advice.weight == pytest.approx(0.65)
    assert one_busy_core.advise(beside(device(), counted)) is None
    assert one_busy_core.advise(beside(waiting, replace(counted, busy_cores=6.0))) is None
    assert one_busy_core.advise(beside(waiting)) is None
    assert one_busy_core.advise(beside(waiting, counted, device(1))) is None


def test_samples_before_and_after_the_run_are_not_the_runs() -> None:
    counted = HostCounters(path="stat.txt", busy_cores=1.02)
    around = device(busy_share=flat(0.0), busy_run_share=flat(0.95))
    assert one_busy_core.advise(beside(around, counted)) is None
    few = replace(flat(0.3), num=2)
    assert (
        one_busy_core.advise(beside(device(busy_share=flat(0.0), busy_run_share=few), counted))
        is None
    ), "two samples tell little"
    told = one_busy_core.advise(
        beside(device(busy_share=flat(0.0), busy_run_share=flat(0.3)), counted)
    )
    assert isinstance(told, Advice)
    assert told.weight == pytest.approx(0.7)


def test_a_device_that_is_always_busy_at_a_fifth_of_its_power_is_not_full() -> None:
    waits = device(power_working_w=flat(150.0), power_limit_w=700.0)
    told = underloaded_gpu.advise(beside(waits))
    assert told is not None
    assert mentions(told.summary, "95% of the time", "150 of 700 W")
    assert told.weight == pytest.approx(1 - 150 / 700)
    for silent in (
        replace(waits, power_working_w=flat(400.0)),
        replace(waits, power_limit_w=None),
        replace(waits, busy_share=flat(0.4)),
        replace(waits, num_working=3),
    ):
        assert underloaded_gpu.advise(beside(silent)) is None
    beside_it = underloaded_gpu.advise(
        beside(replace(waits, power_limit_w=None), device(power_limit_w=700.0))
    )
    assert beside_it is not None, "the limit stands in another recording of the device"


def dcgm(*, sm: float, tensor: float, dram: float) -> DeviceSeries:
    return device(
        sm_active_share=flat(sm), tensor_active_share=flat(tensor), dram_active_share=flat(dram)
    )


def test_a_device_that_waits_is_told_also_when_its_memory_is_full() -> None:
    waiting = device(busy_share=flat(0.35), memory_used_bytes=flat(82e9), memory_total_bytes=85.5e9)
    advice = idle_device.advise(beside(waiting))
    assert isinstance(advice, Advice)
    assert mentions(advice.summary, "35% of the time")
    assert mentions(advice.evidence[0], "82 of 86 GB")
    assert idle_device.advise(beside(device())) is None
    assert idle_device.advise(beside(device(busy_share=flat(0.0), num_working=0))) is None
    few = replace(flat(0.35), num=3)
    said = idle_device.advise(beside(device(busy_share=few)))
    assert isinstance(said, Advice)
    assert mentions(said.summary, "In 3 looks", "35%")
    few = replace(flat(0.95), num=3)
    assert isinstance(idle_device.advise(beside(device(busy_share=few))), Abstention)
    hardly = device(busy_share=flat(0.04), num_working=0)
    assert isinstance(idle_device.advise(beside(hardly)), Advice)
    busy_core = HostCounters(path="stat.txt", busy_cores=1.02)
    assert idle_device.advise(beside(waiting, busy_core)) is None, "one-busy-core says more"
    assert isinstance(idle_device.advise(beside(device(busy_share=None))), Abstention)


def test_devices_of_one_kind_that_differ_are_told() -> None:
    (advice,) = uneven_devices.advise(beside(device(0), device(1, busy_share=flat(0.42))))
    assert mentions(advice.summary, "Device 1", "42%", "95%")
    assert advice.weight == pytest.approx(0.53)
    assert not uneven_devices.advise(beside(device(0), device(1, busy_share=flat(0.85))))
    other = device(1, busy_share=flat(0.42), name="A100")
    assert not uneven_devices.advise(beside(device(0), other)), "not of one kind"
    unused = device(1, busy_share=flat(0.0), num_working=0)
    assert not uneven_devices.advise(beside(device(0), unused)), "nobody uses it"


def test_counters_of_a_device_tell_what_it_is_bound_by() -> None:
    (bound,) = dram_bound.advise(beside(dcgm(sm=0.9, tensor=0.08, dram=0.85)))
    assert mentions(bound.summary, "85% of the time", "8%")
    assert not dram_bound.advise(beside(dcgm(sm=0.9, tensor=0.5, dram=0.85)))
    assert not dram_bound.advise(beside(dcgm(sm=0.9, tensor=0.08, dram=0.3)))
    (idle,) = idle_tensor_cores.advise(beside(dcgm(sm=0.9, tensor=0.0, dram=0.3)))
    assert mentions(idle.evidence[0], "multiprocessors 90%", "tensor cores 0%")
    assert not idle_tensor_cores.advise(beside(dcgm(sm=0.2, tensor=0.0, dram=0.3)))
    assert not idle_tensor_cores.advise(beside(dcgm(sm=0.9, tensor=0.0, dram=0.85)))


def of_kernels(*kernels: KernelMetrics) -> Auxiliary:
    recording = KernelRecording(format="ncu", paths=("ncu.csv",), kernels=kernels)
    return Auxiliary(kernels=KernelReport(recordings=(recording,)))


def test_counters_of_kernels_tell_what_they_are_bound_by() -> None:
    copies = KernelMetrics(
        name="copy", duration_ns=1e5, compute_throughput=0.2, dram_throughput=0.91
    )
    waits = replace(copies, compute_throughput=0.14, dram_throughput=0.12)
    (bound,) = dram_bound.advise(of_kernels(copies))
    assert mentions(bound.evidence[0], "91%")
    assert not dram_bound.advise(of_kernels(waits))
    assert not latency_bound.advise(of_kernels(copies))
    said = latency_bound.advise(of_kernels(waits))
    assert not isinstance(said, Abstention)
    assert mentions(said[0].evidence[0], "compute at 14%", "DRAM at 12%")
    assert not latency_bound.advise(of_kernels(replace(waits, occupancy=0.1)))
    bare = KernelMetrics(name="copy", duration_ns=1e5)
    assert isinstance(latency_bound.advise(of_kernels(bare)), Abstention)


def test_products_without_tensor_cores_are_told_by_counters() -> None:
    product = KernelMetrics(name="Cijk_Ailk_Bljk_SB_MT64x64", duration_ns=1e5, tensor_pipe=0.0)
    (advice,) = idle_tensor_cores.advise(of_kernels(product))
    assert advice.weight == 1.0
    assert not idle_tensor_cores.advise(of_kernels(replace(product, tensor_pipe=0.4)))
    assert not idle_tensor_cores.advise(of_kernels(replace(product, tensor_pipe=None)))
    assert not idle_tensor_cores.advise(of_kernels(replace(product, name="vectorized_add")))


def of_totals(kernels: dict[str, tuple[int, float]], calls: dict[str, tuple[int, float]]) -> Any:
    def rows(told: dict[str, tuple[int, float]]) -> tuple[KernelTotal, ...]:
        return tuple(
            KernelTotal(name=name, count=count, total_ns=ns) for name, (count, ns) in told.items()
        )

    recording = KernelRecording(
        format="nsys-stats",
        paths=("stats.csv",),
        totals=rows(kernels),
        others=(OtherTotals(of="cuda_api_sum", rows=rows(calls)),),
    )
    return Auxiliary(kernels=KernelReport(recordings=(recording,)))


def test_totals_tell_of_short_kernels_waits_and_the_allocator() -> None:
    slow = of_totals(
        {"vectorized_add": (90_000, 99e6), "ampere_sgemm_128x64_tn": (900, 121e6)},
        {
            "cudaLaunchKernel": (90_900, 400e6),
            "cudaStreamSynchronize": (500, 800e6),
            "cudaMalloc": (500, 90e6),
        },
    )
    launches = launch_overhead.advise(slow)
    assert isinstance(launches, Advice)
    assert mentions(launches.summary, "90,000 of 90,900", "1.1 us")
    products = fp32_matmul.advise(slow)
    assert products is not None
    assert products.weight == pytest.approx(0.55)
    waits = device_sync.advise(slow)
    assert waits is not None
    assert mentions(waits.summary, "500 waits", "62%")
    memory = allocator_churn.advise(slow)
    assert memory is not None
    assert mentions(memory.summary, "500 times", "7%")


def test_totals_of_a_healthy_run_tell_nothing() -> None:
    healthy = of_totals(
        {"sm90_xmma_gemm_bf16": (2_000, 900e6), "vectorized_add": (900, 2e6)},
        {
            "cudaLaunchKernel": (2_900, 400e6),
            "cudaDeviceSynchronize": (3, 8e6),
            "cudaMalloc": (40, 90e6),
        },
    )
    for rule in (launch_overhead, fp32_matmul, device_sync, allocator_churn):
        assert rule.advise(healthy) is None
        assert rule.advise(Auxiliary()) is None


def test_sampled_stacks_tell_where_the_input_is_made() -> None:
    makes = HotSpot(name="__getitem__", file="train.py", line=9, self_share=0.1, total_share=0.91)
    said = serial_loader.advise(beside(stacks(functions=(makes,))))
    assert isinstance(said, list)
    (serial,) = said
    assert mentions(serial.summary, "__getitem__ (train.py:9)", "91%")
    worker = HotSpot(name="_worker_loop", self_share=0.0, total_share=0.9)
    assert not serial_loader.advise(beside(stacks(functions=(makes, worker)))), "in workers"
    assert not serial_loader.advise(beside(stacks(functions=(replace(makes, total_share=0.1),))))
    waits = HotSpot(name="_try_get_data", self_share=0.5, total_share=0.6)
    (starved,) = starved_loader.advise(beside(stacks(functions=(waits,))))
    assert starved.weight == 0.6
    assert not starved_loader.advise(beside(stacks(functions=(makes,))))
