"""The function or module that is tuned, loaded from the user's own code, and what stands beside it.

Next to the function, or as its attributes, there may be

    stepscope_inputs(shape, dtype, device)   arguments of one call: a tuple, or a dict of keywords
    stepscope_shapes                         [(1024, 1024), (1000, 7)]: cases to time
    stepscope_edges                          further shapes to check
    stepscope_configs                        {"BLOCK": [64, 128]}, or a list of configurations
    stepscope_reference                      the function that is right
    stepscope_flops(*inputs)                 its arithmetic, where products cannot be counted

Loading it runs the user's module: that is the point of tuning it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct, field

from stepscope.errors import UsageError

DECLARED = ("inputs", "shapes", "edges", "configs", "reference", "flops")
FORM = "write MODULE:FUNCTION, as in kernels.softmax:softmax, or FILE.py:FUNCTION"


class Target(Struct, frozen=True, kw_only=True):
    """A callable, and what its module says about it."""

    name: str
    call: Any
    is_module: bool
    """An nn.Module; else a function."""
    reference: Any
    """None: the function itself, as it runs when nothing is set."""
    reference_name: str
    declared: dict[str, Any]
    parameters: tuple[str, ...]
    """What a call may name."""
    required: tuple[str, ...]
    """Parameters that have no default and are no setting."""
    unset: tuple[str, ...]
    """Settings without a default."""
    source: str | None
    """A digest of the file it stands in."""
    autotuned: tuple[Any, ...] = field(default=())
    """Kernels under @triton.autotune that it names."""


def load_target(name: str, reference: str | None = None, settings: tuple[str, ...] = ()) -> Target:
    """`settings` are names that configurations set, besides those that the module declares."""
    module, named = _look_up(name, "the function to tune")
    _refuse_kernels(named, name)
    call = named
    if inspect.isclass(named):
        call = _made(named, name)
    if not callable(call):
        raise UsageError(f"{name} is {type(call).__name__}, and cannot be called: {FORM}")
    declared = {}
    for key in DECLARED:
        name_declared = f"stepscope_{key}"
        value = getattr(named, name_declared, getattr(module, name_declared, None))
        if value is not None:
            declared[key] = value
    parameters, required = _signature(call)
    set_names = {*settings, *_declared_names(declared.get("configs"))}
    reference_call, reference_name = declared.get("reference"), "stepscope_reference"
    if reference is not None:
        reference_call, reference_name = _look_up(reference, "the reference")[1], reference
        if inspect.isclass(reference_call):
            reference_call = _made(reference_call, reference)
    if reference_call is not None and not callable(reference_call):
        raise UsageError(
            f"{reference_name} is {type(reference_call).__name__}, and cannot be called: a "
            "reference takes the same inputs"
        )
    return Target(
        name=name,
        call=call,
        is_module=_is_module(call),
        reference=None if reference_call is call else reference_call,
        reference_name=reference_name if reference_call is not None else "itself, as it is",
        declared=declared,
        parameters=parameters,
        required=tuple(parameter for parameter in required if parameter not in set_names),
        unset=tuple(parameter for parameter in required if parameter in set_names),
        source=_digest(module),
        autotuned=_autotuned(call),
    )


def _declared_names(configs: object) -> set[str]:
    listed = configs if isinstance(configs, list | tuple) else [configs]
    return {name for config in listed if isinstance(config, dict) for name in config}


def _look_up(name: str, role: str) -> tuple[ModuleType, Any]:
    module_name, colon, path = name.rpartition(":")
    if not colon or not module_name or not path:
        raise UsageError(f"{name!r} does not say {role}: {FORM}")
    module = _import(module_name)
    target: Any = module
    for part in path.split("."):
        if not hasattr(target, part):
            near = [
                key
                for key, value in vars(module).items()
                if callable(value) and not key.startswith("_")
            ]
            raise UsageError(
                f"{module_name} has no {path!r}. It has "
                f"{', '.join(near[:8]) or 'nothing that can be called'}"
            )
        target = getattr(target, part)
    return module, target


def _look_last(folder: str) -> None:
    """Modules are looked for there too, after the standard library and what is installed: a file
    that has the name of either is not for them."""
    if folder not in sys.path:
        sys.path.append(folder)


def _import_package(name: str, folder: str) -> None:
    """The module that was asked for by name is the folder's, where the folder has it."""
    spec = None if name in sys.modules else PathFinder.find_spec(name, [folder])
    if spec is not None and spec.loader is not None:
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise


def _import(module_name: str) -> ModuleType:
    folder = str(Path.cwd())
    _look_last(folder)
    try:
        if not module_name.endswith(".py"):
            _import_package(module_name.partition(".")[0], folder)
            return importlib.import_module(module_name)
        path = Path(module_name)
        if not path.is_file():
            raise UsageError(f"there is no file {module_name}: {FORM}")
        name = path.stem
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(
            path.resolve()
        ):
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Triton and torch.compile look a function's module up by its name.
        sys.modules[name] = module
        _look_last(str(path.resolve().parent))
        spec.loader.exec_module(module)
    except ModuleNotFoundError as problem:
        where = f"looked in {folder} and where Python looks"
        raise UsageError(
            f"cannot import {module_name}: {problem}; {where}. Go to its folder, or install what "
            "it needs"
        ) from None
    except UsageError:
        raise
    except Exception as problem:  # noqa: BLE001 - the user's module may raise anything while it is imported
        raise UsageError(
            f"cannot import {module_name}: it raised {type(problem).__name__}: {_line(problem)}"
        ) from None
    return module


def _refuse_kernels(value: Any, name: str) -> None:
    kind = type(value).__name__
    if type(value).__module__.startswith("triton.") and kind in (
        "JITFunction",
        "InterpretedFunction",
        "Autotuner",
        "Heuristics",
    ):
        example = (
            "def softmax(x, BLOCK=1024, num_warps=4): ... kernel[grid](x, y, ..., BLOCK=BLOCK, "
            "num_warps=num_warps); return y"
        )
        raise UsageError(
            f"{name} is a bare Triton kernel ({kind}): its grid and its outputs are known to "
            "whoever launches it. "
            f"Give the function that launches it, with the settings as keywords: {example}"
        )


def _made(cls: type, name: str) -> Any:
    """An instance of a class; modules are compared in eval mode, as dropout has no reference."""
    try:
        instance = cls()
    except TypeError as problem:
        raise UsageError(
            f"{name} is a class and cannot be made without arguments ({_line(problem)}): give an "
            "instance"
        ) from None
    return instance


def _signature(call: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        parameters = inspect.signature(
            call.forward if _is_module(call) else call
        ).parameters.values()
    except (TypeError, ValueError):
        return (), ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [parameter for parameter in parameters if parameter.kind in kinds]
    required = [parameter for parameter in named if parameter.default is parameter.empty]
    return tuple(parameter.name for parameter in named), tuple(
        parameter.name for parameter in required
    )


def _is_module(call: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(call, torch.nn.Module)


def _autotuned(call: Any) -> tuple[Any, ...]:
    """Kernels under @triton.autotune among the names that the function uses."""
    code: Any = getattr(call, "__code__", None)
    scope = getattr(call, "__globals__", {})
    names = code.co_names if code is not None else ()
    kernels = [scope[name] for name in names if type(scope.get(name)).__name__ == "Autotuner"]
    return tuple(kernel for kernel in kernels if type(kernel).__module__.startswith("triton."))


def _digest(module: ModuleType) -> str | None:
    try:
        return hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:16]
    except (OSError, AttributeError):
        return None


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300]


Inputs = tuple[tuple[Any, ...], dict[str, Any]]
MakeInputs = Callable[..., Any]


def make_inputs(
    target: Target,
    torch: Any,
    shapes: tuple[tuple[int, ...], ...],
    dtype: str,
    device: str,
    seed: int,
) -> Inputs:
    """The arguments of one call.

    The user's own, or random tensors for each parameter that has no default.
    """
    torch.manual_seed(seed)
    kind = getattr(torch, dtype)
    make: MakeInputs | None = target.declared.get("inputs")
    if make is not None:
        extra = {"seed": seed} if "seed" in inspect.signature(make).parameters else {}
        inputs = make(shapes[0] if len(shapes) == 1 else shapes, kind, device, **extra)
        if isinstance(inputs, dict):
            return (), inputs
        return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}
    names = _tensor_names(target, len(shapes))
    full = shapes * len(names) if len(shapes) == 1 else shapes
    inputs = [torch.randn(shape, device=device, dtype=torch.float32).to(kind) for shape in full]
    return tuple(inputs), {}


def _tensor_names(target: Target, num_shapes: int) -> tuple[str, ...]:
    names = target.required or target.parameters[:1]
    if not names:
        return ("input",) * num_shapes
    if num_shapes not in (1, len(names)):
        raise UsageError(
            f"{target.name} takes {len(names)} arguments without a default ({', '.join(names)}) "
            f"and {num_shapes} shapes were "
            "given for a call: give one for each, with semicolons between, or stepscope_inputs "
            "beside the function"
        )
    return names
