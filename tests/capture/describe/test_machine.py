"""Who the process is, what its machine grants it, and which environment variables are told."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.capture.describe.environment import environment_notes
from stepscope.capture.describe.machine import device_notes, machine_notes
from stepscope.protocol.secrets import MASK, looks_secret
from tests.installed import need


def test_machine_without_proc_has_nones(tmp_path: Path) -> None:
    notes = machine_notes(SimpleNamespace(), tmp_path)
    assert notes["cpu_quota"] is None
    assert notes["cpu_name"] is None
    assert notes["num_threads"] is None
    assert notes["devices"] == []
    assert notes["cpu_count"]


def test_machine_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       2048 kB\nMemFree: 1 kB\n")
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nmodel name : A fast one\n")
    notes = machine_notes(SimpleNamespace(), tmp_path)
    assert notes["ram_bytes"] == 2048 * 1024
    assert notes["cpu_name"] == "A fast one"


def test_devices_are_asked_only_once_cuda_is_set_up() -> None:
    asked: list[int] = []

    def properties(index: int) -> Any:
        asked.append(index)
        return SimpleNamespace(
            name="H200",
            major=9,
            minor=0,
            total_memory=1 << 37,
            multi_processor_count=132,
            uuid=f"0-{index}",
        )

    cuda = SimpleNamespace(
        is_initialized=lambda: False,
        device_count=lambda: 2,
        get_device_properties=properties,
        current_device=lambda: 1,
    )
    assert device_notes(SimpleNamespace(cuda=cuda)) == []
    assert asked == []
    cuda.is_initialized = lambda: True
    notes = device_notes(SimpleNamespace(cuda=cuda))
    assert [note["index"] for note in notes] == [0, 1]
    assert notes[0]["capability"] == "9.0"
    assert notes[0]["memory_bytes"] == 1 << 37
    assert [(note["uuid"], note["is_used"]) for note in notes] == [("0-0", False), ("0-1", True)]


def test_environment_tells_only_what_bears_on_speed() -> None:
    environ = {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "8",
        "HOME": "/root",
        "AWS_REGION": "x",
        "SLURM_JOB_USER": "me",
        "RANK": "3",
    }
    assert environment_notes(environ) == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8", "RANK": "3"}


@pytest.mark.parametrize(
    "name",
    ["TORCH_API_KEY", "PYTHON_KEYRING_BACKEND", "NCCL_AUTH", "TORCH_HUB_TOKEN", "CUDA_PASSWORD"],
)
def test_environment_masks_names_that_sound_secret(name: str) -> None:
    assert environment_notes({name: "1"}) == {name: MASK}


def test_environment_cuts_long_values_and_keeps_tokenizers() -> None:
    notes = environment_notes({"PYTHONPATH": "/a" * 500, "TOKENIZERS_PARALLELISM": "false"})
    assert len(notes["PYTHONPATH"]) == 200
    assert notes["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize(
    "value",
    [
        "https://me:hunter2@example.com/simple",
        "tcp://token@10.0.0.1:29500",
        "hf_" + "abcdefghij",
        "sk-" + "proj12345678",
        "q8Zr2Lw91kVx0TtYb6NcE3pA",
        "/opt/" + "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b" + "/lib",
        "password=hunter2",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCY3XAMPLE1K9",
    ],
)
def test_secret_values_are_known(value: str) -> None:
    assert looks_secret(value)


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments:True,max_split_size_mb:512",
        "/usr/lib/python3.11/site-packages/torch/lib:/usr/local/cuda-12.8/lib64",
        "GPU-8f2c1a4e-5b6d-7e8f-9a0b-1c2d3e4f5a6b,GPU-00000000-1111-2222-3333-444455556666",
        "0,1,2,3,4,5,6,7",
        "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1",
        "^docker0,lo",
        "worker-0.training-job.default.svc.cluster.local",
    ],
)
def test_ordinary_values_are_told(value: str) -> None:
    assert not looks_secret(value)


def test_process_notes_are_plain_and_carry_both_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    need("torch")
    from stepscope.capture.describe.rank import process_notes

    for name, value in {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["/home/me/train.py", "--token", "hunter2"])
    notes = json.loads(json.dumps(process_notes()))
    assert (notes["rank"], notes["local_rank"], notes["world_size"], notes["local_world_size"]) == (
        5,
        1,
        8,
        4,
    )
    assert notes["perf_ns"] > 0
    assert notes["wall_ns"] > 0
    assert notes["program"] == "train.py"
    assert "hunter2" not in json.dumps(notes)
    assert notes["versions"]["torch"]
    assert notes["machine"]["cpu_count"] >= 1
