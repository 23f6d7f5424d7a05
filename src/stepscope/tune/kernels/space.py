"""The configurations of a sweep: as a user writes them, and those that every module has.

`BLOCK=64,128` and `num_warps=2,4` are four configurations: their product. `BLOCK=64..512:step=64`
is a range.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from stepscope.core.experiments.trials import Value
from stepscope.errors import UsageError

Settings = Mapping[str, Value]

MAX_SWEPT = 512
"""Configurations of one sweep; of more, some are chosen by what was timed."""
MAX_CONFIGS = 100_000
"""Configurations of which any are chosen."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MODES = ("eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
EXECUTION_OPTIONS: Mapping[str, str] = {
    "mode": f"torch.compile: {', '.join(MODES)}",
    "backend": "torch.compile: inductor, aot_eager, eager or another that is installed",
    "channels_last": "weights and images in the order NHWC: off, on",
    "cudnn_benchmark": "cuDNN tries its algorithms: off, on",
    "tunable_op": "torch.cuda.tunable tries the libraries' products: off, on",
    "tf32": "matrix products of float32 in TF32: off, on",
}
"""What can be set around any module or function, whatever its arguments."""
PROCESS_WIDE = ("cudnn_benchmark", "tunable_op")
"""What one of these found stays in the process: each value has a process of its own."""
LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Options of a Triton launch."""


def parse_configs(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """--config NAME=VALUE,VALUE ..."""
    axes: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not NAME.fullmatch(name) or not values.strip():
            raise UsageError(f"--config {text}: write NAME=VALUE,VALUE as in BLOCK=64,128,256")
        if name in axes:
            raise UsageError(f"--config {name} is there twice: put all its values behind one")
        if ".." in values:
            axes[name] = _range_of(name, values.strip(), text)
            continue
        axes[name] = tuple(dict.fromkeys(_value(word.strip(), text) for word in values.split(",")))
    return axes


def declared_configs(declared: object, where: str) -> tuple[Settings, ...]:
    """Configurations that a module declares: {"BLOCK": [64, 128]} for a product, or a list of
    configurations."""
    if isinstance(declared, Mapping):
        axes = {}
        for name, values in declared.items():
            listed = values if isinstance(values, list | tuple) else [values]
            if (
                not isinstance(name, str)
                or not listed
                or not all(isinstance(value, Value) for value in listed)
            ):
                raise UsageError(
                    f'{where}[{name!r}] must be a list of numbers or words, as in {{"BLOCK": [64, '
                    f"128]}}"
                )
            axes[name] = tuple(listed)
        return product(axes)
    if (
        isinstance(declared, list | tuple)
        and declared
        and all(isinstance(config, Mapping) for config in declared)
    ):
        for config in declared:
            if not all(
                isinstance(name, str) and isinstance(value, Value) for name, value in config.items()
            ):
                raise UsageError(
                    f"{where}: {str(config)[:80]} must have names and numbers or words"
                )
        return distinct(dict(config) for config in declared)
    raise UsageError(
        f'{where} must be {{"BLOCK": [64, 128]}}, or a list of configurations as in [{{"BLOCK": '
        f"64}}, ...]"
    )


def product(axes: Mapping[str, Sequence[Value]]) -> tuple[Settings, ...]:
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MAX_CONFIGS:
        sizes = " x ".join(f"{len(values)} {name}" for name, values in axes.items())
        raise UsageError(
            f"{sizes} are {count:,} configurations, more than {MAX_CONFIGS:,}: give fewer values, "
            "or a list of them"
        )
    return distinct(
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    )


def distinct(configs: Iterable[Settings]) -> tuple[Settings, ...]:
    # 1, 1.0 and True are equal, and not the same setting; those of a list may be anything.
    unique = {
        tuple(sorted((name, repr(value)) for name, value in settings.items())): settings
        for settings in configs
    }
    return tuple(unique.values())


def default_options(
    *, on_gpu: bool, has_compiler: bool, has_conv: bool, has_products: bool
) -> tuple[Settings, ...]:
    """One thing changed at a time, from what is there; the baseline is none of them."""
    modes: tuple[str, ...] = ()
    if has_compiler:
        modes = MODES[1:] if on_gpu else ("default", "max-autotune")
    options: list[Settings] = [{"mode": mode} for mode in modes]
    if not has_compiler:
        options.append({"backend": "aot_eager"})
    if has_conv:
        options.append({"channels_last": True})
        if has_compiler:
            options.append({"channels_last": True, "mode": "default"})
    if on_gpu and has_conv:
        options += [{"cudnn_benchmark": True}, {"cudnn_benchmark": True, "channels_last": True}]
    if on_gpu and has_products:
        options.append({"tunable_op": True})
    return tuple(options)


def process_of(settings: Settings) -> tuple[str, ...]:
    """Key of the process a configuration runs in: those of equal answer share one."""
    return tuple(name for name in PROCESS_WIDE if settings.get(name) in (True, "on"))


def _range_of(name: str, values: str, text: str) -> tuple[Value, ...]:
    """`0..9`, `16..256:step=16`, as `tune --knob` takes them."""
    from stepscope.tune.knob_space import Way, parse_knobs

    (knob,) = parse_knobs((f"{name}={values}",), {name: Way()})
    if knob.values is None:
        raise UsageError(f"--config {text}: a range needs steps, as in {values}:step=0.1")
    return knob.values


def _value(word: str, text: str) -> Value:
    if not word:
        raise UsageError(f"--config {text}: there is an empty value")
    if word.lower() in ("on", "true", "yes"):
        return True
    if word.lower() in ("off", "false", "no"):
        return False
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
