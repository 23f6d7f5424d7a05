"""A setting as words: to name it, and to put it in the code."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.experiments.trials import Value
from stepscope.protocol.settings import OF_DDP, OF_LOADERS
from stepscope.tune.knob_space import ENVIRONMENT, HOOK, Knob, Settings, Space, change_of, shown

CALLS: Mapping[str, str] = {
    "tf32": "torch.backends.cuda.matmul.allow_tf32 = {} and torch.backends.cudnn.allow_tf32 = {}",
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = {}",
    "deterministic": "torch.use_deterministic_algorithms({})",
    "anomaly_mode": "torch.autograd.set_detect_anomaly({})",
    "fused_optimizer": "fused={} in the optimizer, such as torch.optim.AdamW(..., fused={})",
    "foreach_optimizer": "foreach={} in the optimizer, such as torch.optim.AdamW(..., foreach={})",
    "compile_dynamic": "torch.compile(..., dynamic={})",
    "num_threads": "OMP_NUM_THREADS={} in the environment, or torch.set_num_threads({})",
    "allocator": "PYTORCH_CUDA_ALLOC_CONF={} in the environment",
}
SWITCHES: Mapping[tuple[str, Value], str] = {
    ("compile_mode", "off"): "no torch.compile",
    ("compile_mode", "default"): "model = torch.compile(model)",
    ("amp", "off"): "no autocast",
    ("amp", "bf16"): "the forward pass under torch.autocast(device_type, dtype=torch.bfloat16)",
    ("channels_last", True): "model.to(memory_format=torch.channels_last), and the images too",
    ("channels_last", False): "the model in its usual memory format",
    ("empty_cache", False): "no torch.cuda.empty_cache()",
    ("empty_cache", True): "torch.cuda.empty_cache() as it is",
    ("launch_blocking", False): "no CUDA_LAUNCH_BLOCKING in the environment",
    ("launch_blocking", True): "CUDA_LAUNCH_BLOCKING=1 in the environment",
    ("gc", "on"): "Python's collector as it is",
    ("gc", "off"): "gc.disable() after the first step",
    ("gc", "freeze"): "gc.collect() and gc.freeze() after the first step",
}


def settings_words(settings: Settings) -> str:
    """`num_workers=4 compile_mode=off`."""
    return " ".join(f"{name}={shown(value)}" for name, value in settings.items())


def winner_words(
    space: Space, settings: Settings, dead: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """What to write, knob by knob; those that never took hold are left out."""
    knobs = (*space.knobs, *([] if space.pinned is None else [space.pinned.knob]))
    return tuple(
        knob_words(knob, settings[knob.name])
        for knob in knobs
        if knob.name in settings and knob.name not in dead
    )


def knob_words(knob: Knob, value: Value) -> str:
    """`num_workers=4 in DataLoader(...)`."""
    if knob.way.kind == ENVIRONMENT:
        variables = change_of([knob], {knob.name: value}).environment
        words = " ".join(f"{name}={text}" for name, text in variables.items())
        return f"{words} in the environment"
    if knob.way.kind != HOOK:
        arguments = change_of([knob], {knob.name: value}).arguments
        words = " ".join(arguments) if arguments else f"no {knob.way.template}"
        return f"{words} on the command line"
    name, plain = knob.name, repr(value) if isinstance(value, bool | float) else str(value)
    if name in OF_LOADERS:
        return f"{name}={plain} in DataLoader(...)"
    if name in OF_DDP:
        return f"{name}={plain} in DistributedDataParallel(...)"
    if (name, value) in SWITCHES:
        return SWITCHES[name, value]
    if name == "compile_mode":
        return f'model = torch.compile(model, mode="{value}")'
    return CALLS[name].replace("{}", plain) if name in CALLS else f"{name}={shown(value)}"
