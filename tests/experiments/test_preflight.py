"""What cannot take effect on a machine is known before a run, where it can be known."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.run import LoaderKnobs
from stepscope.experiments.preflight import NEEDS_GPU, ON_CPU, unable, unable_with, unable_words
from stepscope.protocol.settings import SETTINGS
from tests.wording import mentions

PYTHON = ("/usr/bin/python3.11", "train.py")


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_without_a_device_settings_of_a_gpu_are_named_with_their_reason(tmp_path: Path) -> None:
    reasons = unable(["tf32", "num_workers"], PYTHON, {}, tmp_path)
    assert list(reasons) == ["tf32"]
    assert mentions(reasons["tf32"], "TF32", "no CUDA device")
    (words,) = unable_words(reasons)
    assert words.startswith("tf32 ")
    assert mentions(words, reasons["tf32"])
    assert mentions(words, "with a GPU")
    assert "num_threads" in words


@pytest.mark.parametrize("file", ["dev/nvidiactl", "dev/kfd", "dev/dxg"])
def test_where_a_driver_is_nothing_is_ruled_out(tmp_path: Path, file: str) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / file).touch()
    assert unable(["tf32"], PYTHON, {}, tmp_path) == {}
    hidden = unable(["tf32"], PYTHON, {"CUDA_VISIBLE_DEVICES": ""}, tmp_path)
    assert mentions(hidden["tf32"], "CUDA_VISIBLE_DEVICES hides")
    assert unable(["tf32"], PYTHON, {"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == {}


@pytest.mark.parametrize(
    "command",
    [
        ("srun", "python", "train.py"),
        ("ssh", "host", "python"),
        ("bash", "run.sh"),
        ("./train",),
        (),
    ],
)
def test_a_job_that_may_run_elsewhere_is_not_judged(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert unable(["tf32"], command, {}, tmp_path) == {}


def test_the_settings_that_are_named_exist() -> None:
    assert set(NEEDS_GPU) | set(ON_CPU) <= set(SETTINGS)
    assert not set(NEEDS_GPU) & set(ON_CPU)


def test_a_loader_of_an_iterable_dataset_takes_several_workers_only_where_it_splits_it() -> None:
    wanted = {"num_workers": 4, "persistent_workers": True}
    whole = LoaderKnobs(num_workers=0, is_iterable=True, splits_itself=False)
    assert unable_with(whole, wanted).keys() == wanted.keys()
    assert "get_worker_info()" in unable_with(whole, wanted)["num_workers"]
    assert unable_with(replace(whole, num_workers=1), wanted).keys() == wanted.keys()
    for takes in (
        replace(whole, splits_itself=True),
        replace(whole, is_iterable=False),
        replace(whole, num_workers=2),
        None,
    ):
        assert unable_with(takes, wanted) == {}
    assert unable_with(whole, {"num_workers": 1}) == {}
    assert unable_with(whole, {"pin_memory": True}) == {}


def test_where_there_is_no_loader_nothing_of_one_can_be_set() -> None:
    bare = LoaderKnobs(num_workers=0, is_iterable=True, is_bare=True)
    assert unable_with(bare, {"num_workers": 1, "amp": "bf16"}).keys() == {"num_workers"}
