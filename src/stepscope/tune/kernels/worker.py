"""The process that a kernel is tuned in: one request a line on stdin, one answer a line on what was
stdout.

A kernel may hang, die, or leave its device unusable. Then this process ends, and the sweep goes on
in another. What the user's code prints goes to stderr.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Mapping
from typing import IO, Any

import msgspec
from msgspec import Struct

from stepscope.core.calibrated import Machine
from stepscope.core.experiments.trials import Value
from stepscope.errors import UsageError
from stepscope.process.isolation import find_tool
from stepscope.tune.kernels.bench import KernelBench
from stepscope.tune.kernels.checking import CheckResult, ReferenceResult, SampleResult
from stepscope.tune.kernels.space import Settings, default_options
from stepscope.tune.shapes.kernel_tuning import Case, Error


def versions_of(torch: Any, machine: Machine, source: str | None) -> dict[str, str]:
    """Whatever may change which configuration wins.

    The source is a digest of the kernel's own file.
    """
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    triton: Any = sys.modules.get("triton")
    if triton is not None:
        versions["triton"] = str(getattr(triton, "__version__", "unknown"))
    if machine.runtime:
        versions["runtime"] = machine.runtime
    if machine.driver:
        versions["driver"] = machine.driver
    cudnn: Any = torch.backends.cudnn.version() if machine.kind == "cuda" else None
    if cudnn:
        versions["cudnn"] = str(cudnn)
    if source:
        versions["source"] = source
    return versions


def default_options_of(bench: KernelBench) -> tuple[Settings, ...]:
    torch, target = bench.device.torch, bench.target
    parts = list(target.call.modules()) if target.is_module else []
    convs = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d)
    return default_options(
        on_gpu=bench.device.kind == "cuda",
        has_compiler=_has_compiler(bench.device.kind),
        has_conv=any(isinstance(part, convs) for part in parts),
        has_products=any(isinstance(part, torch.nn.Linear) for part in parts),
    )


def _has_compiler(kind: str) -> bool:
    """Whether torch.compile can make code: Triton on a GPU, a C++ compiler on a CPU."""
    if kind == "cuda":
        try:
            importlib.import_module("triton")
        except ImportError:
            return False
        return True
    return any(find_tool(name) for name in ("g++", "clang++", "c++"))


class Opening(Struct, frozen=True, kw_only=True):
    """The first line: what the process is for."""

    target: str
    reference: str | None = None
    settings: tuple[str, ...] = ()
    """Names that a configuration sets, besides those that the target's module declares."""
    device: str | None = None
    """cuda or cpu; None: a GPU where there is one."""
    by: str | None = None
    cold: bool = False
    gradients: bool | None = None
    """None: checked where there are any, not timed."""


class Described(Struct, frozen=True, kw_only=True):
    """What the process found: the target and the device."""

    name: str
    is_module: bool
    reference: str
    has_reference: bool
    needs_settings: tuple[str, ...]
    """Settings without a default: a call needs a configuration to give them."""
    shapes: tuple[tuple[tuple[int, ...], ...], ...] | None
    edges: tuple[tuple[tuple[int, ...], ...], ...] | None
    configs: tuple[dict[str, Value], ...] | None
    autotuned: tuple[dict[str, Value], ...]
    default_options: tuple[dict[str, Value], ...]
    device: str
    kind: str
    cache_bytes: int
    spec: str | None
    """The datasheet's key."""
    versions: dict[str, str]
    is_interpreted: bool
    allows_tf32: bool


class Request(Struct, frozen=True, kw_only=True):
    """One thing to do."""

    do: str
    """describe, refer, check, sample or warm."""
    settings: Mapping[str, Value] | None = None
    case: Case | None = None
    allowed: Error | None = None
    inner: int = 1


class Answer(Struct, frozen=True, kw_only=True):
    usage: str | None = None
    """A user's mistake, in words: the sweep ends with it."""
    described: Described | None = None
    referred: ReferenceResult | None = None
    compared: CheckResult | None = None
    sampled: SampleResult | None = None


def open_bench(opening: Opening) -> KernelBench:
    """Loads the target and takes the device."""
    from stepscope.calibrate.device import find_device
    from stepscope.tune.kernels.target import load_target

    device = find_device(opening.device)
    target = load_target(opening.target, opening.reference, opening.settings)
    by = opening.by or ("call" if target.is_module else "device")
    return KernelBench(target, device, by=by, cold=opening.cold, gradients=opening.gradients)


def describe(bench: KernelBench) -> Described:
    from stepscope.calibrate.device import describe as describe_machine
    from stepscope.calibrate.device import spec_of
    from stepscope.tune.kernels.cases import declared_shapes
    from stepscope.tune.kernels.execution import allows_tf32, autotune_configs
    from stepscope.tune.kernels.space import declared_configs

    target, device = bench.target, bench.device
    machine = describe_machine(device)
    spec = spec_of(machine)
    declared = target.declared
    configs = shapes = edges = None
    if "configs" in declared:
        swept = declared_configs(declared["configs"], "stepscope_configs")
        configs = tuple(dict(config) for config in swept)
    if "shapes" in declared:
        shapes = declared_shapes(declared["shapes"], "stepscope_shapes")
    if declared.get("edges"):
        edges = declared_shapes(declared["edges"], "stepscope_edges")
    return Described(
        name=target.name,
        is_module=target.is_module,
        reference=target.reference_name,
        has_reference=target.reference is not None or target.is_module,
        needs_settings=target.unset,
        shapes=shapes,
        edges=edges,
        configs=configs,
        autotuned=tuple(dict(config) for config in autotune_configs(target)),
        default_options=tuple(dict(config) for config in default_options_of(bench)),
        device=machine.device,
        kind=device.kind,
        cache_bytes=device.cache_bytes,
        spec=None if spec is None else spec.key,
        versions=versions_of(device.torch, machine, target.source),
        is_interpreted=device.kind == "cpu"
        and "triton" in sys.modules
        and os.environ.get("TRITON_INTERPRET") == "1",
        allows_tf32=allows_tf32(device.torch),
    )


def answer(bench: KernelBench, request: Request) -> Answer:
    try:
        if request.do == "describe":
            return Answer(described=describe(bench))
        if request.do == "warm":
            bench.warm_up()
            return Answer()
        assert request.case is not None, "this request is about a case"
        if request.do == "refer":
            return Answer(referred=bench.refer(request.case))
        if request.do == "check":
            assert request.settings is not None and request.allowed is not None, (
                "a check needs settings and limits"
            )
            return Answer(compared=bench.check(request.settings, request.case, request.allowed))
        return Answer(sampled=bench.sample(request.settings, request.case, request.inner))
    except UsageError as problem:
        return Answer(usage=str(problem))


def serve(requests: IO[bytes], answers: IO[bytes]) -> int:
    """Serve until the requests end."""
    try:
        opening = msgspec.json.decode(requests.readline(), type=Opening)
        if opening.device == "cpu" or not _has_gpu():
            # Where there is no GPU, Triton's interpreter runs kernels on the host; it must be set
            # before they are defined.
            os.environ.setdefault("TRITON_INTERPRET", "1")
        bench = open_bench(opening)
    except UsageError as problem:
        _send(answers, Answer(usage=str(problem)))
        return 2
    _send(answers, Answer())
    for line in requests:
        _send(answers, answer(bench, msgspec.json.decode(line, type=Request)))
    return 0


def main() -> int:
    # The user's code may print: its words must not get among our answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return serve(sys.stdin.buffer, answers)


def _send(answers: IO[bytes], reply: Answer) -> None:
    answers.write(msgspec.json.encode(reply) + b"\n")
    answers.flush()


def _has_gpu() -> bool:
    import importlib

    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    sys.exit(main())
