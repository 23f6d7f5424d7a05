"""The function or module that is tuned, loaded from the user's own code, and what stands beside it.

Next to the function, or as its attributes, there may be

    stepscope_inputs(shape, dtype, device)   the arguments of one call: a tuple, or a dict of keywords
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
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.errors import UsageError

DECLARED = ("inputs", "shapes", "edges", "configs", "reference", "flops")
FORM = "write MODULE:FUNCTION, as in kernels.softmax:softmax, or FILE.py:FUNCTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
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
    """Of these, what has no default and is no setting."""
    unset: tuple[str, ...]
    """Settings without a default."""
    source: str | None
    """A digest of the file it stands in."""
    autotuned: tuple[Any, ...] = field(default=())
    """Kernels under @triton.autotune that it names."""


def load_target(name: str, reference: str | None = None, settings: tuple[str, ...] = ()) -> Target:
    """`settings` are names that configurations set, besides those that the module declares."""
    module, found = _look_up(name, "the function to tune")
    _refuse_kernels(found, name)
    call = found
    if inspect.isclass(found):
        call = _made(found, name)
    if not callable(call):
        raise UsageError(f"{name} is {type(call).__name__}, and cannot be called: {FORM}")
    declared = {
        key: value
        for key in DECLARED
        if (value := getattr(found, f"stepscope_{key}", getattr(module, f"stepscope_{key}", None))) is not None
    }
    parameters, required = _signature(call)
    set_names = {*settings, *_declared_names(declared.get("configs"))}
    told, told_name = declared.get("reference"), "stepscope_reference"
    if reference is not None:
        told, told_name = _look_up(reference, "the reference")[1], reference
        told = _made(told, reference) if inspect.isclass(told) else told
    if told is not None and not callable(told):
        raise UsageError(f"{told_name} is {type(told).__name__}, and cannot be called: a reference takes the same inputs")
    return Target(
        name=name,
        call=call,
        is_module=_is_module(call),
        reference=None if told is call else told,
        reference_name=told_name if told is not None else "itself, as it is",
        declared=declared,
        parameters=parameters,
        required=tuple(one for one in required if one not in set_names),
        unset=tuple(one for one in required if one in set_names),
        source=_digest(module),
        autotuned=_autotuned(call),
    )


def _declared_names(configs: object) -> set[str]:
    listed = configs if isinstance(configs, list | tuple) else [configs]
    return {name for one in listed if isinstance(one, dict) for name in one}


def _look_up(name: str, what: str) -> tuple[ModuleType, Any]:
    place, colon, path = name.rpartition(":")
    if not colon or not place or not path:
        raise UsageError(f"{name!r} does not say {what}: {FORM}")
    module = _import(place)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            near = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise UsageError(f"{place} has no {path!r}. It has {', '.join(near[:8]) or 'nothing that can be called'}")
        found = getattr(found, part)
    return module, found


def _import(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place)
        if not path.is_file():
            raise UsageError(f"there is no file {place}: {FORM}")
        name = path.stem
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Triton and torch.compile look a function's module up by its name.
        sys.modules[name] = module
        sys.path.insert(0, str(path.resolve().parent))
        spec.loader.exec_module(module)
    except ModuleNotFoundError as problem:
        where = f"looked in {here} and where Python looks"
        raise UsageError(f"cannot import {place}: {problem}; {where}. Go to its folder, or install what it needs") from None
    except UsageError:
        raise
    except Exception as problem:  # noqa: BLE001 - the user's module may raise anything while it is imported
        raise UsageError(f"cannot import {place}: it raised {type(problem).__name__}: {_line(problem)}") from None
    return module


def _refuse_kernels(found: Any, name: str) -> None:
    kind = type(found).__name__
    if type(found).__module__.startswith("triton.") and kind in ("JITFunction", "InterpretedFunction", "Autotuner", "Heuristics"):
        example = (
            "def softmax(x, BLOCK=1024, num_warps=4): ... kernel[grid](x, y, ..., BLOCK=BLOCK, num_warps=num_warps); return y"
        )
        raise UsageError(
            f"{name} is a bare Triton kernel ({kind}): its grid and its outputs are known to whoever launches it. "
            f"Give the function that launches it, with the settings as keywords: {example}"
        )


def _made(found: type, name: str) -> Any:
    """An instance of a class; modules are compared in eval mode, as dropout has no reference."""
    try:
        made = found()
    except TypeError as problem:
        raise UsageError(f"{name} is a class and cannot be made without arguments ({_line(problem)}): give an instance") from None
    return made


def _signature(call: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        told = inspect.signature(call.forward if _is_module(call) else call).parameters.values()
    except (TypeError, ValueError):
        return (), ()
    named = [one for one in told if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return tuple(one.name for one in named), tuple(one.name for one in named if one.default is one.empty)


def _is_module(call: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(call, torch.nn.Module)


def _autotuned(call: Any) -> tuple[Any, ...]:
    """Kernels under @triton.autotune among the names that the function uses."""
    code: Any = getattr(call, "__code__", None)
    scope = getattr(call, "__globals__", {})
    names = code.co_names if code is not None else ()
    found = [scope[name] for name in names if type(scope.get(name)).__name__ == "Autotuner"]
    return tuple(one for one in found if type(one).__module__.startswith("triton."))


def _digest(module: ModuleType) -> str | None:
    try:
        return hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:16]
    except (OSError, AttributeError):
        return None


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300]


Inputs = tuple[tuple[Any, ...], dict[str, Any]]
MakeInputs = Callable[..., Any]


def make_inputs(target: Target, torch: Any, shapes: tuple[tuple[int, ...], ...], dtype: str, device: str, seed: int) -> Inputs:
    """The arguments of one call: the user's own, or random tensors for each parameter that has no default."""
    torch.manual_seed(seed)
    kind = getattr(torch, dtype)
    make: MakeInputs | None = target.declared.get("inputs")
    if make is not None:
        extra = {"seed": seed} if "seed" in inspect.signature(make).parameters else {}
        made = make(shapes[0] if len(shapes) == 1 else shapes, kind, device, **extra)
        if isinstance(made, dict):
            return (), made
        return (tuple(made) if isinstance(made, list | tuple) else (made,)), {}
    names = _tensor_names(target, len(shapes))
    full = shapes * len(names) if len(shapes) == 1 else shapes
    made = [torch.randn(shape, device=device, dtype=torch.float32).to(kind) for shape in full]
    return tuple(made), {}


def _tensor_names(target: Target, num_shapes: int) -> tuple[str, ...]:
    names = target.required or target.parameters[:1]
    if not names:
        return ("input",) * num_shapes
    if num_shapes not in (1, len(names)):
        raise UsageError(
            f"{target.name} takes {len(names)} arguments without a default ({', '.join(names)}) and {num_shapes} shapes were "
            "given for a call: give one for each, with semicolons between, or stepscope_inputs beside the function"
        )
    return names
