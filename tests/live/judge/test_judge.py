"""What triage says of a job, and of its look-alikes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.recordings.system import (
    COMPILER,
    HELPER,
    PROCESS,
    HostStacks,
    HostThread,
    HotSpot,
    SystemReport,
)
from stepscope.live.judge.judge import judge
from stepscope.live.shapes.triage import (
    COMPILING,
    FAILED,
    GPU,
    HOST,
    HUNG,
    INPUT_CPU,
    INPUT_IO,
    OVERSUBSCRIBED,
    SAVES,
    THROTTLED,
    UNCLEAR,
    UNDERLOADED,
)
from tests.nccl_logs import info, read_text, two_nodes
from tests.triage_cases import device, flat, host, rank, seen, worker
from tests.wording import mentions

LOADER = HotSpot(
    name="_next_data", file="torch/utils/data/dataloader.py", self_share=0.0, total_share=0.6
)
STACKS = HostStacks(tool="py-spy", path="x", unit="samples", amount=100.0, functions=(LOADER,))
SAW = flat(1.0, mean=0.55, low=0.0)
IDLE = device(busy=0.0)
ON_DEVICE = {"uses_device": True}
CASES = {
    "full device": (seen(device(), host(rank())), GPU),
    "full device, spinning host": (seen(device(), host(rank(**ON_DEVICE), worker())), GPU),
    "150 of 700 W": (seen(device(1.0, 150.0), host(rank())), UNDERLOADED),
    "heat": (seen(device(sm_clock_working_mhz=flat(1200), throttled={"hw_thermal_slowdown": 0.9}),
                  host(rank())), THROTTLED),
    "a cap that costs nothing": (seen(device(throttled={"sw_power_cap": 0.9}), host(rank())), GPU),
    "bursts, median 100 %": (seen(device(busy_run_share=SAW), host(rank())), HOST),
    "host": (seen(device(0.3), host(rank())), HOST),
    "host without a device": (seen(host(rank())), HOST),
    "host on a busy machine": (seen(host(rank(cores=0.4, queued_cores=0.6))), HOST),
    "device not asked": (seen(host(rank(**ON_DEVICE))), UNCLEAR),
    "workers never rest": (seen(device(0.3), host(rank(cores=0.2), worker(0), worker(1))),
                           INPUT_CPU),
    "workers never rest for want of cores": (
        seen(host(rank(cores=0.1), worker(0, 0.3, queued_cores=0.7), num_cores=1.0)), INPUT_CPU),
    "the rank makes its own batches": (seen(host(rank()), STACKS), INPUT_CPU),
    "workers wait for a disk": (
        seen(host(rank(cores=0.1), worker(0, 0.2, io_wait_share=0.7, disk_read_bytes_s=3e6))),
        INPUT_IO),
    "workers read, never seen waiting": (
        seen(host(rank(cores=0.1), worker(0, 0.2, disk_read_bytes_s=8e7))), INPUT_IO),
    "the rank waits for its workers": (
        seen(host(rank(cores=0.1), worker(0, 0.1)), STACKS), INPUT_IO),
    "workers read, and copy what they read": (
        seen(host(rank(cores=0.1), worker(0, 0.8, io_wait_share=0.4, disk_read_bytes_s=5e8))),
        INPUT_IO),
    "the rank reads its own batches": (
        seen(host(rank(cores=0.8, io_wait_share=0.5, disk_read_bytes_s=8e8)), STACKS), INPUT_IO),
    "saves": (seen(host(rank(cores=0.2, io_wait_share=0.6, disk_write_bytes_s=3e8))), SAVES),
    "too many threads": (seen(host(rank(cores=2.0, queued_cores=6.0), num_cores=2.0)),
                         OVERSUBSCRIBED),
    "threads that wait for each other": (
        seen(host(rank(cores=1.85, queued_cores=1.1, num_threads=32), num_cores=2.0)),
        OVERSUBSCRIBED),
    "a quota": (seen(host(rank(), held_back_share=0.4)), OVERSUBSCRIBED),
    "others on the cores": (
        seen(host(rank(cores=0.5, queued_cores=0.5), num_cores=2.0, other_cores=1.5)),
        OVERSUBSCRIBED),
    "others on other cores": (seen(host(rank(), num_cores=2.0, other_cores=1.0)), HOST),
    "compiling": (seen(host(rank(cores=0.0), worker(0, 3.0, role=COMPILER))), COMPILING),
    "hung": (seen(host(rank(cores=0.001), rank(1, cores=0.0), worker(0, 0.0))), HUNG),
    "hung, its device idle": (seen(IDLE, host(rank(cores=0.0, **ON_DEVICE))), HUNG),
    "asleep, its device not asked": (seen(host(rank(cores=0.0, **ON_DEVICE))), UNCLEAR),
    "asleep beside a full device": (seen(device(), host(rank(cores=0.0, **ON_DEVICE))), GPU),
    "asleep, and queued when it looks at the clock": (
        seen(host(rank(cores=0.0, queued_cores=0.03, wakes_per_s=1.0))), HUNG),
    "hardly a core, and goes on": (seen(host(rank(cores=0.01, wakes_per_s=50.0))), UNCLEAR),
    "hardly a core, and goes on in the loader": (
        seen(host(rank(cores=0.01, wakes_per_s=50.0)), STACKS), INPUT_IO),
    "one look at 100 %, 140 of 750 W": (
        seen(device(1.0, 140.0, power_limit_w=750.0, num_samples=1, num_working=1)), UNDERLOADED),
    "hung in the kernel": (seen(host(rank(cores=0.0, io_wait_share=1.0))), HUNG),
    "one rank works, the others wait": (seen(host(rank(cores=0.0), rank(1))), HOST),
    "the rank waits for a program that it started": (
        seen(host(rank(cores=0.0), worker(0, 1.0, role=HELPER, name="ffmpeg"))), HOST),
    "hardly a core, and a slow disk": (
        seen(host(rank(cores=0.001, io_wait_share=0.9, disk_read_bytes_s=1e6))), INPUT_IO),
    "neither": (seen(host(rank(cores=0.2))), UNCLEAR),
    "nothing measured": (SystemReport(), UNCLEAR),
    "devices alone, idle": (seen(device(0.3)), UNCLEAR),
    "not measured is not idle": (seen(host(rank(cores=None))), UNCLEAR),
    "a process of no known role": (seen(host(rank(role=PROCESS))), HOST),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_state_is_named(case: str) -> None:
    system, state = CASES[case]
    triage = judge(system)
    assert (triage.state, bool(triage.first)) == (state, True), triage.summary
    assert triage.summary.endswith(".")


def test_numbers_stand_in_the_answer() -> None:
    assert mentions(judge(CASES["150 of 700 W"][0]).summary, "100%", "150 of 700 W")
    saw = judge(CASES["bursts, median 100 %"][0])
    assert "work" in saw.summary
    assert "55% of the time" in saw.summary
    assert mentions(saw.also[0], "device 0", "bursts", "55%", "between 0% and 100%")
    over = judge(CASES["too many threads"][0])
    assert "wants 8.0 cores of 2" in over.summary
    assert "OMP_NUM_THREADS=2" in over.first
    late = judge(CASES["one rank works, the others wait"][0])
    assert "rank 1 wants 1.00 cores" in late.summary
    assert mentions(late.also[0], "rank 0 rests (0.00 cores)", "rank 1 works")


def of_process(pid: int, name: str, file: str = "train.py") -> HostStacks:
    spot = HotSpot(name=name, file=file, line=5, self_share=0.9, total_share=0.9)
    return HostStacks(
        tool="py-spy", path="x", pid=pid, unit="samples", amount=100.0, functions=(spot,),
        training=(spot,),
    )  # fmt: skip


def test_functions_that_were_sampled_stand_in_the_answer() -> None:
    busy = judge(seen(host(rank()), of_process(100, "step")))
    assert busy.first.startswith("step (train.py:5), 90% ")
    late = judge(
        seen(host(rank(cores=0.2), rank(1, 0.2)), of_process(100, "step"), of_process(101, "load"))
    )
    assert "(rank 0 in step (train.py:5); rank 1 in load (train.py:5))" in late.summary
    workers = judge(seen(host(rank(cores=0.1), worker(0)), of_process(200, "decode")))
    assert mentions(workers.summary, "1.00 cores each", "in decode (train.py:5) 90%")
    forked = judge(
        seen(host(rank(cores=0.1), worker(0)), of_process(100, "main"), of_process(200, "main"))
    )
    assert "(1.00 cores each)" in forked.summary, "the rank's own call, below the worker's"
    hung = judge(seen(host(rank(cores=0.0), worker(0, 0.0)), STACKS))
    assert hung.first.startswith("stepscope attach 200: ")


def test_what_nobody_counted_is_not_said_to_be_nothing() -> None:
    reading = worker(0, 0.1, io_wait_share=1.0, disk_read_bytes_s=None, read_bytes_s=None)
    triage = judge(seen(host(rank(cores=0.1, disk_read_bytes_s=None), reading)))
    assert triage.state == INPUT_IO
    assert "MB/s" not in triage.summary


def test_a_quota_is_what_is_widened_first() -> None:
    held = host(
        rank(cores=0.1), worker(0, 0.3, queued_cores=0.7), num_cores=0.5, quota_cores=0.5,
        held_back_share=0.4,
    )  # fmt: skip
    triage = judge(seen(held))
    assert triage.state == INPUT_CPU
    assert triage.first.startswith("a larger CPU limit")
    threads = judge(seen(host(rank(cores=0.5, queued_cores=1.5), num_cores=0.5, quota_cores=0.5)))
    assert threads.first.startswith("a larger CPU limit")


def test_devices_that_differ_are_named() -> None:
    others = judge(seen(device(), device(0.0, index=3, num_working=0)))
    assert mentions(others.also[0], "device 3", "nothing")
    uneven = judge(seen(device(1.0, 600.0), device(1.0, 150.0, index=1, power_limit_w=None)))
    assert mentions(uneven.also[0], "device 1 draws 150 W", "device 0 600 W")


def test_a_profile_alone_says_whose_its_samples_are() -> None:
    threads = (HostThread(name="pt_data_worker", share=0.54),)
    perf = HostStacks(
        tool="perf report", path="x", unit="samples", amount=1e4, functions=(LOADER,),
        threads=threads,
    )  # fmt: skip
    words = judge(seen(perf)).summary
    assert mentions(words, "perf report's samples", "54% pt_data_worker, 60% in _next_data")


def test_cores_that_are_all_taken_want_no_more_workers() -> None:
    assert judge(CASES["workers never rest"][0]).first == "more workers (now 2)"
    full = judge(CASES["workers never rest for want of cores"][0])
    assert mentions(full.first, "more workers", "nothing")


def test_a_limit_that_was_not_recorded_leaves_it_open_whether_a_device_is_full() -> None:
    dmon = device(1.0, 150.0, power_limit_w=None)
    alone = judge(seen(dmon))
    assert alone.state == GPU
    assert mentions(alone.summary, "not known", "power limit", "not recorded")
    assert "power.limit" in alone.first
    assert judge(seen(dmon, device())).state == UNDERLOADED, "another file of the device has it"


def test_two_ranks_on_one_device_are_a_failure(tmp_path: Path) -> None:
    warning = info("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60").replace(
        "INFO", "WARN"
    )
    triage = judge(SystemReport(), read_text(tmp_path, warning))
    assert triage.state == FAILED
    assert mentions(triage.summary, "ranks 0 and 1", "one device (60)")
    assert "set_device" in triage.first
    assert judge(SystemReport(), read_text(tmp_path, two_nodes())).state == UNCLEAR
