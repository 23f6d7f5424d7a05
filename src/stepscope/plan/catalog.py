"""Models by name, by path or by shape.

A path is that of a Hugging Face config.json, and a stranger's: bounded, checked, never executed.
"""

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

from stepscope.errors import InputError, UsageError
from stepscope.plan.config_families import FAMILIES, llama, with_further_layers
from stepscope.plan.config_fields import Fields
from stepscope.plan.devices import shown
from stepscope.plan.model import Model
from stepscope.protocol.untrusted import parse_json, read_regular

# The largest configs on the hub (with long lists of quantised layers) have some 300 KB.
MAX_BYTES = 4 * 2**20
_MAX_NAME = 80
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
    unsupported_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Reasons why a `model_type` cannot be planned."""


def find_model(word: str) -> Model:
    """The model of a built-in name, a config.json, a folder that has one, or a size ("10b").

    A word without a slash is a name first: write ./gpt2 for a folder that has a model's name.
    """
    model = known_model(word)
    if model is None:
        nearest = _nearest(_plain(word))
        raise UsageError(f"no model is named {shown(word)}; {nearest}, or give a config.json")
    return model


def known_model(word: str) -> Model | None:
    """The model that `find_model` finds, if any."""
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
    return None


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
        resources.files("stepscope.plan").joinpath("models.json").read_bytes(), type=_ModelFile
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


def read_config(path: Path) -> Model:
    """The model that a config.json describes; a folder stands for the config.json in it."""
    path = path / "config.json" if path.is_dir() else path
    try:
        values = parse_json(read_regular(path, MAX_BYTES), is_strict=True)
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; give a model's config.json or a folder that has one"
        ) from None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read as a model's config.json: {error.strerror or error}"
        ) from None
    except ValueError as error:
        raise InputError(
            f"{path}: not JSON ({str(error)[:100]}); a model's config.json is needed"
        ) from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: a model's config.json is an object with named fields")
    return model_from_config(values, name=_name_of(path), where=str(path))


def _name_of(path: Path) -> str:
    """The folder's name, or the file's where it has one of its own ("llama-7b.json")."""
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return (
        "".join(char if char.isprintable() else "?" for char in name)[:_MAX_NAME] or "config.json"
    )


def model_from_config(
    values: Mapping[str, object], *, name: str, where: str, has_mtp: bool = False
) -> Model:
    """The model that the fields of a config describe. `notes` says what was assumed or left out.

    `has_mtp` counts the layers that predict further tokens, which transformers and published counts
    leave out.
    """
    fields = _text_fields(Fields(values, where))
    kind = fields.word("model_type")
    for why, types in _load_file().unsupported_types.items():
        if kind in types:
            raise InputError(f"{where}: models of type {kind} are not supported: {why}")
    build = FAMILIES.get(kind)
    if build is None:
        _reject_strange(fields, kind)
        build = llama
        kind_text = f"model_type {kind!a}" if kind else "no model_type"
        fields.notes.append(
            f"{kind_text}: read as a llama, whose fields it has; check the parameter count"
        )
    model = _checked(build(fields), fields)
    if num_extra := fields.count("num_nextn_predict_layers", default=0, at_least=0):
        if has_mtp:
            model = with_further_layers(model, num_extra)
        else:
            fields.notes.append(
                "layers that predict further tokens (MTP) are left out, as in the published count"
            )
    return replace(model, name=name, source=where, notes=tuple(fields.notes))


def _text_fields(fields: Fields) -> Fields:
    """The part that describes the language model,
    of a config that also has a vision or audio tower."""
    if not fields.has("text_config") or fields.has("hidden_size"):
        return fields
    inner = fields.inner("text_config")
    inner.notes.append("of a model with several parts, the text part alone is read")
    if inner.has("tie_word_embeddings") or not fields.has("tie_word_embeddings"):
        return inner
    merged = Fields(
        {**inner.values, "tie_word_embeddings": fields.values["tie_word_embeddings"]}, inner.where
    )
    merged.notes = inner.notes
    return merged


_NO_ATTENTION = "layers that are not attention"
_STRANGE = (
    (
        _NO_ATTENTION,
        ("ssm_cfg", "state_size", "mamba_d_state", "ssm_state_size", "hybrid_override_pattern"),
    ),
    (
        _NO_ATTENTION,
        ("linear_attn_config", "linear_num_value_heads", "attn_type_list", "layers_block_type"),
    ),
    (
        "a mixture of experts",
        (
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "moe_intermediate_size",
            "moe_num_experts",
            "num_experts_per_tok",
        ),
    ),
    ("latent attention", ("kv_lora_rank",)),
    ("an encoder and a decoder", ("decoder_layers", "num_decoder_layers")),
)
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")


def _reject_strange(fields: Fields, kind: str) -> None:
    """What an unknown type has that llama has not would be counted wrong."""
    unknown = f"model_type {kind!a} is not known, and"
    for feature, names in _STRANGE:
        field = next((name for name in names if fields.has(name)), None)
        if field is not None:
            raise fields.fault(
                f"{unknown} {field} says that it has {feature}; describe its shape by options"
            )
    other = next((layer for layer in fields.words("layer_types") if layer not in _ATTENTION), None)
    if other is not None:
        raise fields.fault(
            f"{unknown} layer_types says that it has layers of {other[:40]!a}; describe its shape "
            "by options"
        )


def _checked(model: Model, fields: Fields) -> Model:
    if model.heads % model.kv_heads:
        raise fields.fault(
            f"{model.heads} attention heads cannot share {model.kv_heads} key-value heads"
        )
    return model
