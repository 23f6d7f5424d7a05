"""Models by name, size and shape."""

import json
from pathlib import Path

import pytest

from stepscope.errors import InputError, UsageError
from stepscope.plan.catalog import (
    _plain,
    all_names,
    find_model,
    model_names,
    scaled_model,
)

COUNTED: dict[str, int] = json.loads((Path(__file__).parent / "catalog_counts.json").read_text())
"""Parameters of the catalogue's configs as transformers 5.22.2 builds them on torch's meta device
(BERT and RoBERTa with their pooler, no head; DeepSeek's and Kimi's with the experts' balancing
numbers, which are buffers there; internlm-7b as a llama with biases, which it is)."""

PUBLISHED = {
    # Model cards on the hub and the sizes of the weights stored there (safetensors' total).
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_419_200,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_482_240,
    # The BLOOM cards: "559,214,592 parameters" and so on.
    "bloom-560m": 559_214_592,
    "bloom-1b1": 1_065_314_304,
    "bloom-1b7": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    # Pythia's README, "total params".
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    # Black et al. 2022 (GPT-NeoX-20B), section 2.1; GPT-J's card.
    "gpt-neox-20b": 20_554_567_680,
    "gpt-j-6b": 6_050_882_784,
    # Mosaic's throughput table at 2048 tokens (shared/planner/rows.jsonl, params_published).
    "mpt-125m": 125_311_488,
    "mpt-350m": 355_985_408,
}

ROUNDED = {
    # Papers and cards that print rounded figures: total, active, in billions.
    "deepseek-v2": (236, 21),
    "deepseek-v3": (671, 37),
    "deepseek-v2-lite": (15.7, 2.4),
    "kimi-k2": (1026, 32),
    "qwen3-235b-a22b": (235, 22),
    "qwen2-57b-a14b": (57, 14),
    "qwen3-coder-480b-a35b": (480, 35),
    "mixtral-8x22b": (141, 39),
    "gpt-oss-20b": (20.91, 3.61),
    "gpt-oss-120b": (116.83, 5.13),
    "olmoe-1b-7b": (6.9, 1.3),
    "llama4-maverick": (400, 17),
}
EMBEDDING_LEFT_OUT = {"gpt-oss-20b", "gpt-oss-120b", "deepseek-v2-lite"}
"""Whose active figures count the head and not the embedding (gpt-oss's card, table 1, says so)."""


@pytest.mark.parametrize(("name", "params"), PUBLISHED.items())
def test_parameters_are_exactly_those_published(name: str, params: int) -> None:
    assert find_model(name).num_params == params


@pytest.mark.parametrize(("name", "params"), COUNTED.items())
def test_parameters_are_exactly_those_that_transformers_builds(name: str, params: int) -> None:
    assert find_model(name).num_params == params


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_mixtures_are_as_large_and_as_active_as_published(
    name: str, billions: tuple[float, float]
) -> None:
    model = find_model(name)
    active = model.active_params - model.embedding_params * (name in EMBEDDING_LEFT_OUT)
    assert model.num_params / 1e9 == pytest.approx(billions[0], rel=0.008)
    assert active / 1e9 == pytest.approx(billions[1], rel=0.03)


def test_nearly_every_model_was_counted_by_others_too() -> None:
    uncounted = (
        set(model_names())
        - set(COUNTED)
        - {name for name in model_names() if name.startswith(("megatron", "mpt-"))}
    )
    assert uncounted == {
        "deepseek-v3-mtp",
        "internlm-20b",
        "internlm2-1.8b",
        "internlm2-7b",
        "internlm2-20b",
    }
    assert len(COUNTED) > 140


def test_every_model_says_where_its_shape_was_read() -> None:
    for name in model_names():
        model = find_model(name)
        assert model.name == name
        assert len(model.source) > 20, name
        assert "{" not in model.source, name


def test_no_two_names_are_the_same_without_their_punctuation() -> None:
    plain = [_plain(name) for name in all_names()]
    assert len(set(plain)) == len(plain)
    assert _plain("gpt3-1.3b") != _plain("gpt3-13b")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Llama3-70B", "llama3-70b"),
        ("llama_3_70b", "llama3-70b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
        ("LLAMA 3.3 70B", "llama3-70b"),
        ("GPT-3", "gpt3-175b"),
        ("gpt3_175B", "gpt3-175b"),
        ("Qwen/Qwen3-30B-A3B-Base", "qwen3-30b-a3b"),
        ("google/gemma-2-9b-it", "gemma2-9b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Turing 530B", "megatron-gpt-529.6b"),
        ("megatron-gpt-1008.0b", "megatron-gpt-1t"),
        ("BLOOM-176B", "bloom"),
        ("DeepSeek-R1", "deepseek-v3"),
        ("Kimi-K2", "kimi-k2"),
    ],
)
def test_names_are_known_in_any_spelling(word: str, name: str) -> None:
    assert find_model(word).name == name


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="near it: llama3-8b") as problem:
        find_model("lama3-8b")
    assert "config.json" in str(problem.value)


@pytest.mark.parametrize(
    "name",
    [
        "nemotron-3-nano",
        "Nemotron-3-Super",
        "nemotron-3.5-lightning",
        "jamba",
        "qwen3-next-80b-a3b",
    ],
)
def test_models_that_are_not_transformers_throughout_are_refused_in_words(name: str) -> None:
    with pytest.raises(UsageError, match=r"is not supported: .*attention"):
        find_model(name)


def test_hostile_names_come_back_harmless() -> None:
    with pytest.raises(UsageError) as problem:
        find_model("\x1b[31m" + "x" * 100_000)
    assert "\x1b" not in str(problem.value)
    assert len(str(problem.value)) < 1000


def test_a_path_is_read_and_a_missing_one_is_said_to_be_missing(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        assert find_model(str(path)).num_params == PUBLISHED["gpt2"]
    with pytest.raises(InputError, match="no such file"):
        find_model(str(tmp_path / "other.json"))


@pytest.mark.parametrize(
    "billions",
    [
        0.05,
        0.1,
        0.125,
        0.35,
        0.5,
        0.9,
        1,
        1.3,
        2,
        3,
        7,
        8,
        10,
        13,
        20,
        30,
        70,
        100,
        175,
        500,
        1000,
        9000,
    ],
)
def test_a_size_alone_gives_a_llama_within_five_percent(billions: float) -> None:
    model = scaled_model(billions * 1e9)
    assert model.num_params == pytest.approx(billions * 1e9, rel=0.05)
    assert model.layers % 2 == 0
    assert model.heads * model.head_dim == model.hidden
    assert model.notes


def test_every_size_in_between_is_met_as_well() -> None:
    for step in range(67):
        wanted = 50e6 * 1.19**step
        assert scaled_model(wanted).num_params == pytest.approx(wanted, rel=0.05), wanted


def test_sizes_are_words_too() -> None:
    assert find_model("10b") == find_model("10B") == scaled_model(10e9)
    assert find_model("350M").num_params == pytest.approx(350e6, rel=0.05)
    with pytest.raises(UsageError, match="10m to 100t"):
        find_model("900t")


def test_a_folder_with_a_models_name_must_be_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").mkdir()
    config = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 1,
        "n_head": 1,
        "vocab_size": 10,
        "n_positions": 16,
    }
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert find_model("gpt2").hidden == 768
    assert find_model("./gpt2").hidden == 64
