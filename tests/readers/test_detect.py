"""What a job's output holds after its first bytes: every kind of line is found wherever it stands,
and counted once."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from stepscope.errors import FormatError
from stepscope.readers import detect, stream
from stepscope.readers.auxiliary import read_auxiliary
from stepscope.readers.detect import refuse_unknown
from stepscope.readers.format import Source
from stepscope.readers.inputs import FoundSources, find_sources
from stepscope.readers.stream import BLOCK_BYTES
from stepscope.recordings.nccl.log import read as read_nccl_logs
from tests.readers.test_formats import MEGATRON, NCCL
from tests.recordings.compiler.test_torch_logs import broken, recompile
from tests.recordings.job_log.test_log import NEW_OOM

PRINTS = "".join(
    f"epoch 0 batch {n:6d}: loss {2.0 - n / 1e4:.4f}, accuracy {n / 1e4:.4f}\n" for n in range(4000)
)
LONG_PRINTS = PRINTS * (BLOCK_BYTES // len(PRINTS) + 1)
"""More than is looked at in one piece."""
COMPILER = recompile("L['x'].size()[0] == 4", ident="0/1") + recompile(
    "L['x'].size()[0] == 5", ident="0/2"
)
STEPS = "".join(MEGATRON.format(n=n) for n in range(1, 40))
assert len(PRINTS) > 3 * (64 << 10)


def names_of(found: FoundSources) -> list[str | None]:
    return [*(source.format for source in found.others), *("nccl" for _ in found.logs)]


def names_in(path: Path, text: str) -> list[str | None]:
    path.write_text(text)
    with find_sources([path]) as found:
        assert not found.sources
        return names_of(found)


@pytest.mark.parametrize(
    ("late", "name"),
    [(COMPILER, "torch-logs"), (STEPS, "training-log"), (NEW_OOM, "job-log"), (NCCL, "nccl")],
)
def test_a_kind_that_begins_after_hours_of_prints_is_found(
    tmp_path: Path, late: str, name: str
) -> None:
    assert names_in(tmp_path / "job.log", PRINTS + late + PRINTS) == [name]
    assert names_in(tmp_path / "stdout", PRINTS + late) == [name], (
        "a file that was named, whatever its name"
    )


def test_one_file_gives_every_readers_facts_once(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    text = (
        STEPS
        + PRINTS
        + COMPILER
        + broken("model.py:61", "Unsupported Tensor.item() call")
        + PRINTS
        + NCCL * 3
        + NEW_OOM
    )
    log.write_bytes(gzip.compress(text.encode()))
    with find_sources([tmp_path, log]) as found:
        assert names_of(found) == ["torch-logs", "training-log", "job-log", "nccl"]
        beside, nccl = read_auxiliary(found.others), read_nccl_logs(found.logs)
    assert beside is not None
    assert beside.notes == ()
    assert beside.compiler is not None
    assert beside.training is not None
    (function,) = beside.compiler.functions()
    assert (function.name, function.recompiles, len(beside.compiler.break_counts())) == ("f", 2, 1)
    assert (beside.training.step_ns, len(beside.training.logs[0].steps)) == (451_000_000, 39)
    (output,) = beside.training.outputs
    assert (output.num_read, len(output.failures), output.said) == (1, 1, ())
    assert output.failures[0].line == text.count("\n")
    assert (nccl.num_messages, len(nccl.connections)) == (3, 1)


def test_what_stands_in_two_blocks_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_bytes = 1 << 18
    monkeypatch.setattr(stream, "BLOCK_BYTES", block_bytes)
    first = recompile("L['x'].size()[0] == 4").splitlines()[0] + "\n"
    for before in (3, 60, 100):
        fill = LONG_PRINTS[: block_bytes - before - 1] + "\n"
        assert names_in(tmp_path / "job.log", fill + first) == ["torch-logs"]


def test_a_text_in_which_nobody_speaks_is_refused_with_what_to_record(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(PRINTS)
    with find_sources([path]) as found:
        (source,) = found.sources
        assert (source.format, found.others, found.logs) == (None, (), ())
        with pytest.raises(FormatError, match=r"job's own output.*stepscope run"):
            refuse_unknown(source)


@pytest.mark.parametrize(
    ("name", "start"),
    [("x.py", ""), ("x.md", ""), ("x.log", '{"a": 1}\n'), ("x.log", "<html>"), ("x.json", "")],
)
def test_what_is_no_output_is_not_looked_at(tmp_path: Path, name: str, start: str) -> None:
    path = tmp_path / name
    path.write_text(start + PRINTS + NEW_OOM)
    with find_sources([path]) as found:
        assert names_of(found) == []


def test_in_a_folder_a_file_is_looked_at_that_is_named_like_a_log(tmp_path: Path) -> None:
    (tmp_path / "slurm-17.out").write_text(PRINTS + NEW_OOM)
    (tmp_path / "corpus.dat").write_text(PRINTS + NEW_OOM)
    with find_sources([tmp_path]) as found:
        assert [(Path(source.label).name, source.format) for source in found.others] == [
            ("slurm-17.out", "job-log")
        ]


def test_a_text_beyond_the_limit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "MAX_BYTES", BLOCK_BYTES)
    path = tmp_path / "job.log"
    path.write_text(STEPS + LONG_PRINTS + NEW_OOM)
    notes: list[str] = []
    source = Source(path=path, label="job.log")
    assert detect.kinds_in(source, {"training-log"}, notes) == frozenset()
    assert f"{BLOCK_BYTES:,} bytes" in notes[0]
    assert "tail" in notes[0]


def test_nsights_json_without_what_is_read_says_what_to_export_instead(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"Type":79,"CudaEvent":{"startNs":"1"}}\n{"NvtxEvent":{"Text":"a"}}\n')
    source = Source(path=path, label="run.json")
    (each,) = detect.detect(source, [])
    assert each.name == "nsys-json"
    read = each.reader().read_trace
    assert read is not None
    with pytest.raises(FormatError, match="nsys export --type sqlite"):
        read(source, None)
