"""The emitted training script, really started: the planned parameters, two ranks over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.plan.catalog import find_model
from stepscope.plan.launch.emit import launch_of
from tests.capture.jobs import LIGHT, WHOLE
from tests.installed import need
from tests.plan.launch.launch_cases import TOY, chosen, job_of, written
from tests.ports import free_port
from tests.waiting import LONGEST_S

need("torch")
COUNT = f"""
{LIGHT}
import json, os
torch.set_default_device("meta")
counts = []
for folder in sys.argv[1:]:
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.modules.pop("train", None)
    import train
    counts.append(sum(p.numel() for p in set(train.Decoder().parameters())))
    sys.path.remove(folder)
print(json.dumps(counts))
"""

TWO_RANKS = """
import gc, os, sys
os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
os.environ["MASTER_PORT"] = sys.argv[1]
ranks = []
for rank in "01":
    os.environ.update(RANK=rank, LOCAL_RANK=rank)
    ranks.append(os.fork())
    if ranks[-1] == 0:
        break
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks))
import train
"""
"""One torch for both ranks, imported before they part."""

ORDERLY = """
end = train.dist.destroy_process_group
def end_group():
    kind = torch.nn.parallel.DistributedDataParallel
    left = [type(one) for one in gc.get_objects() if type(one) is kind]
    assert not left, "where it has the group last, it waits for gloo's thread for ever, at times"
    end()
train.dist.destroy_process_group = end_group
train.main()
"""
"""The script, and a look at what is there when the group ends."""


def emitted(target: str, folder: Path, **parts: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(TOY))
    job = job_of(
        target,
        str(folder / "config.json"),
        "1x2xH100",
        seq_len=32,
        global_batch=8,
        precision="fp32",
    )
    return written(launch_of(target, job, chosen(job, micro_batch=2, **parts)), folder)


def started(folder: Path, *command: str) -> dict[str, Any]:
    told = {"STEPS": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **told}
    run = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = run.stdout.strip().splitlines()
    losses = [float(line.split()[3]) for line in lines if line.startswith("step ")]
    assert len(losses) == 3
    assert all(4.0 < loss < 8.0 for loss in losses)
    result: dict[str, Any] = json.loads(lines[-1])
    return result


@pytest.mark.parametrize(
    ("target", "parts", "before"),
    [
        ("torchrun", {}, LIGHT),
        ("fsdp2", {"zero_stage": 3, "recompute": "full", "recompute_layers": 1}, WHOLE),
    ],
    ids=["torchrun", "fsdp2"],
)
def test_two_ranks_train_over_gloo(
    target: str, parts: dict[str, Any], before: str, tmp_path: Path
) -> None:
    folder = emitted(target, tmp_path, **parts)
    (folder / "orderly.py").write_text(before + TWO_RANKS + ORDERLY)
    result = started(folder, sys.executable, "orderly.py", str(free_port()))
    assert result["measured"]["step_s"] > 0
    assert result["planned"]["step_s"] > 0


def test_two_ranks_train_under_accelerate(tmp_path: Path) -> None:
    need("accelerate")
    folder = emitted("accelerate", tmp_path, zero_stage=3)
    config = ("--config_file", "accelerate.yaml", "--cpu", "train.py")
    launcher = (sys.executable, "-m", "accelerate.commands.launch")
    assert started(folder, *launcher, *config)["measured"]["step_s"] > 0


def test_the_scripts_have_the_planned_parameters(tmp_path: Path) -> None:
    """Biases, tied heads, learned positions and grouped heads: counted by PyTorch itself."""
    names = ["smollm2-135m", "gpt2", "qwen2.5-0.5b"]
    folders = []
    for name in names:
        job = job_of("torchrun", name, "1x8xH100", seq_len=1024)
        (tmp_path / name).mkdir()
        folders.append(str(written(launch_of("torchrun", job, chosen(job)), tmp_path / name)))
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNT, *folders],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout) == [find_model(name).num_params for name in names]
