"""Megatron-LM's flags, read by its own code."""

from __future__ import annotations

import os
import shlex
from typing import Any

import pytest

from stepscope.plan.catalog import find_model
from stepscope.plan.launch.emit import launch_of
from tests.installed import need, once_unless
from tests.plan.launch.launch_cases import chosen, job_of, read_by, text_of

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama3-70b", "8x8xH100", {"tp": 4, "pp": 4, "vpp": 2, "zero_stage": 1, "recompute": "full",
                                "is_sequence_parallel": True}),
    ("mixtral-8x7b", "8x8xH100", {"tp": 2, "pp": 4, "ep": 4, "zero_stage": 1,
                                  "is_sequence_parallel": True, "recompute": "selective"}),
    ("deepseek-v3", "32x8xH100", {"ep": 8, "zero_stage": 3}),
    ("gpt2", "1x8xH100", {"zero_stage": 1, "offload": "optimizer"}),
    ("qwen3-8b", "1x8xH100", {"cp": 2, "zero_stage": 1}),
]  # fmt: skip
PARSED = """
import json, sys
sys.path.insert(0, sys.argv.pop(1))
from megatron.training.arguments import parse_args
names = ("num_layers", "hidden_size", "tensor_model_parallel_size",
         "pipeline_model_parallel_size", "context_parallel_size")
made = vars(parse_args())
print(json.dumps([made[name] for name in names]))
"""
CONFIGURED = """
import dataclasses, itertools, json, sys
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import MLATransformerConfig, TransformerConfig
given = {}
for word, after in itertools.pairwise([*sys.argv[1:], "--"]):
    if word.startswith("--"):
        given[word[2:].replace("-", "_")] = True if after.startswith("--") else after
if "recompute_modules" in given:
    given["recompute_modules"] = ["layernorm", "moe_act"]
given = {name: int(value) if str(value).isdigit() else value for name, value in given.items()}
model = MLATransformerConfig if "multi_latent_attention" in given else TransformerConfig
kinds = (model, DistributedDataParallelConfig, OptimizerConfig)
fields = [{field.name for field in dataclasses.fields(kind)} for kind in kinds]
values = {name: given[name] for name in fields[0] & given.keys()
          if not isinstance(given[name], str) or name.startswith("recompute_")}
values |= {"num_moe_experts": given.get("num_experts"), "add_bias_linear": False,
           "pipeline_dtype": torch.bfloat16}
made = model(**values)
print(json.dumps([made.num_layers, sorted(given.keys() - set().union(*fields))]))
"""
OF_THE_PARSER = {
    "ckpt_format", "disable_bias_linear", "global_batch_size", "group_query_attention",
    "max_position_embeddings", "micro_batch_size", "mock_data", "no_gradient_accumulation_fusion",
    "num_experts", "num_virtual_stages_per_pipeline_rank", "position_embedding_type", "seq_length",
    "swiglu", "tokenizer_type", "train_iters", "untie_embeddings_and_output_weights", "vocab_size",
}  # fmt: skip
"""Flags that are no field of megatron-core's configurations."""


def words_of(model: str, cluster: str, layout: dict[str, Any]) -> list[str]:
    job = job_of("megatron", model, cluster, seq_len=1024, global_batch=1024)
    text = text_of(launch_of("megatron", job, chosen(job, **layout)), "megatron-args.sh")
    words = [word.strip("()") for word in shlex.split(text, comments=True)]
    first = next(index for index, word in enumerate(words) if word.startswith("--"))
    return [word for word in words[first:] if word]


@pytest.mark.parametrize(("model", "cluster", "layout"), once_unless("Megatron-LM", CASES))
def test_its_own_parser_takes_the_flags(model: str, cluster: str, layout: dict[str, Any]) -> None:
    """It refuses a flag that it does not know."""
    need("Megatron-LM")
    folder = os.environ["MEGATRON"]
    known = find_model(model)
    widths = [layout.get(name, 1) for name in ("tp", "pp", "cp")]
    made = read_by("torch", PARSED, folder, *words_of(model, cluster, layout))
    assert made == [known.layers, known.hidden, *widths]


@pytest.mark.parametrize(("model", "cluster", "layout"), once_unless("megatron-core", CASES))
def test_cores_configurations_take_the_flags(
    model: str, cluster: str, layout: dict[str, Any]
) -> None:
    layers, unknown = read_by("megatron", CONFIGURED, *words_of(model, cluster, layout))
    assert layers == find_model(model).layers
    assert set(unknown) <= OF_THE_PARSER
