"""However a text comes, out of a terminal, a mail or a Windows shell, its answer is the same."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.field import texts
from tests.field.asking import ask
from tests.field.texts import PASTED
from tests.wording import mentions

SHELL = "\x1b]0;me@gpu: ~\x07\x1b[01;32mme@gpu\x1b[00m:\x1b[01;34m~\x1b[00m$ "
WAYS: dict[str, Callable[[str], str]] = {
    "Windows' line ends": lambda text: text.replace("\n", "\r\n"),
    "a mail": lambda text: f"Hi,\n\nthis is it:\n\n{_each(text, '    ')}\nAny idea?\nMe\n",
    "a quotation": lambda text: f"On Tuesday somebody wrote:\n{_each(text, '> ')}",
    "a fence": lambda text: f"What I see:\n\n```text\n{text}```\n\nThanks\n",
    "a prompt": lambda text: f"(base) me@gpu-3:~/job$ some --tool\n{text}(base) me@gpu-3:~/job$ \n",
    "a container's prompt": lambda text: f"root@0a1b2c:/workspace# tool\n{text}root@0a1b2c:/# ",
    "Python's prompt": lambda text: f">>> print(it)\n{text}>>> \n",
    "colours": lambda text: f"{SHELL}tool\n{_each(text, chr(27) + '[0m')}{SHELL}",
    "a page's spaces": lambda text: text.replace("    ", "\xa0\xa0\xa0 "),
    "the mark of UTF-8": lambda text: "\ufeff" + text,
}
TEXTS = ("docker0", "graph_sizes", "memory_summary", "nsys_stats", "perf_report", "rocm_bandwidth")


def _each(text: str, before: str) -> str:
    return "".join(before + line for line in text.splitlines(keepends=True))


def _text(name: str) -> str:
    return (PASTED / f"{name}.txt").read_text()


def _found(capsys: pytest.CaptureFixture[str], path: Path, data: bytes) -> list[str]:
    path.write_bytes(data)
    return re.findall(r"^  \d+\. ([\w-]+)", ask(capsys, "diagnose", path), re.MULTILINE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TEXTS)
def test_the_way_changes_nothing(
    name: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = _text(name)
    found = _found(capsys, tmp_path / "plain.txt", text.encode())
    assert _found(capsys, tmp_path / "sent.txt", WAYS[way](text).encode()) == found


def test_a_redirection_of_powershell_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _text("nsys_stats").encode("utf-16")
    assert "fp32-matmul" in _found(capsys, tmp_path / "stats.txt", data)


@pytest.mark.parametrize("between", ["\n\n", "\nme@gpu:~$ tool --flag\n"])
@pytest.mark.parametrize("pair", [*permutations(("nsys_stats", "docker0", "shm"), 2)])
def test_two_texts_in_one_are_both_judged(
    pair: tuple[str, str], between: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [_found(capsys, tmp_path / "one.txt", _text(name).encode()) for name in pair]
    both = between.join(map(_text, pair)).encode()
    assert set(_found(capsys, tmp_path / "both.txt", both)) == {*alone[0], *alone[1]}


def test_lines_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A long path's lines are broken elsewhere.
    monkeypatch.chdir(tmp_path)
    path = Path("job.txt")
    path.write_text(f"```\n{texts.dmon(95, 42)}```\n\n{_text('shm')}")
    number = 1 + path.read_text().split("\n").index(_text("shm").split("\n")[0])
    assert mentions(ask(capsys, "diagnose", path, "-v"), f"job.txt:{number}: Unexpected bus")


def test_stdin_is_an_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped = io.BytesIO(_text("nsys_stats").encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=piped))
    assert "fp32-matmul" in ask(capsys, "diagnose", "-")
