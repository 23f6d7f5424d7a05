"""Stand-ins for what this machine has not: a clock that ticks by itself, the kernel's files,
NVIDIA's library."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture.recording.device_clock import DeviceClock

S = 1_000_000_000


class Clock:
    """Each look is a second after the one before."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += S
        return self.now


class MarksOnly(DeviceClock):
    """A device that is done with everything at once, and of which nothing is measured."""

    def __init__(self) -> None:
        super().__init__(None)
        self.marked: list[int] = []
        self.settled = 10**9

    def is_capturing(self) -> bool:
        return False

    def begin_backward(self) -> None:
        pass

    def mark(self, step: int) -> list[tuple[int, int, int | None]]:
        self.marked.append(step)
        return []


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


class FakeNvml:
    """Stands for libnvidia-ml: fills in what it is handed by reference, and returns a code."""

    def __init__(self, **refused: int) -> None:
        self.calls: Counter[str] = Counter()
        self.addresses: list[bytes] = []
        self.refused = refused
        self.energy_mj = self.nvlink_kib = 0
        self.known = b"GPU-1234"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "nvmlDeviceGetCurrPcieLinkGeneration":
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls[name] += 1
            return self.refused.get(name) or self.fill(name, args)

        return call

    def fill(self, name: str, args: tuple[Any, ...]) -> int:
        plain: dict[str, Callable[[], int]] = {
            "nvmlDeviceGetClockInfo": lambda: {1: 1500, 2: 2600}[args[1].value],
            "nvmlDeviceGetMaxClockInfo": lambda: 1980,
            "nvmlDeviceGetPowerUsage": lambda: 650_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda: 700_000,
            "nvmlDeviceGetTemperature": lambda: 61,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda: 0x24,
            "nvmlDeviceGetPcieThroughput": lambda: {0: 11, 1: 22}[args[1].value],
            "nvmlDeviceGetCurrPcieLinkWidth": lambda: 16,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: self.energy_mj,
        }
        if name in plain:
            args[-1]._obj.value = plain[name]()
        elif name == "nvmlDeviceGetUtilizationRates":
            args[-1]._obj.gpu, args[-1]._obj.memory = 97, 40
        elif name == "nvmlDeviceGetMemoryInfo":
            args[-1]._obj.used, args[-1]._obj.total = 5, 9
        elif name == "nvmlDeviceGetFieldValues":
            for field in args[-1]:
                field.value = self.nvlink_kib
        elif name.startswith("nvmlDeviceGetHandleBy"):
            self.addresses.append(args[0] if isinstance(args[0], bytes) else args[0].value)
            args[-1]._obj.value = 77
            return 0 if self.addresses[-1] == self.known else 6
        return 0
