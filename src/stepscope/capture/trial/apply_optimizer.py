"""How optimizers step: fused, or a kernel per operation, or a loop."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.capture.guard import Guard
from stepscope.capture.trial.applied import Applied, words_of
from stepscope.capture.trial.patches import replace

NAMES = {"fused_optimizer": "fused", "foreach_optimizer": "foreach"}
OptimizerOptions = WeakKeyDictionary[Any, dict[str, Any]]
"""What was applied on top of each optimizer."""


def apply_to_optimizers(guard: Guard, torch: Any, applied: Applied) -> None:
    optimizers = _Optimizers(applied)
    wanted = optimizers.wanted
    if not wanted:
        return
    load = _around_load(optimizers.applied_options)
    replace(guard, torch.optim.Optimizer, "load_state_dict", load)
    for name, _ in wanted.values():
        applied.failed(name, "no optimizer was made that can be set so")
    for kind in {kind for kind in vars(torch.optim).values() if isinstance(kind, type)}:
        if issubclass(kind, torch.optim.Optimizer) and "__init__" in kind.__dict__:
            signature = inspect.signature(kind.__dict__["__init__"])
            if set(wanted) & set(signature.parameters):
                replace(guard, kind, "__init__", functools.partial(optimizers.around, signature))


def _around_load(applied_options: OptimizerOptions) -> Any:
    """A job that goes on from a checkpoint: what is loaded says how the optimizer stepped then."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(optimizer: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            options = applied_options.get(optimizer)
            if (
                options
                and isinstance(state_dict, dict)
                and isinstance(state_dict.get("param_groups"), list)
            ):
                # Before it is loaded: where a state's tensors belong hangs on it.
                groups = [
                    {**group, **options} if isinstance(group, dict) else group
                    for group in state_dict["param_groups"]
                ]
                state_dict = {**state_dict, "param_groups": groups}
            return original(optimizer, state_dict, *args, **kwargs)

        return wrapper

    return make


class _Optimizers:
    def __init__(self, applied: Applied) -> None:
        self.wanted = {NAMES[name]: (name, value) for name, value in applied.wanted(*NAMES).items()}
        self.applied_options: OptimizerOptions = WeakKeyDictionary()
        self._applied = applied
        self._making: list[Any] = []
        """Optimizers whose __init__ runs just now: one class's calls another's."""

    def around(self, signature: inspect.Signature, original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            if any(optimizer is args[0] for optimizer in self._making):
                original(*args, **kwargs)
                return
            self._making.append(args[0])
            try:
                self._init(original, signature, args, kwargs)
            finally:
                self._making.pop()

        return wrapper

    def _init(
        self, original: Any, signature: inspect.Signature, args: Any, kwargs: dict[str, Any]
    ) -> None:
        wanted, applied = self.wanted, self._applied
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # Parameters often come as a generator, which can be asked once; it is asked for the job's
        # own try too.
        bound.arguments["params"] = kept_params(bound.arguments["params"])
        has = [name for name in ("fused", "foreach") if name in signature.parameters]
        job_options = {name: bound.arguments.get(name) for name in ("fused", "foreach")}
        usable = {name: value for name, (_, value) in wanted.items() if name in has}
        if usable.get("fused") and not can_be_fused(bound.arguments["params"]):
            # Found out here: the optimizer itself may say so only when it steps.
            del usable["fused"]
            why = "a parameter is of a kind or on a device that has no fused kernels"
            applied.failed(wanted["fused"][0], why)
        if usable:
            bound.arguments.update(usable)
            for name, other in (("fused", "foreach"), ("foreach", "fused")):
                # Not both at once.
                if usable.get(name) and other not in usable and job_options[other]:
                    bound.arguments[other] = False
            try:
                original(*bound.args, **bound.kwargs)
            except Exception as problem:  # noqa: BLE001 - the job is told by its own call, not by ours
                for name in usable:
                    applied.failed(wanted[name][0], words_of(problem))
            else:
                for name in usable:
                    applied.took(wanted[name][0], before=job_options[name])
                self.applied_options[args[0]] = {name: bound.arguments[name] for name in has}
                return
        bound.arguments.update({name: job_options[name] for name in has})
        original(*bound.args, **bound.kwargs)


def can_be_fused(params: Any) -> bool:
    """Whether every parameter is a number with a point, on a device with fused kernels."""
    supported_devices = getattr(
        sys.modules.get("torch.utils._foreach_utils"), "_get_fused_kernels_supported_devices", None
    )
    devices = supported_devices() if callable(supported_devices) else ["cuda"]
    tensors: list[Any] = []
    for entry in params if isinstance(params, list | tuple) else list(params):
        members = entry
        if isinstance(entry, dict):
            members = entry["params"]
        elif isinstance(entry, tuple):
            # A named parameter is a pair.
            members = entry[1]
        tensors += members if isinstance(members, list | tuple) else [members]
    # Named ones come with their names.
    bare = [tensor[1] if isinstance(tensor, tuple) else tensor for tensor in tensors]
    return all(tensor.is_floating_point() and tensor.device.type in devices for tensor in bare)


def kept_params(params: Any) -> Any:
    """The same parameters, in lists where they came as generators."""
    if hasattr(params, "__next__"):
        params = list(params)
    if isinstance(params, list):
        return [_kept_group(group) for group in params]
    return params


def _kept_group(group: Any) -> Any:
    if isinstance(group, dict) and hasattr(group.get("params"), "__next__"):
        return {**group, "params": list(group["params"])}
    return group
