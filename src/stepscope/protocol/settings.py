"""The settings that can be applied on top of a job's own from outside,
and which findings each of them fixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Value = bool | int | float | str

SAME, ROUNDING, DIFFERS = "same", "rounding", "differs"
"""What a setting does to the numbers: nothing; another order of sums, so the last bits;
or more than that."""


@dataclass(frozen=True)
class Setting:
    """One setting. A number lies between `low` and `high`; a text is passed on as it is."""

    name: str
    kind: str
    """bool, int, float, choice or text."""
    words: str
    usual: Value | None
    """What a job has that says nothing; None where that depends."""
    numerics: str = SAME
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    """Codes of findings."""
    environment: tuple[str, ...] = ()
    """Variables that carry it: they must be there before the job starts."""

    @property
    def changes_numerics(self) -> bool:
        return self.numerics == DIFFERS

    @property
    def values(self) -> str:
        """The values it may have, in words."""
        if self.kind == "choice":
            return ", ".join(self.choices)
        if self.kind == "bool":
            return "true, false"
        return "text" if self.kind == "text" else f"{self.low:.7g} to {self.high:.7g}"


def _bool(name: str, words: str, usual: bool | None, **more: Any) -> Setting:
    return Setting(name=name, kind="bool", words=words, usual=usual, **more)


def _int(name: str, words: str, usual: int | None, low: int, high: int, **more: Any) -> Setting:
    return Setting(name=name, kind="int", words=words, usual=usual, low=low, high=high, **more)


OF_LOADERS = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "batch_size")
OF_DDP = (
    "bucket_cap_mb",
    "gradient_as_bucket_view",
    "static_graph",
    "find_unused_parameters",
    "broadcast_buffers",
)
"""Settings that are arguments of DataLoader, and of DistributedDataParallel."""
RAISED = frozenset({"num_workers", "prefetch_factor", "bucket_cap_mb"})
"""Where a finding says that there is too little of it: its fix never takes a job's own down."""
LOWERED = {"oversized-buckets": frozenset({"bucket_cap_mb"})}
"""Findings that say that there is too much of one of these."""
COMPILE_MODES = ("off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

_ALL = (
    _int(
        "num_workers",
        "worker processes of every DataLoader; what a dataset draws at random is drawn anew in "
"each",
        0, 0, 256, fixes=("serial-loader", "starved-loader"),
    ),
    _bool("pin_memory", "batches in pinned memory; needs a GPU", False, fixes=("pageable-copy",)),
    _int(
        "prefetch_factor", "batches that each worker keeps ready", 2, 1, 64,
        fixes=("shallow-prefetch", "starved-loader"),
    ),
    _bool("persistent_workers", "workers live on from one epoch to the next", False,
          fixes=("loader-respawn", "serial-loader")),
    _int("batch_size", "samples a batch, where no batch sampler of the job's own makes them",
         None, 1, 1 << 20, numerics=DIFFERS),
    Setting(
        name="bucket_cap_mb", kind="float", words="size of DDP's buckets of gradients",
        usual=25.0, low=0.1, high=4096.0, numerics=ROUNDING,
        fixes=("tiny-buckets", "oversized-buckets"),
    ),
    _bool("gradient_as_bucket_view", "DDP's gradients lie in its buckets", False),
    _bool("static_graph", "DDP may take every step for like the first", False),
    _bool("find_unused_parameters", "DDP looks for parameters without gradients", False,
          fixes=("unused-parameter-scan",)),
    _bool(
        "broadcast_buffers", "DDP sends the first rank's buffers before each forward pass", True,
        numerics=DIFFERS, fixes=("buffer-broadcast",),
    ),
    _bool("fused_optimizer", "one kernel for many parameters; Adam, AdamW, SGD, Adagrad", False,
          numerics=ROUNDING, fixes=("looped-optimizer",)),
    _bool("foreach_optimizer", "one kernel per operation for many parameters", None,
          numerics=ROUNDING),
    Setting(
        name="compile_mode", kind="choice",
        words="mode of torch.compile; models are compiled where the job does not",
        usual="off", choices=COMPILE_MODES, numerics=ROUNDING,
        fixes=("launch-overhead", "unfused-pointwise", "python-overhead"),
    ),
    _bool("compile_dynamic", "torch.compile takes sizes for changing from the first", None,
          numerics=ROUNDING, fixes=("recompilation",)),
    _bool("tf32", "TF32 in matrix products of float32", False,
          numerics=DIFFERS, fixes=("tf32-off",)),
    _bool("cudnn_benchmark", "cuDNN tries its algorithms out", False,
          numerics=ROUNDING, fixes=("untuned-convolution",)),
    _bool("channels_last", "models with 2D convolutions in channels_last", False,
          numerics=ROUNDING, fixes=("nchw-layout",)),
    Setting(
        name="amp", kind="choice", words="autocast around the forward pass of every model",
        usual="off", choices=("off", "bf16"), numerics=DIFFERS, fixes=("fp32-matmul",),
    ),
    _int("num_threads", "threads of torch's operators on the host", None, 1, 1024,
         numerics=ROUNDING, fixes=("thread-oversubscription",),
         environment=("OMP_NUM_THREADS", "MKL_NUM_THREADS")),
    Setting(
        name="allocator", kind="text",
        words="how the CUDA allocator is set up, such as expandable_segments:True", usual="",
        fixes=("fragmentation", "allocator-churn"),
        environment=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    ),
    _bool("empty_cache", "torch.cuda.empty_cache() does what it says", True,
          fixes=("allocator-churn",)),
    _bool("anomaly_mode", "autograd looks for the origin of NaNs", False, fixes=("debug-mode",)),
    _bool("launch_blocking", "the host waits for every kernel", False,
          fixes=("debug-mode",), environment=("CUDA_LAUNCH_BLOCKING",)),
    _bool("deterministic", "deterministic algorithms alone", False, numerics=ROUNDING),
    Setting(
        name="gc", kind="choice",
        words="Python's collector after the first step: freeze leaves out what is there by then",
        usual="on", choices=("on", "freeze", "off"), fixes=("gc-pause",),
    ),
)  # fmt: skip
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _ALL}


def raised_by(code: str, names: Iterable[str]) -> frozenset[str]:
    """Settings of these that the fix of a finding only ever raises."""
    return (RAISED - LOWERED.get(code, frozenset())) & frozenset(names)


def checked(knobs: Mapping[str, Any]) -> dict[str, Value]:
    """Check that each of these settings is of its kind and within its bounds.

    A ValueError says what is wrong with one that is not.
    """
    return {name: _checked(name, value) for name, value in knobs.items()}


def _checked(name: str, value: Any) -> Value:
    setting = SETTINGS.get(name)
    if setting is None:
        raise ValueError(
            f"{name} is not a setting that can be applied on top of a job's. There are: "
            f"{', '.join(SETTINGS)}"
        )
    if not _fits(setting, value):
        raise ValueError(f"{name} cannot be {value!r}. It may be: {setting.values}")
    return float(value) if setting.kind == "float" else value


def _fits(setting: Setting, value: Any) -> bool:
    if setting.kind == "bool":
        return isinstance(value, bool)
    if setting.kind == "choice":
        return value in setting.choices
    if setting.kind == "text":
        return isinstance(value, str) and value.isprintable()
    if isinstance(value, bool) or not isinstance(
        value, int if setting.kind == "int" else int | float
    ):
        return False
    return (
        setting.low is not None
        and setting.high is not None
        and setting.low <= value <= setting.high
    )


_BOOLS = {
    **dict.fromkeys(("true", "1", "on", "yes"), True),
    **dict.fromkeys(("false", "0", "off", "no"), False),
}


def value_of(name: str, text: str) -> Value:
    """The value that a text gives for this setting, as on a command line."""
    setting = SETTINGS.get(name)
    kind = "text" if setting is None else setting.kind
    try:
        if kind == "bool":
            value: Value = _BOOLS[text.lower()]
        elif kind == "int":
            value = int(text)
        elif kind == "float":
            value = float(text)
        else:
            value = text
    except (KeyError, ValueError):
        value = text
    return _checked(name, value)


def environment_of(knobs: Mapping[str, Any]) -> dict[str, str]:
    """The variables that carry these settings."""
    variables = {}
    for name, value in knobs.items():
        for variable in SETTINGS[name].environment:
            variables[variable] = str(int(value)) if isinstance(value, bool) else str(value)
    return variables
