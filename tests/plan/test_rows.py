"""Published rows: predicted without a look at what was measured, and how far off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planner import score
from benchmarks.planner_sources import FACTS, with_source_facts
from stepscope.errors import InputError
from stepscope.plan.catalog import find_model
from stepscope.plan.framework import MEGATRON
from stepscope.plan.row_parts import framework_of, model_of
from stepscope.plan.rows import MEMORY_OF, predict, read_rows
from tests.shared_data import SAMPLES, unpacked
from tests.wording import mentions

ROWS = SAMPLES / "planner" / "rows.jsonl.zst"
KEYS = {
    "id",
    "step_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "hfu",
    "memory_gb",
    "fits",
    "step_s_low",
    "step_s_high",
    "memory_gb_low",
    "memory_gb_high",
}
ROW: dict[str, Any] = {
    "id": "x-1",
    "source": "x",
    "model": {
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336,
        "vocab": 128256, "gated_mlp": True, "tied_embeddings": False, "name": "some-8b",
    },
    "seq_len": 8192,
    "global_batch": 16,
    "cluster": {"gpu": "H100-SXM-80GB", "gpu_mem_gb": 80, "num_gpus": 8, "gpus_per_node": 8},
    "layout": {
        "micro_batch": 1, "tp": 1, "pp": 1, "dp": 8, "fsdp": "on", "recompute": "full",
        "precision": "bf16",
    },
    "framework": "torchtitan FSDP2",
}  # fmt: skip


class Poison(dict[str, Any]):
    """A row whose measured part must not be touched."""

    def __getitem__(self, key: str) -> Any:
        assert key != "measured"
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        assert key != "measured"
        return super().get(key, default)


def test_a_row_is_predicted_without_what_was_measured() -> None:
    told = predict(Poison(ROW, measured={"step_s": 1.0}))
    assert set(told) == KEYS
    assert told["step_s"] == pytest.approx(16 * 8192 / told["tokens_per_s_per_gpu"] / 8)
    assert told["hfu"] == pytest.approx(told["mfu"] * 4 / 3)
    assert told["fits"] is True
    assert 0.2 < told["mfu"] < 0.6


def test_a_row_without_a_stage_may_have_had_zero_1() -> None:
    """3.6 billion parameters fill an A100 to 91 % where all ranks keep all states."""
    model = {"layers": 30, "hidden": 3072, "heads": 32, "vocab": 50257, "tied_embeddings": True}
    row = ROW | {
        "model": model,
        "seq_len": 2048,
        "global_batch": 512,
        "cluster": {"gpu": "A100", "num_gpus": 64, "gpus_per_node": 8},
        "layout": {"micro_batch": 8, "tp": 1, "pp": 1, "dp": 64, "recompute": "full"},
        "framework": "Megatron-DeepSpeed",
    }
    stated = [row | {"layout": row["layout"] | {"zero_stage": stage}} for stage in (0, 1)]
    assert [predict(each)["fits"] for each in (*stated, row)] == [False, True, True]
    assert predict(row)["step_s"] == predict(stated[0])["step_s"]


def test_a_row_may_name_its_network() -> None:
    wide = {**ROW["cluster"], "num_gpus": 256}
    layout = {**ROW["layout"], "dp": 256}
    slow, fast = (
        predict(ROW | {"cluster": wide | {"network": name}, "layout": layout, "global_batch": 256})
        for name in ("efa", "ndr")
    )
    assert slow["step_s"] > 1.1 * fast["step_s"]
    assert mentions(
        predict(ROW | {"cluster": wide | {"network": "string"}})["unsupported"],
        "no network",
        "string",
    )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model": {"name": "nemotron-3-nano"}}, "nemotron-3-nano is not supported"),
        ({"cluster": {"gpu": "Abacus", "num_gpus": 8}}, "Abacus"),
        ({"model": {"layers": "many", "hidden": 1, "name": "z"}}, "not what"),
        ({"model": "x"}, "not what"),
        ({"layout": [1]}, "not what"),
        ({"cluster": "here"}, "not what"),
        ({"seq_len": float("inf")}, "not what"),
        ({"seq_len": -5}, "seq_len is -5"),
        ({"layout": {"tp": -1}}, "tp is -1"),
        ({"layout": {"zero_stage": 9}}, "there are 0 to 3"),
        (
            {"layout": {"precision": "fp8"}, "cluster": {"gpu": "A100", "num_gpus": 8}},
            "no unit for fp8",
        ),
    ],
)
def test_a_row_that_cannot_be_judged_says_why(changed: dict[str, Any], why: str) -> None:
    told = predict(ROW | changed)
    assert set(told) == {"id", "unsupported"}
    assert why in told["unsupported"]


@pytest.mark.parametrize("line", ["{", "[1]", "7"])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + line + "\n")
    with pytest.raises(InputError, match="line 2"):
        list(read_rows(path))


def test_data_ranks_are_no_more_than_there_were_devices() -> None:
    twice = {**ROW, "layout": {**ROW["layout"], "dp": 16}}
    assert predict(twice) == predict(ROW)


def test_what_was_not_published_is_chosen_as_a_user_would() -> None:
    open_row = ROW | {"layout": {"tp": 1, "pp": 1, "dp": 8, "fsdp": "on"}}
    pinned = [
        ROW | {"layout": {**open_row["layout"], "micro_batch": size, "recompute": "full"}}
        for size in (1, 2)
    ]
    best = predict(open_row)
    assert best["fits"]
    assert best["tokens_per_s_per_gpu"] >= max(
        predict(row)["tokens_per_s_per_gpu"] for row in pinned
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_bytes(unpacked(ROWS))
    return list(read_rows(path))


def test_step_times_stay_within_their_bars(published: list[dict[str, Any]]) -> None:
    wanted = {
        "korthikanti-t5": 0.05, "megatron-sc21-t1": 0.10, "megatron-readme-2021-01": 0.10,
        "megatron-2020": 0.10, "mosaic-mpt": 0.06, "vtrain-multi": 0.10, "megascale-t2": 0.10,
        "torchtitan-h100-2024-12": 0.10, "megatron-h100-weak": 0.10, "internevo-7b-flops": 0.10,
    }  # fmt: skip
    told = score([row for row in published if row["source"] in wanted])
    assert {
        source: told[source]["step"]["median_error"] < bar for source, bar in wanted.items()
    } == dict.fromkeys(wanted, True)
    assert told["vtrain-multi"]["median_regret"] < 0.03


def test_memory_stays_within_its_bar(published: list[dict[str, Any]]) -> None:
    wanted = ("korthikanti-fig1", "bloom-176b-sweep", "torchtitan-h100-2024-12", "internevo-memory")
    told = score([row for row in published if row["source"] in wanted])
    assert {
        source: told[source]["memory"]["median_error"] < 0.10 for source in wanted
    } == dict.fromkeys(wanted, True)


def test_precisions_are_known_by_their_long_names() -> None:
    rows = [
        ROW | {"layout": {**ROW["layout"], "precision": word}}
        for word in ("bf16", "bfloat16", "fp8", "float8")
    ]
    steps = [predict(row)["step_s"] for row in rows]
    assert steps[0] == steps[1] > steps[2] == steps[3]


@pytest.mark.parametrize(
    ("container", "is_fused"),
    [("25.11", False), ("26.04.01", False), ("26.06", True), ("26.08", True)],
)
def test_a_container_says_whether_experts_are_fused(container: str, *, is_fused: bool) -> None:
    framework, _ = framework_of({"framework": f"Megatron-Bridge {container} NeMo Container"})
    assert framework.fuses_experts is is_fused


def test_a_row_may_say_what_its_framework_did_differently() -> None:
    row = {**ROW, "framework": "Megatron-DeepSpeed"}
    assert not framework_of(row)[0].waits
    told = {**row, "habits": {"waits": True, "pads_vocab": False}}
    assert (framework_of(told)[0].waits, framework_of(told)[0].pads_vocab) == (True, False)
    assert predict(told)["step_s"] > predict(row)["step_s"]


@pytest.mark.parametrize(
    ("conventions", "why"),
    [
        ({"speed": 2}, "conventions: a framework has no speed"),
        ({"name": "x"}, "conventions: a framework has no name"),
        ({"waits": "yes"}, "conventions: Expected `bool`, got `str` - at `$.waits`"),
        ([1], "not what"),
    ],
)
def test_conventions_that_no_framework_has_are_named(conventions: Any, why: str) -> None:
    assert why in predict({**ROW, "conventions": conventions})["unsupported"]


def test_what_a_source_says_elsewhere_is_added_by_the_benchmark() -> None:
    model = {"layers": 24, "hidden": 2048, "heads": 16, "name": "gpt-x"}
    row = {**ROW, "framework": "Megatron-DeepSpeed", "model": model}
    vtrain = with_source_facts({**row, "source": "vtrain-single"})
    assert (model_of(vtrain).vocab, framework_of(vtrain)[0].pads_vocab) == (50257, False)
    assert (model_of(row).vocab, framework_of(row)[0].pads_vocab) == (51200, True)
    assert framework_of(with_source_facts({**row, "source": "bloom-176b-sweep"}))[0].waits
    plain = {**row, "measured": {}}
    assert with_source_facts(plain) == plain | {"memory_of": "reserved"}


def test_a_row_says_what_its_peak_is_of_and_how_old_its_framework_is() -> None:
    told = {kind: predict({**ROW, "memory_of": kind})["memory_gb"] for kind in MEMORY_OF}
    assert predict(ROW)["memory_gb"] == told["reserved"]
    order = ("states and activations", "allocated", "reserved", "device")
    sizes = [told[kind] for kind in order]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert "memory_of is one of" in predict({**ROW, "memory_of": "nvidia-smi"})["unsupported"]
    # Before attention had a kernel of its own.
    row = {**ROW, "framework": "Megatron-LM"}
    assert framework_of(row)[1]
    assert framework_of({**row, "framework_year": 2021}) == (MEGATRON, False)
    assert predict({**row, "framework_year": 2021})["step_s"] > predict(row)["step_s"]
    kernels = [{"conventions": {"attention": kernel}} for kernel in (1, 2, 3)]
    steps = [predict({**row, **kernel})["step_s"] for kernel in kernels]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(
    ("where", "is_old"),
    [
        ("NVIDIA/Megatron-LM images/cases_april2021.png at commit 937571cfd4^", True),
        ("Korthikanti et al., arXiv 2205.05198 Table 5", True),
        ("arXiv 2104.04473, cited in a table of 2024", False),
        ("README.md line 2021 at commit 20211234abcd", False),
        ("llama_202412.md", False),
        ("README", False),
    ],
)
def test_a_framework_is_no_younger_than_what_cites_its_result(where: str, *, is_old: bool) -> None:
    row = {**ROW, "framework": "Megatron-LM", "where": where}
    assert (framework_of(row) == (MEGATRON, False)) is is_old
    assert framework_of({**row, "framework_year": 2024}) != (MEGATRON, False)


def test_nanotrons_peak_is_of_its_first_stage() -> None:
    row = {**ROW, "layout": {"tp": 1, "pp": 4, "dp": 2, "micro_batch": 1}, "framework": "nanotron"}
    first, said = (predict(each)["memory_gb"] for each in (row, {**row, "memory_of": "reserved"}))
    assert first == predict({**row, "memory_of": "first stage"})["memory_gb"] <= said


def test_heads_that_nobody_names_share_the_hidden_size() -> None:
    stated = {"layers": 80, "hidden": 14400, "vocab": 250000}
    model = model_of({**ROW, "model": stated})
    assert (model.heads, model.head_dim) == (120, 120)


def test_the_product_knows_no_source() -> None:
    row = {**ROW, "framework": "Megatron-DeepSpeed"}
    for source in FACTS:
        named = {**row, "source": source, "where": f"{source} VIA-Research/vTrain bigscience"}
        assert predict(named) == predict(row)


def test_torchtitan_compiles_its_loss_from_2025_on() -> None:
    row = ROW | {"framework": "torchtitan", "options": "compile"}
    new = row | {"framework": "torchtitan 2025-06"}
    assert framework_of(row)[0].logit_bytes == 12.0
    assert framework_of(new)[0].logit_bytes == 4.0
    assert framework_of(new | {"options": ""})[0].logit_bytes == 12.0
    later = row | {"cluster": {"gpu": "H200", "num_gpus": 8}}
    assert framework_of(later)[0].logit_bytes == 4.0
    assert framework_of(later | {"framework": "torchtitan 2024-12"})[0].logit_bytes == 12.0
    assert predict(new)["memory_gb"] < predict(row)["memory_gb"]


def test_a_known_model_cut_short_keeps_its_attention_and_its_dense_layers() -> None:
    stated = {"name": "deepseek-v3", "layers": 4, "hidden": 7168, "experts": 256, "topk": 8}
    model, known = model_of(ROW | {"model": stated}), find_model("deepseek-v3")
    assert model.layers == 4
    assert model.latent == known.latent
    assert model.experts is not None
    assert known.experts is not None
    assert model.experts.num_dense_layers == 1
    assert model.expert_params == known.expert_params
    two = model_of(ROW | {"model": stated | {"dense_layers": 2}})
    assert two.experts is not None
    assert two.experts.num_dense_layers == 2
