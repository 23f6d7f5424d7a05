"""The registry of formats: each has its reader, no file is claimed by two, a job's output is read
for all that is in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stepscope.errors import StepscopeError
from stepscope.readers.auxiliary import read_auxiliary
from stepscope.readers.detect import format_of, formats_of, head_of
from stepscope.readers.format import AUXILIARY, COMMS, JUDGED, TRACE, Format, Source
from stepscope.readers.formats import FORMATS
from stepscope.readers.inputs import find_sources
from tests.shared_data import DEMO, SAMPLES, SHARED, lab_traces, needs_shared, shared_traces

KNOWN = {
    "formats/ncu_raw.csv": "ncu-csv",
    "formats/ncu_details.csv": "ncu-csv",
    "formats/memory_snapshot.pickle.zst": "memory-snapshot",
    "formats/memory_stats.json": "memory-stats",
    "formats/nvidia_smi.csv": "nvidia-smi",
    "formats/dmon.txt": "nvidia-smi",
    "formats/torch_logs.txt": "torch-logs",
    "formats/ddp_log.txt": "job-log",
    "formats/topo.txt": "topology",
    "formats/peaks.json": "measured-rates",
}
PUBLIC = {
    "public/hta/memory_timeline.raw.gz": "memory-timeline",
    "public/tracelens/rocprofv3_908_results.json.gz": "rocprofv3-json",
}
NCCL = "node0:410:432 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/IPC\n"
MEGATRON = (
    " [2026-11-16 08:00:00] iteration {n:8d}/    1000 | consumed samples: {n:12d} | elapsed time "
    "per iteration (ms): 451.0 | "
    "learning rate: 1.0E-04 | global batch size:     8 | lm loss: 2.0E+00 | number of skipped "
    "iterations:   0 |\n"
)


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
def test_each_format_has_a_reader_and_says_how_to_record_it(each: object) -> None:
    assert each in FORMATS
    assert isinstance(each, Format)
    assert each.kind in (TRACE, *AUXILIARY, COMMS)
    assert set(each.judges) <= set(JUDGED)
    assert each.judges
    assert each.record.strip()
    reader = each.reader()
    reads = (reader.read_trace, reader.read_file, reader.read_together)
    assert sum(read is not None for read in reads) == 1
    assert (reader.read_trace is not None) == (each.kind == TRACE)
    assert reader.is_mine(b"", "nothing") is False
    assert reader.is_mine(b"hello world\n", "notes.txt") is False
    assert (reader.is_in is not None) == each.is_output


def test_names_are_given_once() -> None:
    assert len({each.name for each in FORMATS}) == len(FORMATS)


def claimed_by_one(file: Path, expected: str) -> None:
    head = head_of(Source(path=file, label=str(file)))
    claims = [each.name for each in FORMATS if each.reader().is_mine(head, file.name)]
    # A log that another reader has may have PyTorch's own words in it too, after its first bytes.
    assert [name for name in claims if name != "job-log" or expected != "torch-logs"] == [expected]
    found = format_of(head, file.name)
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize("path", KNOWN)
def test_a_real_file_is_what_it_is_and_nothing_else(path: str) -> None:
    claimed_by_one(SAMPLES / path, KNOWN[path])


def claimed_by_kineto(trace: Path) -> None:
    found = formats_of(head_of(Source(path=trace, label=str(trace))), trace.name)
    assert [each.name for each in found] == ["kineto"], trace


def test_no_trace_of_the_profiler_is_claimed_by_another() -> None:
    for trace in (DEMO, *lab_traces("*/*.pt.trace.json.zst")):
        claimed_by_kineto(trace)


@needs_shared
def test_public_files_are_what_they_are_and_nothing_else() -> None:
    for path, expected in PUBLIC.items():
        claimed_by_one(SHARED / path, expected)
    traces = shared_traces("public/*/*trace*.json.gz")
    assert traces
    for trace in traces:
        claimed_by_kineto(trace)


def test_a_jobs_output_is_read_for_all_that_is_in_it(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(NCCL * 3 + "".join(MEGATRON.format(n=n) for n in range(1, 40)))
    with find_sources([log]) as found:
        assert [source.path for source in found.logs] == [log]
        assert [source.format for source in found.others] == ["training-log", "job-log"]
        beside = read_auxiliary(found.others)
    assert beside is not None
    assert beside.training is not None
    assert beside.training.step_ns == 451_000_000


def test_a_damaged_file_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps({"allocated_bytes.all.peak": 5, "reserved_bytes.all.peak": 7})
    )
    whole = gzip.compress(b"\x80\x04" + b"]" * 400)
    (tmp_path / "b.pickle.gz").write_bytes(whole[: len(whole) // 2])
    with find_sources([tmp_path / "a.json"]) as found:
        names = [source.format for source in found.others]
    assert names == ["memory-stats"]
    sources = [
        Source(path=tmp_path / "a.json", label="a", format="memory-stats"),
        Source(path=tmp_path / "b.pickle.gz", label="b", format="memory-snapshot"),
    ]
    beside = read_auxiliary(sources)
    assert beside is not None
    assert [recording.format for recording in beside.recordings] == ["memory-stats"]
    assert len(beside.notes) == 1
    assert "b" in beside.notes[0]


def test_an_unknown_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    from stepscope.readers.detect import refuse_unknown

    note = tmp_path / "note.txt"
    note.write_text("hello\n")
    with pytest.raises(StepscopeError, match="stepscope formats"):
        refuse_unknown(Source(path=note, label=str(note)))
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"\x00\x01binary")
    with pytest.raises(StepscopeError, match="nsys export --type sqlite"):
        refuse_unknown(Source(path=report, label=str(report)))


def test_what_tlparse_writes_beside_its_log_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "raw.log").write_text("hello\n")
    (tmp_path / "chromium_events.json").write_text('[{"name": "x", "ph": "B", "ts": 1}]')
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with find_sources([tmp_path]) as found:
        assert [source.path.name for source in found.sources] == ["trace.json"]
