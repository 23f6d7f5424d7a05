"""`plan --emit`, `--check` and `--collective` as a user runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.plan.cli import options
from stepscope.plan.collective import KINDS
from stepscope.plan.launch.emit import TARGETS
from tests.wording import mentions

SMALL = ("--model", "llama3-8b", "--cluster", "1x8xH100", "--seq", "4096", "--global-batch", "64")


def document_of(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, Any]:
    assert main(["plan", *arguments, "--format", "json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["plan", *arguments]) == code
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    return text


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_the_options_name_what_there_is() -> None:
    assert set(options.TARGETS) == set(TARGETS)
    assert options.COLLECTIVES == KINDS


FITS = ("--model", "gpt2", *SMALL[2:4], "--seq", "1024", "--global-batch", "64")
"""Small enough for plain data ranks."""


@pytest.mark.parametrize("target", options.TARGETS)
def test_files_are_written_once_and_nothing_is_overwritten(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    asked = (*(SMALL if target == "torchtitan" else FITS), "--emit", target, "--out", str(folder))
    document = document_of(capsys, *asked)
    assert document["schema"] == "stepscope.launch/1"
    assert (document["target"], document["fits"]) == (target, True)
    for file in document["files"]:
        assert (folder / file["name"]).read_text() == file["text"]
        assert os.access(folder / file["name"], os.X_OK) is file["executable"]
    assert "nothing is overwritten" in refused(capsys, *asked)


def test_without_a_folder_the_files_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *SMALL, "--emit", "deepspeed")
    assert "ds_config.json" in text
    assert '"train_batch_size": 64,' in text


def test_a_named_layout_is_written_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    named = document_of(capsys, *SMALL, "--emit", "fsdp2", "--explain", "tp1-pp1-dp8-mb1-z3-full")
    assert named["layout"] == "tp1-pp1-dp8-mb1-z3-full"
    assert named["framework"] == "fsdp"
    message = refused(capsys, *SMALL, "--emit", "fsdp2", "--explain", "tp2-pp1-dp4-mb1-z3")
    assert mentions(message, "tp2", "tensor ranks")
    assert "--emit torchtitan" in message


def test_where_nothing_fits_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    big = ("--model", "llama3-70b", *SMALL[2:], "--emit", "torchrun", "--out", str(folder))
    assert mentions(printed(capsys, *big, code=1), "no layout of llama3-70b")
    assert not folder.exists()


def test_a_configuration_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds_config.json"
    zero = {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 500_000}
    config = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 1,
              "gradient_accumulation_steps": 16, "zero_optimization": zero}  # fmt: skip
    path.write_text(json.dumps(config))
    where = ("--check", str(path), "--model", "llama3-8b", "--seq", "4096", "--cluster")
    document = document_of(capsys, *where, "2x8xH200")
    assert document["schema"] == "stepscope.check/1"
    faults = {fault["code"]: fault for fault in document["faults"]}
    assert {"precision", "small-buckets"} <= set(faults)
    assert faults["precision"]["seconds"] > 0.5 * document["step_s"]["value"]
    step = document["step_s"]
    assert step["low"] < step["value"] < step["high"]
    text = printed(capsys, *where, "1x8xH100", code=1)
    assert mentions(text, "batch sizes", "not multiply")
    bare = document_of(capsys, "--check", str(path))
    assert bare["missing"] == ["--model", "--cluster", "--seq"]
    assert bare["step_s"] is None
    assert "no such file" in refused(capsys, "--check", str(tmp_path / "none.json"))
    assert "leave out --emit" in refused(capsys, "--check", str(path), "--emit", "fsdp2")


def test_a_collective_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--collective", "all_reduce", "--bytes", "100MB")
    document = document_of(capsys, *asked, "--ranks", "64")
    assert document["schema"] == "stepscope.collective/1"
    assert document["bytes"] == 100e6
    assert {way["algorithm"] for way in document["ways"]} == {"ring", "tree", "nvls-tree"}
    assert document["advice"] is None
    sizes = [cross["bytes"] for cross in document["crossovers"]]
    assert sizes
    assert sizes == sorted(sizes)
    text = printed(capsys, *asked, "--cluster", "2x8xA100@efa")
    assert "No advice on NCCL_ALGO" in text
    assert "on efa" in text
    gib = document_of(capsys, "--collective", "all_gather", "--bytes", "1GiB", "--ranks", "8")
    assert gib["bytes"] == 2**30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--collective", "all_reduce", "--ranks", "8"), "--bytes 100MB"),
        (("--collective", "all_reduce", "--bytes", "1MB"), "needs --ranks"),
        (("--bytes", "1MB"), "are of --collective"),
        (("--collective", "all_reduce", "--bytes", "1MB", "--ranks", "8", "--model", "gpt2"),
         "of no model"),
        (("--collective", "all_reduce", "--bytes", "1MB", "--ranks", "8", "--measured", "Tree"),
         "ALGO=FILE"),
    ],
)  # fmt: skip
def test_a_collective_that_makes_no_sense_is_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *arguments)
