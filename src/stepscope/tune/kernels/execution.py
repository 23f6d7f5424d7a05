"""Settings applied.

Keywords of the function, a Triton kernel's own configurations, and execution options of any module.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from stepscope.core.experiments.trials import Value
from stepscope.errors import UsageError
from stepscope.tune.kernels.space import EXECUTION_OPTIONS, LAUNCH, MODES, Settings
from stepscope.tune.kernels.target import Target

RECOMPILES = 4096
"""torch.compile gives up after 8 shapes of one function and runs it eagerly from then on,
without a word."""

GRAPH_CALLS = 3

Kernel = Callable[..., Any]


def split(
    target: Target, settings: Settings
) -> tuple[dict[str, Value], dict[str, Value], dict[str, Value]]:
    """Keywords of the function, settings of its autotuned kernel, execution options."""
    keywords: dict[str, Value] = {}
    launch: dict[str, Value] = {}
    options: dict[str, Value] = {}
    autotuned = _autotune_names(target)
    for name, value in settings.items():
        if name in target.parameters and not target.is_module:
            keywords[name] = value
        elif name in autotuned:
            launch[name] = value
        elif name in EXECUTION_OPTIONS:
            options[name] = value
        else:
            has = list(autotuned)
            if not target.is_module:
                has[:0] = [other for other in target.parameters if other not in target.required]
            raise UsageError(
                f"{target.name} takes no setting {name!r}. It has "
                f"{', '.join(has) or 'none of its own'}; "
                f"around any function there are {', '.join(EXECUTION_OPTIONS)}"
            )
    return keywords, launch, options


def _autotune_names(target: Target) -> tuple[str, ...]:
    names = [
        name for kernel in target.autotuned for config in kernel.configs for name in config.kwargs
    ]
    return tuple(dict.fromkeys([*names, *LAUNCH])) if target.autotuned else ()


def autotune_configs(target: Target) -> tuple[Settings, ...]:
    """What @triton.autotune would have tried."""
    configs: list[Settings] = []
    for kernel in target.autotuned[:1]:
        for config in kernel.configs:
            settings: dict[str, Value] = {
                name: value for name, value in config.kwargs.items() if isinstance(value, Value)
            }
            settings |= {
                name: value
                for name in LAUNCH[:2]
                if (value := getattr(config, name, None)) is not None
            }
            configs.append(settings)
    return tuple(configs)


class Built(Struct, frozen=True, kw_only=True):
    """A callable, and the parameters that its gradients are of."""

    kernel: Kernel
    parameters: tuple[tuple[str, Any], ...]
    num_calls: int = 1
    """Calls until it runs as it will: a graph is recorded by the second call and replayed from the
    third on."""


class ExecutionSettings:
    """Builds callables for settings, and sets what is process-wide before each use."""

    def __init__(self, torch: Any, target: Target, kind: str) -> None:
        self._torch = torch
        self._target = target
        self._on_gpu = kind == "cuda"
        self._own = {id(kernel): list(kernel.configs) for kernel in target.autotuned}
        self._launched: Settings = {}
        self._caches: dict[tuple[int, str], dict[Any, Any]] = {
            (id(kernel), "[]"): kernel.cache for kernel in target.autotuned
        }
        backends = torch.backends
        self._usual = {
            "cudnn_benchmark": bool(backends.cudnn.benchmark),
            "tf32": allows_tf32(torch),
        }

    def build(self, settings: Settings, model: Any) -> Built:
        """A callable with these settings; `model` is the target in the case's precision."""
        keywords, _, options = split(self._target, settings)
        is_channels_last = _is_on(options.get("channels_last"))
        if is_channels_last and self._target.is_module:
            model = self._turned(model)
        parameters = tuple(model.named_parameters()) if self._target.is_module else ()
        kernel: Kernel = (
            self._compiled(model, options) if "mode" in options or "backend" in options else model
        )
        if not is_channels_last and not keywords and not self._has_graphs(options):
            return Built(kernel=kernel, parameters=parameters)

        def call(*inputs: Any, **named: Any) -> Any:
            if self._has_graphs(options):
                # A graph's outputs are overwritten by its next run, which has to be announced.
                self._torch.compiler.cudagraph_mark_step_begin()
            if is_channels_last:
                # Inputs come as the job has them; turning them is part of this way's price.
                inputs, named = (
                    tuple(map(self._ordered, inputs)),
                    {name: self._ordered(value) for name, value in named.items()},
                )
            return kernel(*inputs, **named, **keywords)

        return Built(
            kernel=call,
            parameters=parameters,
            num_calls=GRAPH_CALLS if self._has_graphs(options) else 1,
        )

    def enter(self, settings: Settings) -> None:
        """What must hold while this configuration runs."""
        _, launch, options = split(self._target, settings)
        self._launch_with(launch)
        torch = self._torch
        if not self._on_gpu:
            return
        torch.backends.cudnn.benchmark = _is_on(
            options.get("cudnn_benchmark", self._usual["cudnn_benchmark"])
        )
        tf32 = _is_on(options.get("tf32", self._usual["tf32"]))
        if tf32 != allows_tf32(torch):
            torch.backends.cuda.matmul.allow_tf32 = tf32
        tunable = getattr(torch.cuda, "tunable", None)
        if _is_on(options.get("tunable_op")) and tunable is None:
            raise UsageError("tunable_op: this torch has no torch.cuda.tunable")
        if tunable is not None and _is_on(options.get("tunable_op")) != tunable.is_enabled():
            tunable.enable(_is_on(options.get("tunable_op")))
            # What it finds is for this process; the winner is in our own cache.
            tunable.write_file_on_exit(False)

    def _has_graphs(self, options: Mapping[str, Value]) -> bool:
        return self._on_gpu and options.get("mode") in ("reduce-overhead", "max-autotune")

    def _compiled(self, kernel: Kernel, options: Mapping[str, Value]) -> Kernel:
        mode, backend = str(options.get("mode", "default")), options.get("backend")
        if mode == "eager" and backend is None:
            return kernel
        if mode not in MODES:
            raise UsageError(f"mode={mode} is none of {', '.join(MODES)}")
        dynamo: Any = importlib.import_module("torch._dynamo")
        for name in (
            "recompile_limit",
            "cache_size_limit",
            "accumulated_recompile_limit",
            "accumulated_cache_size_limit",
        ):
            if hasattr(dynamo.config, name):
                setattr(dynamo.config, name, RECOMPILES)
        compile_options: dict[str, Any] = {"dynamic": False}
        if backend is not None:
            compile_options["backend"] = str(backend)
        if mode not in ("default", "eager"):
            compile_options["mode"] = mode
        compiled: Kernel = self._torch.compile(kernel, **compile_options)
        return compiled

    def _turned(self, model: Any) -> Any:
        model = copy.deepcopy(model)
        for parameter in model.parameters():
            parameter.data = self._ordered(parameter.data)
        return model

    def _ordered(self, value: Any) -> Any:
        torch = self._torch
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if isinstance(value, torch.Tensor) and value.dim() in formats:
            return value.to(memory_format=formats[value.dim()])
        return value

    def _launch_with(self, launch: Mapping[str, Value]) -> None:
        """The autotuned kernel's only configuration; its own list where nothing is set."""
        if launch == self._launched:
            return
        self._launched = dict(launch)
        for kernel in self._target.autotuned:
            configs = self._own[id(kernel)]
            # What its own tuning found is kept for when it is its own again.
            kernel.cache = self._caches.setdefault((id(kernel), repr(sorted(launch.items()))), {})
            kernel.configs = [_triton_config(configs[0], launch)] if launch else list(configs)


def _triton_config(like: Any, launch: Mapping[str, Value]) -> Any:
    triton: Any = importlib.import_module("triton")
    options = {name: value for name, value in launch.items() if name in LAUNCH}
    kwargs = {
        **like.kwargs,
        **{name: value for name, value in launch.items() if name not in LAUNCH},
    }
    options.setdefault("num_warps", like.num_warps)
    options.setdefault("num_stages", like.num_stages)
    return triton.Config(kwargs, pre_hook=getattr(like, "pre_hook", None), **options)


def allows_tf32(torch: Any) -> bool:
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        # Set by the newer names of the same thing: torch then raises for the older ones.
        return str(getattr(torch.backends.cuda.matmul, "fp32_precision", "ieee")) == "tf32"


def _is_on(value: Value | None) -> bool:
    return value in (True, "on", 1)
