"""The page of questions: its examples are run, on recordings under the names that a user gives."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pytest

from stepscope.cli.main import main
from tests.flight_dumps import NCCL, write_case
from tests.recordings.job_log.test_log import LIMITED, TRACED
from tests.shared_data import DEMO, ROOT, SAMPLES, lab_trace, unpacked

PAGE = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
CUT = "  [...]"
"""A line of an example in whose place the output has others."""
NOT_HERE = "not in the repository"
"""What the page says of an example whose recording the tests do not have."""
BEFORE_BLOCK = re.compile(
    r"([^\n]*(?:\n[^\n]+)*)\n\n```text\n\$ stepscope (.*?)\n(.*?)```", re.DOTALL
)
EXAMPLES = [
    (heading, *match)
    for heading, section in re.findall(
        r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE
    )
    for match in BEFORE_BLOCK.findall(section)
]
HELD = [
    (heading, command, shown)
    for heading, said, command, shown in EXAMPLES
    if NOT_HERE not in " ".join(said.split())
]
TRACES = {
    "fp32.json.gz": "single/fp32_no_tf32.slow",
    "pointwise.json.gz": "single/elementwise_chain.slow",
    "trace.json.gz": "single/launch_tiny.slow",
    "tuned.json.gz": "single/healthy.slow",
    "unet.json.gz": "memory/unet_amp_adamw",
    "last-week.json.gz": "single/nchw.fixed",
    "today.json.gz": "single/nchw.slow",
    "traces/rank0.json.gz": "ranks2/ddp_even.slow.rank0",
    "traces/rank1.json.gz": "ranks2/ddp_even.slow.rank1",
    "late/rank0.json.gz": "rank_traces/gloo_late_rank.slow.rank0",
    "late/rank1.json.gz": "rank_traces/gloo_late_rank.slow.rank1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page's user has."""
    files = tmp_path_factory.mktemp("user")
    for name, sample in TRACES.items():
        (files / name).parent.mkdir(exist_ok=True)
        (files / name).write_bytes(gzip.compress(unpacked(lab_trace(sample)), 1))
    (files / "loader.json.gz").write_bytes(DEMO.read_bytes())
    (files / "smi.csv").write_bytes((SAMPLES / "formats" / "nvidia_smi.csv").read_bytes())
    (files / "job.log").write_text(TRACED + LIMITED, encoding="utf-8")
    write_case(files / "dumps", "skip/pickle", NCCL)
    return files


def shown_in_order(shown: str, printed: str) -> bool:
    """Whether the parts between cuts stand in what was printed, each behind the one before."""
    end = 0
    for part in shown.rstrip().split(f"\n{CUT}\n"):
        start = printed.find(part, end)
        if start < 0:
            return False
        end = start + len(part)
    return True


@pytest.mark.parametrize(("heading", "command", "shown"), HELD)
def test_questions_are_answered_as_the_page_says(
    heading: str,
    command: str,
    shown: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    assert shown_in_order(shown, printed), f"{heading}: it prints\n{printed}"


def test_every_question_has_an_example_and_most_are_held() -> None:
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert {heading for heading, *_ in EXAMPLES} == set(headings)
    assert len(EXAMPLES) == PAGE.count("$ stepscope")
    assert len(HELD) > len(EXAMPLES) / 2


def test_lines_in_another_order_or_made_up_are_noticed() -> None:
    assert shown_in_order(f"a\n{CUT}\nc\n", "a\nb\nc\n")
    assert not shown_in_order(f"c\n{CUT}\na\n", "a\nb\nc\n")
    assert not shown_in_order("a\nc\n", "a\nb\nc\n")
