"""A Hugging Face config.json -> Model.

The file is a stranger's: bounded, checked, never executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from stepscope.errors import InputError
from stepscope.planner.config_families import FAMILIES, UNSUPPORTED, llama, with_further_layers
from stepscope.planner.config_fields import Fields
from stepscope.planner.model import Model
from stepscope.protocol.untrusted import parse_json, read_regular

# The largest configs on the hub (with long lists of quantised layers) have some 300 KB.
MAX_BYTES = 4 * 2**20
_MAX_NAME = 80


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
    if kind in UNSUPPORTED:
        raise InputError(f"{where}: models of type {kind} are not supported: {UNSUPPORTED[kind]}")
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
