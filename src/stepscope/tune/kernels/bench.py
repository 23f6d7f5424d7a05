"""The bench: makes a case's inputs, checks a configuration against the reference, takes one sample
of its time.

It runs beside the user's code, usually in a process of its own. What the user's kernel raises
becomes an answer.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.calibrate.device import Device
from stepscope.errors import UsageError
from stepscope.tune.kernels.call import (
    CallResult,
    call_once,
    differentiable,
    fresh,
    gradients_of,
    leaves,
    named_tensors,
    poison,
)
from stepscope.tune.kernels.checking import (
    CheckResult,
    ReferenceOutputs,
    ReferenceResult,
    SampleResult,
    check_outputs,
)
from stepscope.tune.kernels.errors import compare, rounding, times, widest
from stepscope.tune.kernels.execution import Built, ExecutionSettings, split
from stepscope.tune.kernels.space import Settings
from stepscope.tune.kernels.target import Inputs, Target, make_inputs
from stepscope.tune.kernels.timer import KernelTimer
from stepscope.tune.shapes.kernel_tuning import Case, Error

SEED = 20_240_229
KEPT_BYTES = 4 << 30
"""Bytes of references' outputs; beyond, they are computed again for each configuration."""
UNKNOWN = 8.0
"""Roundings that a reference is taken to have where nothing more precise can be had to measure its
error with."""
MAX_WHY = 600


class KernelBench:
    """One target on one device."""

    def __init__(
        self, target: Target, device: Device, *, by: str, cold: bool, gradients: bool | None
    ) -> None:
        self.target = target
        self.device = device
        self._torch = device.torch
        self._gradients = gradients
        self._ways = ExecutionSettings(self._torch, target, device.kind)
        self._timer = KernelTimer(self._torch, device.kind, device.cache_bytes, by=by, cold=cold)
        self._kept: dict[Case, ReferenceOutputs] = {}
        self._ready: dict[str, Callable[[], object]] = {}
        self._ready_case: Case | None = None
        self._models: dict[tuple[int, str], Any] = {}

    def refer(self, case: Case) -> ReferenceResult:
        """The reference's own error there, and what a call must move."""
        try:
            reference = self._reference(case)
        except UsageError:
            raise
        except Exception as problem:  # noqa: BLE001 - the user's reference may raise anything
            self._clear()
            return ReferenceResult(problem=_words(problem))
        torch = self._torch
        pairs = [
            (reference.same.outputs, reference.truth.outputs),
            (reference.same.gradients, reference.truth.gradients),
        ]
        checks = [
            compare(torch, name, tensor, tensor, truth_tensors[name])
            for tensors, truth_tensors in pairs
            for name, tensor in tensors.items()
        ]
        errors = [check.error for check in checks if check.error is not None]
        bytes_moved, flops = self._work(case, reference)
        truth = _precision(reference.truth)
        least = rounding(torch, case.dtype)
        if truth == case.dtype:
            least = times(least, UNKNOWN)
        return ReferenceResult(
            problem=None,
            error=widest([*errors, least]),
            truth=truth,
            is_differentiable=reference.same.is_differentiable,
            bytes_moved=bytes_moved,
            flops=flops,
        )

    def check(self, settings: Settings, case: Case, allowed: Error) -> CheckResult:
        """Whether what it computes is what the reference computes."""
        reference = self._reference(case)
        try:
            built = self._built(settings, case.dtype)
            self._ways.enter(settings)
            called = self._called(built, settings, case, reference)
        except UsageError:
            raise
        except Exception as problem:  # noqa: BLE001 - the user's kernel may raise anything
            return CheckResult(why=_words(problem), is_broken=self._is_broken())
        if self._gradients and not called.is_differentiable:
            return CheckResult(why="its outputs carry no gradient, and --gradients asks for them")
        before = named_tensors(self._torch, self._inputs(case), self.target.parameters)
        return check_outputs(self._torch, reference, called, before, allowed)

    def sample(self, settings: Settings | None, case: Case, inner: int) -> SampleResult:
        """One sample; None is the reference.

        The first of a configuration in a case also warms it up.
        """
        key = "reference" if settings is None else repr(sorted(settings.items()))
        if case != self._ready_case:
            self._ready, self._ready_case = {}, case
            self._kept.clear()
            self._clear()
        try:
            self._ways.enter(settings or {})
            if key not in self._ready:
                self._ready[key] = self._ready_call(settings, case)
                for _ in range(3):
                    self._ready[key]()
                self._wait()
            return SampleResult(ns=self._timer.sample(self._ready[key], inner))
        except UsageError:
            raise
        except Exception as problem:  # noqa: BLE001 - the user's kernel may raise anything
            return SampleResult(ns=None, why=_words(problem), is_broken=self._is_broken())

    def warm_up(self) -> None:
        """A GPU that idles starts at a fraction of its clocks."""
        self.device.warm_up()

    def _ready_call(self, settings: Settings | None, case: Case) -> Callable[[], object]:
        torch = self._torch
        if settings is None:
            built = self._reference_built(case.dtype)
        else:
            built = self._built(settings, case.dtype)
        inputs = fresh(torch, self._inputs(case), with_gradients=bool(self._gradients))
        args, named = inputs
        if not self._gradients:

            def forward() -> object:
                with torch.no_grad():
                    return built.kernel(*args, **named)

            return forward
        tensors = named_tensors(torch, inputs, self.target.parameters)
        wanted = [
            tensor for _, tensor in (*tensors.items(), *built.parameters) if tensor.requires_grad
        ]
        outputs = differentiable(leaves(torch, built.kernel(*args, **named)))
        directions = [torch.randn_like(output) for output in outputs]
        # Frees the graph that the outputs hold.
        del outputs

        def forward_and_backward() -> object:
            outputs = differentiable(leaves(torch, built.kernel(*args, **named)))
            return torch.autograd.grad(outputs, wanted, directions, allow_unused=True)

        return forward_and_backward

    def _called(
        self, built: Built, settings: Settings, case: Case, reference: ReferenceOutputs
    ) -> CallResult:
        """The last of as many calls as it takes; each has inputs of its own."""
        want = self._gradients is not False
        for _ in range(built.num_calls):
            inputs = fresh(self._torch, self._inputs(case), with_gradients=want)
            with self._filled(settings, reference):
                called = call_once(
                    self._torch, built, inputs, self.target.parameters, gradients=want, seed=SEED
                )
                self._wait()
        return called

    def _reference(self, case: Case) -> ReferenceOutputs:
        outputs = self._kept.get(case)
        if outputs is not None:
            return outputs
        built = self._reference_built(case.dtype)
        same = self._call_reference(built, case, None)
        truth = same
        for dtype in ("float64", "float32"):
            if dtype == case.dtype:
                break
            try:
                truth = self._call_reference(
                    self._reference_built(dtype, case.dtype), case, getattr(self._torch, dtype)
                )
                self._wait()
                break
            except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError):
                self._clear()
        if set(truth.outputs) != set(same.outputs) or set(truth.gradients) != set(same.gradients):
            truth = same
        tensors = [
            *same.outputs.values(),
            *same.gradients.values(),
            *truth.outputs.values(),
            *truth.gradients.values(),
        ]
        outputs = ReferenceOutputs(
            same=same, truth=truth, size_bytes=sum(tensor.nbytes for tensor in tensors)
        )
        while (
            self._kept
            and sum(tensor.size_bytes for tensor in self._kept.values()) + outputs.size_bytes
            > KEPT_BYTES
        ):
            self._kept.pop(next(iter(self._kept)))
        self._kept[case] = outputs
        return outputs

    def _call_reference(self, built: Built, case: Case, dtype: Any) -> CallResult:
        self._ways.enter({})
        want = self._gradients is not False
        inputs = fresh(self._torch, self._inputs(case), dtype=dtype, with_gradients=want)
        return call_once(
            self._torch, built, inputs, self.target.parameters, gradients=want, seed=SEED
        )

    def _reference_built(self, dtype: str, rounded_to: str | None = None) -> Built:
        call = self.target.reference if self.target.reference is not None else self.target.call
        model = self._model(call, dtype, rounded_to)
        is_module = isinstance(model, self._torch.nn.Module)
        return Built(kernel=model, parameters=tuple(model.named_parameters()) if is_module else ())

    def _built(self, settings: Settings, dtype: str) -> Built:
        return self._ways.build(settings, self._model(self.target.call, dtype))

    def _model(self, call: Any, dtype: str, rounded_to: str | None = None) -> Any:
        """A module in this precision on the device, its weights first rounded as the case has them.

        A function as it is.
        """
        torch = self._torch
        if not isinstance(call, torch.nn.Module):
            return call
        key = (id(call), f"{rounded_to or dtype} {dtype}")
        if key not in self._models:
            model = copy.deepcopy(call).to(
                self.device.torch_device, getattr(torch, rounded_to or dtype)
            )
            self._models[key] = model.to(getattr(torch, dtype)).eval()
        return self._models[key]

    def _inputs(self, case: Case) -> Inputs:
        return make_inputs(
            self.target, self._torch, case.shapes, case.dtype, self.device.torch_device, SEED
        )

    def _work(self, case: Case, reference: ReferenceOutputs) -> tuple[int, float | None]:
        """Bytes that must move and FLOPs of products, of the call as it is timed."""
        torch = self._torch
        inputs = self._inputs(case)
        named = named_tensors(torch, inputs, self.target.parameters)
        parameters = [tensor for _, tensor in self._reference_built(case.dtype).parameters]
        into = sum(_moved(tensor) for tensor in [*named.values(), *parameters])
        out = sum(_moved(tensor) for tensor in reference.same.outputs.values())
        if self._gradients:
            out += into + out + sum(_moved(tensor) for tensor in reference.same.gradients.values())
        flops = self._flops(case, inputs)
        return into + out, flops

    def _flops(self, case: Case, inputs: Inputs) -> float | None:
        declared = self.target.declared.get("flops")
        if declared is not None:
            return float(declared(*inputs[0], **inputs[1])) * (3 if self._gradients else 1)
        if self.target.reference is None and not self.target.is_module:
            return None
        with contextlib.suppress(Exception):
            from torch.utils.flop_counter import FlopCounterMode

            built = self._reference_built(case.dtype)
            copies = fresh(self._torch, inputs, with_gradients=bool(self._gradients))
            with FlopCounterMode(display=False) as counter:
                ends = [
                    tensor
                    for tensor in leaves(self._torch, built.kernel(*copies[0], **copies[1]))
                    if tensor.requires_grad
                ]
                if self._gradients and ends:
                    gradients_of(
                        self._torch,
                        ends,
                        named_tensors(self._torch, copies, self.target.parameters),
                        built,
                        SEED,
                    )
            return float(counter.get_total_flops())
        return None

    @contextlib.contextmanager
    def _filled(self, settings: Settings, reference: ReferenceOutputs) -> Iterator[None]:
        """Memory that nobody wrote to holds NaNs while the block runs."""
        torch = self._torch
        poison(torch, reference.same.outputs | reference.same.gradients)
        _, _, options = split(self.target, settings)
        if self.target.is_module or options:
            yield
            return
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        is_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        bindings = vars(torch._C)  # noqa: SLF001
        switch = bindings.get("_set_deterministic_algorithms", torch.use_deterministic_algorithms)
        # Torch's own name for it imports all of its compiler, which takes seconds; with it on,
        # torch.empty fills what it gives.
        switch(True, warn_only=True)
        try:
            yield
        finally:
            switch(is_deterministic, warn_only=is_warn_only)

    def _is_broken(self) -> bool:
        """Whether the device no longer answers after an error.

        An access to memory that is not there ends it for the process.
        """
        self._clear()
        if self.device.kind != "cuda":
            return False
        try:
            self._torch.zeros(1, device=self.device.torch_device).add_(1)
            self._torch.cuda.synchronize()
        except Exception:  # noqa: BLE001 - any error here says the same
            return True
        return False

    def _clear(self) -> None:
        """A device's memory is short; the host's is left to Python."""
        if self.device.kind == "cuda":
            gc.collect()
            with contextlib.suppress(Exception):
                self._torch.cuda.empty_cache()

    def _wait(self) -> None:
        if self.device.kind == "cuda":
            self._torch.cuda.synchronize()


def _moved(tensor: Any) -> int:
    """An expanded tensor is read once."""
    return min(int(tensor.nbytes), int(tensor.untyped_storage().nbytes()))


def _precision(called: CallResult) -> str:
    floats = [output for output in called.outputs.values() if output.is_floating_point()]
    return str(floats[0].dtype).removeprefix("torch.") if floats else "exact"


def _words(problem: BaseException) -> str:
    text = str(problem).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    summary = " ".join(lines[:2] if len(lines) < 4 else [lines[0], lines[-1]])
    return f"{type(problem).__name__}: {summary}"[:MAX_WHY]
