"""Hardware: what a device can do, by datasheet or by measurement.

Times of operators that were measured on a device, and which of them are asked for.

An operator is told by its name and recorded inputs; a way says how it is run: its precision, and
what else is changed.

    fp32, tf32, bf16, fp16    every floating tensor in that type (tf32: fp32 that is rounded)
    +nhwc                     images with their channels innermost
    +benchmark                `torch.backends.cudnn.benchmark = True`
    +compiled                 a chain of operators by torch.compile
    +flash, +efficient, ...   attention by this back end alone
    pageable, pinned          a copy from such memory

Whoever prices a change asks for the time; what is asked for and was not measured is remembered, so
that one judging of a trace is the list of what is worth measuring on its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """One number and where it was read."""

    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One kind of device. Peaks are dense (no sparsity), in FLOP/s, by precision: fp64, fp32, tf32,
    fp16, bf16, fp8, fp4, int8.

    `fp32`, `fp64` are the plain vector units; `fp64_tensor` the tensor cores where they differ.
    A precision that the device has no unit for is absent.
    """

    key: str
    name: str
    vendor: str
    memory_bytes: Figure
    bandwidth_bytes_per_s: Figure
    peak_flops: Mapping[str, Figure]
    link_bytes_per_s: Mapping[str, Figure]
    """One direction, all links of that kind together: nvlink, xgmi, pcie."""
    num_sms: int | None = None

    def rates(self, source: str) -> DeviceRates:
        return DeviceRates(
            device=self.name,
            source=source,
            peak_flops={name: figure.value for name, figure in self.peak_flops.items()},
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s.value,
        )


class DeviceRates(Struct, frozen=True, kw_only=True):
    """What arithmetic and memory can give at most on one device."""

    device: str
    source: str
    """A datasheet, or a measurement and where it stands."""
    peak_flops: Mapping[str, float]
    """Peaks by precision, in FLOP/s."""
    bandwidth_bytes_per_s: float


Dims = tuple[int | tuple[int, ...], ...]
"""Sizes or strides of a tensor, or of each tensor of a list."""

SCHEMA = "stepscope.probe/1"


class OperatorCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's name and inputs, one entry per argument; "" and () for what is no tensor.

    A chain of operators has them as `parts`, in the order they run. In `concrete` of a part a
    tensor is `@2`, what part 2 made, or `#5`, the sixth that comes in from outside; in that of the
    chain stand the parts whose results go out.
    """

    op: str
    dims: tuple[Dims, ...]
    types: tuple[str, ...]
    """`fp32`, `bf16`, `int64`, ...; as recorded where it is no type of a tensor."""
    strides: tuple[Dims, ...]
    concrete: tuple[str, ...]
    parts: tuple[OperatorCall, ...] = ()


class ProbeCase(Struct, frozen=True, kw_only=True):
    """One case to time: an operator, and the way that it is run."""

    call: OperatorCall
    way: str


class MeasuredTime(Struct, frozen=True, kw_only=True):
    """One call's time on the device: the median of the samples, and where the middle four fifths
    of them lie."""

    ns: float
    low_ns: float
    high_ns: float
    samples: int
    host_ns: float | None = None
    """What the host needs to launch it."""


class ProbeRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A case with its time, or why it has none."""

    call: OperatorCall
    way: str
    time: MeasuredTime | None = None
    problem: str | None = None
    """The first line of the error."""

    @property
    def case(self) -> ProbeCase:
        return ProbeCase(call=self.call, way=self.way)


class ProbeFile(Struct, frozen=True, kw_only=True):
    """Times measured on one device with one torch, as they are kept."""

    device: str
    torch: str
    rows: tuple[ProbeRow, ...]
    driver: str | None = None
    date: str = ""
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedTimes:
    """Times of one kind of device, which a rule may ask for."""

    times: Mapping[ProbeCase, MeasuredTime] = field(default_factory=dict)
    problems: Mapping[ProbeCase, str] = field(default_factory=dict)
    """Problems of cases that cannot be run: what torch said."""
    asked: dict[ProbeCase, float] = field(default_factory=dict, compare=False)
    """Cases that were asked for, with the device time in nanoseconds that hangs on each."""

    def time(self, case: ProbeCase, weight_ns: float) -> MeasuredTime | None:
        """The case's time; None where it was not measured. `weight_ns` is how much of the trace's
        device time it is about."""
        self.asked[case] = max(self.asked.get(case, 0.0), weight_ns)
        return self.times.get(case)
