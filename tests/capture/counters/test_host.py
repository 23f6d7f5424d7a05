"""Counters of the host, read from a tree of files made for the purpose."""

import os
from pathlib import Path

import pytest

from stepscope.capture.counters.children import ChildCounters
from stepscope.capture.counters.host import (
    FabricCounters,
    MachineCounters,
    NetworkCounters,
    ThreadCounters,
    ThrottleCounters,
)
from stepscope.capture.counters.rates import CounterRates
from tests.capture.fakes import Clock, write


def stat(cpu_ticks: int, parent: int, threads: int = 1) -> str:
    words = [
        "S",
        str(parent),
        *["0"] * 9,
        str(cpu_ticks),
        "0",
        *["0"] * 4,
        str(threads),
        *["0"] * 5,
    ]
    return f"7 (a) b (c)) {' '.join(words)}"


def test_rates_are_growth_per_second_and_skip_the_first_and_the_reset() -> None:
    rates = CounterRates(Clock())
    assert rates.of({"a": 10}) == {}
    assert rates.of({"a": 15, "b": 1}) == {"a": 5.0}
    assert rates.of({"a": 3, "b": 1}) == {"b": 0.0}
    assert rates.of({"a": 4}) == {"a": 1.0}


def test_thread_counters(tmp_path: Path) -> None:
    own = f"proc/self/task/{os.getpid()}/stat"
    tick = os.sysconf("SC_CLK_TCK")
    io = (
        "rchar: {0}\nwchar: 0\nsyscr: 0\nsyscw: 0\nread_bytes: {0}\nwrite_bytes: "
        "0\ncancelled_write_bytes: 0\n"
    )
    write(
        tmp_path,
        {own: stat(0, 1, 9), "proc/self/statm": "10 3 1 1 0 1 0", "proc/self/io": io.format(0)},
    )
    counters = ThreadCounters(tmp_path, Clock())
    write(tmp_path, {own: stat(tick // 2, 1, 9), "proc/self/io": io.format(4096)})
    sample = counters.take()
    assert sample["num_threads"] == 9
    assert sample["rss_bytes"] == 3 * os.sysconf("SC_PAGE_SIZE")
    assert sample["private_bytes"] == 2 * os.sysconf("SC_PAGE_SIZE")
    assert sample["main_thread_cores"] == 0.5
    assert (sample["disk_read_bytes_s"], sample["disk_write_bytes_s"], sample["read_bytes_s"]) == (
        4096,
        0,
        4096,
    )


def test_child_counters_follow_children_and_forget_the_dead(tmp_path: Path) -> None:
    me = os.getpid()
    tick = os.sysconf("SC_CLK_TCK")
    children = f"proc/self/task/{me}/children"
    write(tmp_path, {children: "71 72 ", "proc/71/stat": stat(0, me), "proc/72/stat": stat(0, me)})
    counters = ChildCounters(tmp_path, Clock())
    write(tmp_path, {"proc/71/stat": stat(tick, me), "proc/72/stat": stat(tick // 4, me)})
    sample = counters.take()
    assert (sample["num_children"], sample["children_cores"], sample["busiest_child_cores"]) == (
        2,
        1.25,
        1.0,
    )
    # 72 has ended, and its number is that of somebody else's process now.
    write(
        tmp_path,
        {children: "71 ", "proc/71/stat": stat(tick, me), "proc/72/stat": stat(50 * tick, 1)},
    )
    sample = counters.take()
    assert (sample["num_children"], sample["children_cores"]) == (1, 0.0)


def test_machine_counters(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/stat": "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 1",
            "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   2 kB\n",
        },
    )
    counters = MachineCounters(tmp_path, Clock())
    write(tmp_path, {"proc/stat": "cpu  50 0 10 30 10 0 0 0 0 0\n"})
    sample = counters.take()
    assert sample["machine_cpu_share"] == pytest.approx(0.6)
    assert sample["machine_iowait_share"] == pytest.approx(0.1)
    assert sample["memory_available_bytes"] == 2048


def test_network_counters_leave_the_loopback_out(tmp_path: Path) -> None:
    text = "Inter-|\n face |\n    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0: {} 0 0 0 0 0 0 0 {} 0\n"
    write(tmp_path, {"proc/self/net/dev": text.format(0, 0)})
    counters = NetworkCounters(tmp_path, Clock())
    write(tmp_path, {"proc/self/net/dev": text.format(100, 7)})
    assert counters.take() == {"net_rx_bytes_s": 100, "net_tx_bytes_s": 7}


def test_throttle_counters(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            group + "cpu.max": "100000 100000",
            group + "cpu.stat": "throttled_usec 0\n",
        },
    )
    counters = ThrottleCounters(tmp_path, Clock())
    write(tmp_path, {group + "cpu.stat": "usage_usec 5\nthrottled_usec 250000\n"})
    assert counters.take() == {"cgroup_throttled_s_per_s": 0.25}


def test_fabric_counters_are_read_seldom_and_in_words(tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1/counters/"
    write(tmp_path, {port + "port_rcv_data": "0", port + "port_xmit_data": "0"})
    counters = FabricCounters(tmp_path, Clock())
    write(tmp_path, {port + "port_rcv_data": "100", port + "port_xmit_data": "50"})
    samples = [counters.take() for _ in range(10)]
    assert [sample for sample in samples if sample] == [
        {
            "ib_rx_bytes_s": 400,
            "ib_tx_bytes_s": 200,
            "ib_ports": {"mlx5_0/1": {"port_rcv_data": 100, "port_xmit_data": 50}},
        }
    ]


def test_time_without_a_core_is_a_share_of_the_time(tmp_path: Path) -> None:
    own = f"proc/self/task/{os.getpid()}/"
    files = {own + "stat": stat(0, 1), "proc/self/statm": "10 3 1 1 0 1 0"}
    write(tmp_path, files | {own + "schedstat": "5 100000000 7\n"})
    counters = ThreadCounters(tmp_path, Clock())
    write(tmp_path, {own + "schedstat": "9 350000000 9\n"})
    assert counters.take()["main_thread_queued_share"] == pytest.approx(0.25)
    write(tmp_path, {own + "schedstat": "9 9350000000 9\n"})
    assert counters.take()["main_thread_queued_share"] == 1.0


def test_pressure_is_left_out_where_the_kernel_does_not_count_it(tmp_path: Path) -> None:
    files = {"proc/stat": "cpu  0 0 0 0 0 0 0 0 0 0\n", "proc/meminfo": ""}
    write(tmp_path, files)
    assert "cpu_pressure_share" not in MachineCounters(tmp_path, Clock()).take()
    pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 total=0\n"
    write(tmp_path, {"proc/pressure/cpu": pressure.format(1_000_000)})
    counters = MachineCounters(tmp_path, Clock())
    write(tmp_path, {"proc/pressure/cpu": pressure.format(1_400_000)})
    assert counters.take()["cpu_pressure_share"] == pytest.approx(0.4)


def test_ports_errors_and_waits_are_sampled_by_one_rank_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1/"
    files = {
        port + "counters/port_rcv_data": "7\n",
        port + "counters/port_xmit_data": "8\n",
        port + "counters/symbol_error": "3\n",
        port + "counters/port_xmit_wait": "N/A\n",
        port + "hw_counters/rp_cnp_handled": "5\n",
        port + "hw_counters/lifespan": "12\n",
    }
    write(tmp_path, files)
    counters = FabricCounters(tmp_path, Clock())
    (sample,) = [taken for taken in (counters.take() for _ in range(10)) if taken]
    assert sample["ib_ports"] == {
        "mlx5_0/1": {
            "port_rcv_data": 7,
            "port_xmit_data": 8,
            "symbol_error": 3,
            "rp_cnp_handled": 5,
        }
    }
    monkeypatch.setenv("LOCAL_RANK", "3")
    others = FabricCounters(tmp_path, Clock())
    assert all("ib_ports" not in others.take() for _ in range(10))
