"""What the host does: this process, its main thread, its children, the machine, the network.

Each class is asked once when it is made, so that the first sample has rates already, and where the
system has no such counter, making it fails. Paths begin at a root that tests replace.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.counters.rates import CounterRates
from stepscope.protocol.control_group import throttle_file
from stepscope.protocol.port_counters import FILES

TOP = Path("/")
SELDOM = 10
"""Samples between two looks at what is slow to ask or changes seldom."""
KINDS = ("counters", "hw_counters")
_AT_ONCE = 1 << 16
_IO_NAMES = {
    "disk_read_bytes_s": b"read_bytes:",
    "disk_write_bytes_s": b"write_bytes:",
    "read_bytes_s": b"rchar:",
}


class _Counters:
    """A root for files, rates, and room for notes."""

    def __init__(self, root: Path = TOP, clock: Callable[[], int] = clocks.perf_counter_ns) -> None:
        self.notes: list[str] = []
        self._root = root
        self._proc = f"{root}/proc/"
        self._rates = CounterRates(clock)
        self._num_taken = 0
        self._begin()
        self.take()

    def _begin(self) -> None:
        """What a counter finds out before it is first asked."""

    def take(self) -> dict[str, Any]:
        raise NotImplementedError


class ProcessCounters(_Counters):
    """Counters of this process, all its threads together. The one source that needs no /proc."""

    def take(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return self._rates.of(
            {
                "cpu_user_cores": used.ru_utime,
                "cpu_sys_cores": used.ru_stime,
                "voluntary_switches_per_s": used.ru_nvcsw,
                "involuntary_switches_per_s": used.ru_nivcsw,
                "minor_faults_per_s": used.ru_minflt,
                "major_faults_per_s": used.ru_majflt,
            }
        )


class ThreadCounters(_Counters):
    """The main thread, which trains: near one core, it is what the device waits for.

    Also what the process holds and reads.
    """

    def take(self) -> dict[str, Any]:
        folder = self._proc + "self"
        cpu_s, _, num_threads = read_stat(f"{folder}/task/{os.getpid()}/stat")
        sample: dict[str, Any] = {"num_threads": num_threads}
        counters = {"main_thread_cores": cpu_s, **read_io(folder)}
        resident, shared = map(int, read_all(folder + "/statm").split()[1:3])
        page = os.sysconf("SC_PAGE_SIZE")
        sample["rss_bytes"] = resident * page
        sample["private_bytes"] = max(resident - shared, 0) * page
        counters |= read_queued(f"{folder}/task/{os.getpid()}/schedstat")
        return sample | shares_at_most_one(self._rates.of(counters))


class MachineCounters(_Counters):
    """The machine as a whole: other jobs on it too."""

    def take(self) -> dict[str, Any]:
        ticks = [
            int(word) for word in read_all(self._proc + "stat").partition(b"\n")[0].split()[1:9]
        ]
        counters: dict[str, float] = {"all": sum(ticks), "idle": ticks[3], "wait": ticks[4]}
        per_s = self._rates.of(counters | read_pressure(self._proc + "pressure/cpu"))
        sample: dict[str, Any] = {"load_1min": os.getloadavg()[0]}
        pressure = {name: rate for name, rate in per_s.items() if name not in counters}
        sample |= shares_at_most_one(pressure)
        if per_s.get("all") and "idle" in per_s and "wait" in per_s:
            sample["machine_cpu_share"] = 1 - (per_s["idle"] + per_s["wait"]) / per_s["all"]
            sample["machine_iowait_share"] = per_s["wait"] / per_s["all"]
        available = read_all(self._proc + "meminfo").partition(b"\nMemAvailable:")[2]
        if available:
            sample["memory_available_bytes"] = int(available.split(None, 1)[0]) * 1024
        return sample


class NetworkCounters(_Counters):
    """All interfaces but the loopback, as this process's network namespace sees them."""

    def take(self) -> dict[str, Any]:
        received = sent = 0
        for line in read_all(self._proc + "self/net/dev").splitlines()[2:]:
            name, _, counts = line.partition(b":")
            if name.strip() != b"lo":
                words = counts.split()
                received += int(words[0])
                sent += int(words[8])
        return self._rates.of({"net_rx_bytes_s": received, "net_tx_bytes_s": sent})


class ThrottleCounters(_Counters):
    """How much of the time the control group held its processes back for having used up their
    quota."""

    def _begin(self) -> None:
        self._path = throttle_file(self._root)

    def take(self) -> dict[str, Any]:
        if self._path is None:
            return {}
        return self._rates.of({"cgroup_throttled_s_per_s": read_held_back(str(self._path))})


class FabricCounters(_Counters):
    """InfiniBand and RoCE, which the kernel's network counters do not see.

    The card is asked, so it is asked seldom; for errors and waits by one rank of a machine alone.
    """

    def _begin(self) -> None:
        self._ports = sorted(self._root.glob("sys/class/infiniband/*/ports/*/counters"))
        self._files: dict[str, dict[str, str]] = {}
        if os.environ.get("LOCAL_RANK", "0") == "0":
            for port in self._ports:
                files = [(name, port.parent / kind / name) for kind in KINDS for name in FILES]
                name = f"{port.parents[2].name}/{port.parent.name}"
                self._files[name] = {name: str(path) for name, path in files if path.is_file()}

    def take(self) -> dict[str, Any]:
        self._num_taken += 1
        if not self._ports or self._num_taken % SELDOM != 1:
            return {}
        received, sent = (
            sum(int((port / name).read_text(encoding="utf-8")) for port in self._ports)
            for name in ("port_rcv_data", "port_xmit_data")
        )
        # The counters are of words of four bytes.
        rates = self._rates.of({"ib_rx_bytes_s": received * 4, "ib_tx_bytes_s": sent * 4})
        return {**rates, "ib_ports": self._counts()} if self._files else rates

    def _counts(self) -> dict[str, dict[str, int]]:
        """Each port's counters as they stand; those that cannot be read are left out."""
        ports: dict[str, dict[str, int]] = {}
        for port, files in self._files.items():
            counts = ports[port] = {}
            for name, path in files.items():
                # A card that is being reset answers with an error.
                with suppress(OSError, ValueError):
                    counts[name] = int(read_all(path))
        return ports


def read_all(path: str) -> bytes:
    """A small file, as plainly as may be: once a second, what a path and a decoder take adds up."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(file, _AT_ONCE)]
        while parts[-1]:
            parts.append(os.read(file, _AT_ONCE))
    finally:
        os.close(file)
    return b"".join(parts)


def read_stat(path: str) -> tuple[float, int, int]:
    """CPU seconds, the parent's number and the number of threads, from a stat file of /proc."""
    # The name in parentheses may have anything in it, parentheses too.
    words = read_all(path).rpartition(b")")[2].split()
    return (
        (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"),
        int(words[1]),
        int(words[17]),
    )


def read_held_back(path: str) -> float:
    """Seconds that a control group held its processes back, from its cpu.stat."""
    words = read_all(path).split()
    counts = dict(zip(words[::2], words[1::2], strict=False))
    # Version 2 of control groups counts microseconds, version 1 nanoseconds.
    if b"throttled_usec" in counts:
        return int(counts[b"throttled_usec"]) / 1e6
    return int(counts.get(b"throttled_time", 0)) / 1e9


def read_queued(path: str) -> dict[str, float]:
    """Seconds that a thread was ready to run and had no core. Nothing where the kernel does not
    count them."""
    try:
        words = read_all(path).split()
    except OSError:
        return {}
    return {"main_thread_queued_share": int(words[1]) / 1e9} if len(words) > 1 else {}


def read_pressure(path: str) -> dict[str, float]:
    """Seconds in which any thread of the machine was ready to run and had no core. Nothing where
    the kernel does not count them."""
    try:
        total = read_all(path).partition(b"some ")[2].partition(b"total=")[2].split(None, 1)
    except OSError:
        return {}
    return {"cpu_pressure_share": int(total[0]) / 1e6} if total else {}


def shares_at_most_one(rates: dict[str, float]) -> dict[str, float]:
    """Two clocks that differ make a second of a second a little more."""
    return {
        name: min(rate, 1.0) if name.endswith("_share") else rate for name, rate in rates.items()
    }


def read_io(folder: str) -> dict[str, float]:
    """Bytes that a process read from and wrote to disks, and bytes it read from anywhere.

    Nothing where it may not be asked.
    """
    try:
        words = read_all(folder + "/io").split()
    except OSError:
        return {}
    counts = dict(zip(words[::2], words[1::2], strict=False))
    return {name: float(counts[key]) for name, key in _IO_NAMES.items() if key in counts}
