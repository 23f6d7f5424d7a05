"""A stranger's config.json."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import InputError
from stepscope.plan.catalog import MAX_BYTES, model_from_config, read_config
from stepscope.plan.config_families import FAMILIES
from stepscope.plan.model import Model
from tests.wording import mentions

COUNTED = json.loads((Path(__file__).parent / "transformers_counts.json").read_text())
"""Small configs with random shapes, biases, ties and norms, and their parameters as transformers
5.22.2 builds them on torch's meta device (encoders with their pooler, no head; DeepSeek-V3's with
the experts' balancing numbers, which are buffers there)."""

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def read(config: dict[str, object]) -> Model:
    return model_from_config(config, name="x", where="config.json")


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case["config"]["model_type"])
def test_counts_are_those_that_transformers_builds(case: dict[str, object]) -> None:
    config = case["config"]
    assert isinstance(config, dict)
    assert read(config).num_params == case["num_params"]


def test_nearly_every_family_was_counted() -> None:
    counted = {case["config"]["model_type"] for case in COUNTED}
    # Code on the hub or older names, all of llama's, mistral's, deepseek's or falcon's shape.
    assert set(FAMILIES) - counted == {
        "ministral",
        "kimi_k2",
        "internlm",
        "internlm2",
        "baichuan",
        "qwen",
        "RefinedWeb",
        "RefinedWebModel",
    }


def test_an_unknown_type_with_llamas_fields_is_read_as_one_and_says_so() -> None:
    model = read({**LLAMA, "model_type": "strange"})
    assert model.num_params == read(LLAMA).num_params
    assert "'strange'" in model.notes[0]
    assert mentions(model.notes[0], "llama")
    assert not read(LLAMA).notes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "strange", "num_experts": 8}, "num_experts .*mixture"),
        ({"model_type": "strange", "kv_lora_rank": 8}, "latent attention"),
        (
            {"model_type": "strange", "hybrid_override_pattern": "M-M*"},
            "not attention",
        ),
        ({"model_type": "kimi_linear", "linear_attn_config": {}}, "not attention"),
        (
            {"model_type": "strange", "layer_types": ["full_attention", "linear_attention"]},
            "layers of 'linear_attention'",
        ),
        ({"model_type": "nemotron_h"}, "nemotron_h .*not supported"),
        ({"model_type": "t5"}, "encoder and a decoder"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"hidden_size": "64"}, "hidden_size .*whole number from 1 .*, not '64'"),
        ({"hidden_size": True}, "hidden_size .*whole number"),
        ({"hidden_size": 64.0}, "hidden_size .*whole number"),
        ({"vocab_size": -5}, "vocab_size .*whole number"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers .* 1 to 100000"),
        ({"num_hidden_layers": 10**40}, "num_hidden_layers must be"),
        ({"num_attention_heads": 7}, "64 cannot .* 7 attention heads"),
        ({"num_key_value_heads": 3}, "8 attention heads cannot .*3 key-value"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings .*true or false"),
        ({"model_type": 5}, "model_type must"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "3 of 2 experts",
        ),
        (
            {"model_type": "gemma2", "sliding_window": 8, "layer_types": "all"},
            "layer_types .*list",
        ),
        ({"model_type": "mpt", "attn_config": 3}, "attn_config must"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as problem:
        read({**LLAMA, **fields})
    assert str(problem.value).startswith("config.json")


def test_long_and_strange_values_are_shown_short_and_harmless() -> None:
    with pytest.raises(InputError) as problem:
        read({**LLAMA, "hidden_size": "\x1b[2J" * 10_000})
    assert "\x1b" not in str(problem.value)
    assert len(str(problem.value)) < 300


def test_the_text_part_of_a_model_with_several_parts_is_read() -> None:
    model = read(
        {
            "model_type": "gemma3",
            "text_config": {**LLAMA, "model_type": "gemma3_text"},
            "vision_config": {},
        }
    )
    assert model.num_params == read({**LLAMA, "model_type": "gemma3_text"}).num_params
    assert "text part" in model.notes[0]


def test_layers_for_further_tokens_are_left_out_with_a_note() -> None:
    case = next(case["config"] for case in COUNTED if case["config"]["model_type"] == "deepseek_v3")
    model = read({**case, "num_nextn_predict_layers": 1})
    assert model.num_params == read(case).num_params
    assert "MTP" in model.notes[0]


def test_windows_are_known_where_some_layers_have_them() -> None:
    gemma = read(
        {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 26, "sliding_window": 512}
    )
    assert (gemma.window, gemma.num_window_layers) == (512, 22)
    kinds = ["sliding_attention", "full_attention"]
    told = read({**LLAMA, "model_type": "gemma3_text", "sliding_window": 512, "layer_types": kinds})
    assert told.num_window_layers == 1
    assert read({**LLAMA, "model_type": "mistral", "sliding_window": None}).window == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1]", "an object"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b" " * (MAX_BYTES + 1), "larger than 4 MiB"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_config(path)


@pytest.mark.parametrize(
    ("config", "params"),
    [
        # As on the hub, with the counts of the weights there: Qwen/Qwen-7B, tiiuae/falcon-40b
        # before it was renamed, bigscience/bloom, google/gemma-3-4b-pt (the text part as
        # transformers builds it).
        (
            {
                "model_type": "qwen",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
            }
            | {"intermediate_size": 22016, "vocab_size": 151936},
            7_721_324_544,
        ),
        (
            {
                "model_type": "RefinedWeb",
                "hidden_size": 8192,
                "n_layer": 60,
                "n_head": 128,
                "n_head_kv": 8,
                "vocab_size": 65024,
            },
            41_303_293_952,
        ),
        (
            {
                "model_type": "bloom",
                "n_embed": 14336,
                "n_layer": 70,
                "num_attention_heads": 112,
                "vocab_size": 250880,
            },
            176_247_271_424,
        ),
        (
            {
                "text_config": {
                    "model_type": "gemma3_text",
                    "hidden_size": 2560,
                    "intermediate_size": 10240,
                    "num_hidden_layers": 34,
                }
            },
            3_880_263_168,
        ),
    ],
)
def test_old_names_and_fields_left_out_are_understood(
    config: dict[str, object], params: int
) -> None:
    assert read(config).num_params == params


def test_a_model_is_named_by_its_folder_or_its_file(tmp_path: Path) -> None:
    for path, name in (
        (tmp_path / "my-model" / "config.json", "my-model"),
        (tmp_path / "small.json", "small"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(LLAMA))
        assert read_config(path).name == name


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
)


@given(
    kind=st.sampled_from([*FAMILIES, "strange", ""]),
    fields=st.dictionaries(
        st.sampled_from(
            [*LLAMA, "n_embd", "layer_types", "num_experts", "text_config", "attn_config"]
        ),
        VALUES,
    ),
)
def test_any_fields_give_a_model_or_a_message(kind: str, fields: dict[str, object]) -> None:
    outcome = "config.json: "
    try:
        assert read({**LLAMA, **fields, "model_type": kind}).num_params > 0
    except InputError as problem:
        outcome = str(problem)
    assert outcome.startswith("config.json: ")
