"""Files are written whole; what is no file stays what it is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.protocol.whole_write import write_whole
from tests.shared_data import DEMO
from tests.wording import mentions


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    write_whole(path, b"after")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_bytes() == b"after"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"x" * 100_000)
    reader.join()
    assert read == [b"x" * 100_000]
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["a" * 300, "no/such/folder.html"])
def test_a_report_that_cannot_be_written_says_where_and_what_to_do(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(DEMO), "--no-cache", "-o", str(tmp_path / name)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("stepscope: cannot write ")
    assert mentions(said, "-o")
