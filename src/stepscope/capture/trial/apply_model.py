"""Settings of models: how they are compiled, their layout and precision, and DDP's options.

A model is met when DDP wraps it or an optimizer is given its parameters; models are the modules
that no other one holds.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from stepscope.capture.describe.knobs import find_live_objects
from stepscope.capture.describe.model import roots
from stepscope.capture.guard import Guard
from stepscope.capture.trial.applied import Applied, words_of
from stepscope.capture.trial.patches import replace
from stepscope.protocol.settings import OF_DDP

OWN_BUCKET_MB = 25
"""DDP's own, where the job gives none."""
MODEL_NAMES = ("compile_mode", "compile_dynamic", "channels_last", "amp")


def apply_to_models(guard: Guard, torch: Any, applied: Applied) -> None:
    if applied.wanted(*OF_DDP, "channels_last"):
        _apply_to_ddp(guard, torch, applied)
    if applied.wanted(*MODEL_NAMES):
        models = Models(torch, applied)
        if applied.wanted("compile_mode", "compile_dynamic"):
            replace(guard, torch, "compile", models.around_compile)
        if applied.wanted("amp").get("amp") == "off":
            replace(guard, torch.amp.autocast_mode.autocast, "__init__", _never_casting(applied))
        replace(guard, torch.optim.Optimizer, "__init__", models.around_optimizer)


def _apply_to_ddp(guard: Guard, torch: Any, applied: Applied) -> None:
    wanted = applied.wanted(*OF_DDP)
    for name in wanted:
        applied.failed(name, "no model was wrapped in DistributedDataParallel")
    kind = torch.nn.parallel.DistributedDataParallel

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if applied.wanted("channels_last"):
                # Before the buckets take their gradients' layout from the parameters.
                set_channels_last(torch, bound.arguments["module"], applied)
            job_values, changed = {}, {}
            for name, value in wanted.items():
                if name == "bucket_cap_mb" and applied.is_enough(
                    name, bound.arguments.get(name) or OWN_BUCKET_MB
                ):
                    continue
                # Later releases have another name for it, which keeps the broadcast at the start.
                new_name = "forward_sync_buffers" if name == "broadcast_buffers" else name
                argument = new_name if new_name in signature.parameters else name
                job_values[name], changed[argument] = bound.arguments.get(argument), value
            if "forward_sync_buffers" in changed:
                changed["broadcast_buffers"] = None
            bound.arguments.update(changed)
            try:
                original(*bound.args, **bound.kwargs)
            except Exception as problem:  # noqa: BLE001 - the job is told by its own call, not by ours
                for name in wanted:
                    applied.failed(name, words_of(problem))
                original(*args, **kwargs)
                return
            for name, job_value in job_values.items():
                applied.took(name, before=job_value)

        return wrapper

    replace(guard, kind, "__init__", make)


def _never_casting(applied: Applied) -> Any:
    applied.holds("amp", before="off")

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if bound.arguments.get("enabled"):
                applied.took("amp", before="on")
            bound.arguments["enabled"] = False
            original(*bound.args, **bound.kwargs)

        return wrapper

    return make


class Models:
    """The job's models, each set once."""

    def __init__(self, torch: Any, applied: Applied) -> None:
        self._torch, self._applied = torch, applied
        self._mode, self._dynamic = (
            applied.settings.get("compile_mode"),
            applied.settings.get("compile_dynamic"),
        )
        self._is_compiled_by_job = False
        self._is_ours = False
        self._compiled: list[Any] = []
        """Models that we compiled in place."""
        self._seen: set[int] = set()
        for name in applied.wanted(*MODEL_NAMES):
            applied.failed(name, "no optimizer was given a model's parameters")
        applied.failed("compile_dynamic", "nothing is compiled")
        if self._mode == "off":
            applied.holds("compile_mode", before="off")
        if applied.settings.get("channels_last") is False:
            applied.failed("channels_last", "a job's own layout is left as it is")

    def around_compile(self, original: Any) -> Any:
        """torch.compile with our mode; where the job compiles, it alone says what."""

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._is_ours:
                self._leave_to_job()
            job_mode = kwargs.get("mode") or "default"
            if self._mode == "off":
                kwargs["disable"] = True
                if not self._is_ours:
                    self._applied.took("compile_mode", before=job_mode)
            elif self._mode is not None:
                kwargs["mode"] = self._mode
                kwargs.pop("options", None)
                self._applied.took("compile_mode", before="off" if self._is_ours else job_mode)
            if self._dynamic is not None:
                before, kwargs["dynamic"] = kwargs.get("dynamic"), self._dynamic
                self._applied.took("compile_dynamic", before=before)
            return original(*args, **kwargs)

        return wrapper

    def _leave_to_job(self) -> None:
        self._is_compiled_by_job = True
        while self._compiled:
            self._compiled.pop()._compiled_call_impl = None  # noqa: SLF001 - we set it

    def around_optimizer(self, original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            try:
                self.met(optimizer)
            except Exception as problem:  # noqa: BLE001 - a part of the boundary: the model stays as it was
                for name in self._applied.wanted(*MODEL_NAMES):
                    self._applied.failed(name, words_of(problem))

        return wrapper

    def met(self, optimizer: Any) -> None:
        """An optimizer was made: the models that hold its parameters are set."""
        params = {id(param) for group in optimizer.param_groups for param in group["params"]}
        for root in roots(find_live_objects(self._torch).modules):
            if id(root) not in self._seen and any(
                id(param) in params for param in root.parameters()
            ):
                for model in self._called(root):
                    self._seen.add(id(model))
                    self._set(model)

    def _called(self, root: Any) -> list[Any]:
        """What the loop calls: of a LightningModule, which is no more than a holder, its models."""
        if not callable(getattr(type(root), "training_step", None)):
            return [root]
        self._seen.add(id(root))
        return [child for child in root.children() if next(child.parameters(), None) is not None]

    def _set(self, model: Any) -> None:
        if self._applied.settings.get("channels_last"):
            set_channels_last(self._torch, model, self._applied)
        if self._mode not in (None, "off") and not self._is_compiled_by_job:
            self._compile(model)
        if self._applied.settings.get("amp") == "bf16":
            # Counted when it is called: a loop may call the model's parts and never itself.
            self._applied.failed("amp", "the model was never called as a whole")
            cast(self._torch, model, lambda: self._applied.took("amp", before="off"))

    def _compile(self, model: Any) -> None:
        # What cannot be compiled runs as it did; whether anything was is looked at after the first
        # step.
        importlib.import_module("torch._dynamo").config.suppress_errors = True
        if isinstance(model, self._torch.nn.parallel.DistributedDataParallel):
            # Inside DDP's forward the compiler still cuts its graph where DDP's buckets end.
            model = model.module
        call_impl = model._call_impl  # noqa: SLF001

        def call(*args: Any, **kwargs: Any) -> Any:
            # One of the compiler's own modules is compiled too when it is called from here.
            return call_impl(*args, **kwargs)

        self._is_ours = True
        try:
            model._compiled_call_impl = self._torch.compile(call)  # noqa: SLF001
        finally:
            self._is_ours = False
        self._compiled.append(model)


def check_compiled(applied: Applied) -> None:
    """Check after the first step whether the compiler has made anything of what it was given."""
    if applied.settings.get("compile_mode", "off") == "off" or not applied.counts["compile_mode"]:
        return
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None) or {}
    frames = counters.get("frames", {})
    if not frames.get("ok", 0):
        applied.lost(
            "compile_mode",
            f"nothing was compiled: of {frames.get('total', 0)} functions tried none could be",
        )


def set_channels_last(torch: Any, model: Any, applied: Applied) -> None:
    """channels_last, where there is a convolution to gain by it.

    The parameters stay the same objects.
    """
    if any(isinstance(module, torch.nn.Conv2d) for module in model.modules()):
        is_so = all(
            module.weight.is_contiguous(memory_format=torch.channels_last)
            for module in model.modules()
            if isinstance(module, torch.nn.Conv2d)
        )
        model.to(memory_format=torch.channels_last)
        applied.took("channels_last", before=is_so)
    else:
        applied.failed("channels_last", "no model has 2D convolutions")


def cast(torch: Any, model: Any, called: Callable[[], None]) -> None:
    """Autocast around the model's call; what comes out is float32, as the loss outside expects it.
    Its first call is reported.

    Set where the compiled call stands, which copies of the model leave out: they run as they were.
    """
    inner = model._compiled_call_impl or model._call_impl  # noqa: SLF001
    device = next(model.parameters()).device.type
    untold = [called]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        while untold:
            untold.pop()()
        with torch.autocast(device if device != "meta" else "cuda", dtype=torch.bfloat16):
            out = inner(*args, **kwargs)
        return widened(torch, out)

    model._compiled_call_impl = wrapper  # noqa: SLF001


def widened(torch: Any, out: Any) -> Any:
    """bfloat16 tensors as float32, also inside what holds them."""
    if isinstance(out, torch.Tensor):
        return out.float() if out.dtype is torch.bfloat16 else out
    if type(out) in (tuple, list):
        return type(out)(widened(torch, item) for item in out)
    if isinstance(out, dict):
        for name in list(out):
            out[name] = widened(torch, out[name])
    return out
