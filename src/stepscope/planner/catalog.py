"""Models by name, by path or by shape."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from stepscope.errors import UsageError
from stepscope.planner.config_json import model_from_config, read_config
from stepscope.planner.devices import shown
from stepscope.planner.model import Model

_NUM_NEAREST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One model of models.json: its config is the family's and its own."""

    name: str
    config: Mapping[str, object]
    aliases: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    source: str
    config: Mapping[str, object]
    models: tuple[_Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelFile:
    families: tuple[_Family, ...]
    unsupported: Mapping[str, str] = field(default_factory=dict)


def find_model(word: str) -> Model:
    """The model of a built-in name, a config.json, a folder that has one, or a size ("10b").

    A word without a slash is a name first: write ./gpt2 for a folder that has a model's name.
    """
    path, plain = Path(word), _plain(word)
    entry = _by_plain_name().get(plain)
    if path.suffix == ".json" or ((entry is None or "/" in word) and _is_path(path)):
        return read_config(path)
    if entry is not None:
        return _built(*entry)
    if plain in _unsupported():
        name, why = _unsupported()[plain]
        raise UsageError(f"{name} is not supported: {why}")
    if (num_params := _size(word)) is not None:
        return scaled_model(num_params)
    raise UsageError(f"no model is named {shown(word)}; {_nearest(plain)}, or give a config.json")


def model_names() -> tuple[str, ...]:
    """Every built-in name, aliases left out."""
    return tuple(entry.name for family in _load_file().families for entry in family.models)


def all_names() -> tuple[str, ...]:
    """Every name that `find_model` knows, aliases included."""
    return tuple(
        name
        for family in _load_file().families
        for entry in family.models
        for name in (entry.name, *entry.aliases)
    )


def scaled_model(num_params: float) -> Model:
    """A llama of about so many parameters, for a question that names no model: "7b", "10b".

    Heads of 128 (of 64 below a width of 1024), an MLP of 8/3 of the width, a vocabulary of 32000,
    tied below 1 B, an even number of layers; of the widths that come within 3 %, the one nearest to
    128 channels per layer, which Llama's 7B, 13B and 405B have.
    """
    if not _MIN_SCALED <= num_params <= _MAX_SCALED:
        raise UsageError(
            f"a size must be from {_size_word(_MIN_SCALED)} to {_size_word(_MAX_SCALED)}, not "
            f"{_size_word(num_params)}"
        )
    best: tuple[bool, float, Model] | None = None
    for hidden in _WIDTHS:
        model = _scaled(hidden, num_params)
        error = abs(model.num_params / num_params - 1)
        is_far = error > _SCALED_ERROR
        score = error if is_far else abs(math.log(hidden / model.layers / _CHANNELS_PER_LAYER))
        if best is None or (is_far, score) < best[:2]:
            best = (is_far, score, model)
    assert best is not None
    return best[2]


def _scaled(hidden: int, num_params: float) -> Model:
    head_dim = 64 if hidden < 1024 else 128
    model = Model(
        name=f"llama-like-{_size_word(num_params)}",
        layers=1,
        hidden=hidden,
        heads=hidden // head_dim,
        kv_heads=hidden // head_dim,
        head_dim=head_dim,
        ffn_hidden=-(-8 * hidden // 3 // 256) * 256,
        vocab=32000,
        is_tied=num_params < 1e9,
        source="a llama scaled to this size",
    )
    of_layer = model.attention_params + model.dense_mlp_params + model.norm_params
    layers = 2 * max(1, round((num_params - (model.num_params - of_layer)) / of_layer / 2))
    notes = (f"no model is named: {layers} x {hidden} of llama",)
    return replace(model, layers=layers, notes=notes)


_MIN_SCALED, _MAX_SCALED = 10e6, 100e12
_SCALED_ERROR = 0.03
_CHANNELS_PER_LAYER = 128
_WIDTHS = (*range(128, 1024, 128), *range(1024, 4096, 512), *range(4096, 65536, 1024))
_SIZE = re.compile(
    r"(\d{1,6}(?:\.\d{1,6})?)\s?([mbt])(?:illion)?(?:[ -]?(?:params|parameters))?", re.IGNORECASE
)
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}


def _size(word: str) -> float | None:
    match = _SIZE.fullmatch(word.strip())
    return None if match is None else float(match[1]) * _UNITS[match[2].casefold()]


def _size_word(num_params: float) -> str:
    unit = next((unit for unit in ("t", "b") if num_params >= _UNITS[unit]), "m")
    return f"{num_params / _UNITS[unit]:g}{unit}"


# Names.

_SUFFIXES = re.compile(r"[-_ ](hf|instruct|base|chat|it|pt)$", re.IGNORECASE)


def _plain(word: str) -> str:
    """A name without its owner, case, separators and kind of tuning.

    Dots stay: gpt3-1.3b is not gpt3-13b.
    """
    name = word.rsplit("/", 1)[-1].strip().casefold()
    while (shorter := _SUFFIXES.sub("", name)) != name:
        name = shorter
    return re.sub(r"[^a-z0-9.]", "", name)


@cache
def _load_file() -> _ModelFile:
    return msgspec.json.decode(
        resources.files("stepscope.planner").joinpath("models.json").read_bytes(), type=_ModelFile
    )


@cache
def _by_plain_name() -> Mapping[str, tuple[_Family, _Entry]]:
    families = _load_file().families
    return {
        _plain(name): (family, entry)
        for family in families
        for entry in family.models
        for name in (entry.name, *entry.aliases)
    }


@cache
def _unsupported() -> Mapping[str, tuple[str, str]]:
    return {_plain(name): (name, why) for name, why in _load_file().unsupported.items()}


def _built(family: _Family, entry: _Entry) -> Model:
    source = (entry.source or family.source).replace("{name}", entry.name)
    values = {**family.config, **entry.config}
    model = model_from_config(
        values, name=entry.name, where=source, has_mtp="num_nextn_predict_layers" in values
    )
    return replace(model, source=source)


def _is_path(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _nearest(plain: str) -> str:
    names = {_plain(name): name for name in all_names()}
    close = difflib.get_close_matches(plain[:80], names, n=_NUM_NEAREST, cutoff=0.5)
    if close:
        return f"near it: {', '.join(names[name] for name in close)}"
    return f"known are {', '.join(model_names()[::12])}, ..."
