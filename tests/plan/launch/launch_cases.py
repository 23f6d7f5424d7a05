"""Jobs and layouts that launches are written of, and how a real package is asked to read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.estimate import Choice, choice_of
from stepscope.plan.framework import find_framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.emit import TARGETS
from stepscope.plan.launch.files import Launch
from stepscope.plan.layout import Layout
from tests.installed import need
from tests.waiting import LONGEST_S

TOY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def job_of(
    target: str, model: str = "llama3-8b", cluster: str = "1x8xH100", **rest: Any
) -> TrainingJob:
    framework = find_framework(TARGETS[target].framework)
    assert framework is not None
    values: dict[str, Any] = {"seq_len": 4096, "global_batch": 64, "framework": framework} | rest
    return TrainingJob(model=find_model(model), cluster=parse_cluster(cluster), **values)


def chosen(job: TrainingJob, **parts: Any) -> Choice:
    """The layout with its estimate; data ranks and micro-batches fill what is left."""
    layout = Layout(**parts)
    dp = job.cluster.num_devices // (layout.tp * layout.cp * layout.pp)
    num_micro = job.global_batch // (dp * layout.micro_batch)
    return choice_of(job, Layout(**parts, dp=dp, num_micro=num_micro))


def text_of(launch: Launch, name: str) -> str:
    return next(file.text for file in launch.files if file.name == name)


def written(launch: Launch, folder: Path) -> Path:
    for file in launch.files:
        (folder / file.name).write_text(file.text)
    return folder


def read_by(package: str, code: str, *arguments: str) -> Any:
    """What the real package makes of it, as JSON on the last line that it prints."""
    need({"megatron": "megatron-core"}.get(package, package))
    environment = dict(
        os.environ, DS_ACCELERATOR="cpu", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.strip().splitlines()[-1])
