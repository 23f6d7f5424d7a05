"""The flight recorder's dumps: real ones of gloo, formed ones of NCCL, and damaged ones."""

from __future__ import annotations

import json
import pickle  # noqa: TID251 - of our own files
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.nccl import FlightFrame
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.flight import dump
from tests.flight_dumps import NCCL, dump_bytes, entry, read_folder, real, write_case, write_dumps
from tests.recording_texts import texts_of
from tests.wording import any_mentions, mentions


def samples() -> Iterator[tuple[str, str, bytes]]:
    for case in ("skip/pickle", "order/pickle", "send/json"):
        name, data = min(real()[case].items())
        yield "flight-recorder", name, data
    yield "flight-recorder", "nccl_rank_0", real(NCCL)["send/pickle"]["nccl_trace_rank_0"]
    open_send = entry(3, "send 0->1", state="scheduled")
    yield "flight-recorder", "formed_rank_0", dump_bytes([entry(0), entry(1), open_send])


def source(path: Path) -> Source:
    return Source(path=path, label=str(path))


def test_real_pickle_has_its_collectives_and_lines(tmp_path: Path) -> None:
    first = read_folder(write_case(tmp_path, "skip/pickle"))[0]

    raw = pickle.loads(real()["skip/pickle"]["nccl_trace_rank_0"])  # noqa: S301
    assert (first.rank, first.backend) == (0, "gloo")
    assert first.num_entries == len(first.calls) == len(raw["entries"]) == 7
    assert first.is_from_start
    assert first.has_stacks
    last = first.calls[-1]
    assert (last.op, last.sequence, last.input_sizes) == ("all_reduce", 7, ((4096,),))
    assert last.where_words == "exchange, train.py:66"
    assert first.groups[0].ranks == (0, 1, 2, 3)


def test_json_and_pickle_of_a_rank_hold_the_same_calls(tmp_path: Path) -> None:
    pickled = read_folder(write_case(tmp_path / "a", "chain/pickle"))
    written = read_folder(write_case(tmp_path / "b", "chain/json"))

    for one, other in zip(pickled, written, strict=True):
        assert [(c.op, c.sequence, c.group, c.input_sizes) for c in one.calls] == [
            (c.op, c.sequence, c.group, c.input_sizes) for c in other.calls
        ]
        assert not other.has_stacks


def test_of_two_dumps_of_a_rank_the_one_with_stacks_is_used(tmp_path: Path) -> None:
    write_case(tmp_path, "skip/json")
    write_case(tmp_path, "skip/pickle")

    recording = dump.read([source(path) for path in sorted(tmp_path.iterdir())]).recordings[0]

    assert [each.rank for each in recording.dumps] == [0, 1, 2, 3]
    assert all(each.has_stacks for each in recording.dumps)
    assert sum("two dumps" in note for note in recording.notes) == 4


def test_a_pickle_that_would_run_code_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    write_case(tmp_path, "skip/pickle")
    hostile = tmp_path / "nccl_trace_rank_0"
    hostile.write_bytes(
        pickle.dumps({"profiling_name": 1, "collective_seq_id": Path("x"), "entries": []}, 2)
    )
    assert dump.is_mine(hostile.read_bytes(), hostile.name)

    recording = dump.read([source(path) for path in sorted(tmp_path.iterdir())]).recordings[0]

    assert [each.rank for each in recording.dumps] == [1, 2, 3]
    assert any_mentions(recording.notes, "nothing", "was run")
    with pytest.raises(FormatError, match="was run"):
        dump.read([source(hostile)])


def test_a_truncated_dump_costs_itself_alone(tmp_path: Path) -> None:
    write_case(tmp_path, "skip/pickle")
    path = tmp_path / "nccl_trace_rank_2"
    path.write_bytes(path.read_bytes()[:-40])

    recording = dump.read([source(each) for each in sorted(tmp_path.iterdir())]).recordings[0]

    assert [each.rank for each in recording.dumps] == [0, 1, 3]
    assert any_mentions(recording.notes, "damaged")


def test_entries_of_other_shapes_are_counted(tmp_path: Path) -> None:
    good = entry(1, input_sizes="x", frames=[None, {"line": "?"}], process_group=None, state=7)
    write_dumps(tmp_path, {5: dump_bytes([7, {"record_id": -1}, good])})  # type: ignore[list-item]

    recording = dump.read([source(tmp_path / "nccl_trace_rank_5")]).recordings[0]

    assert [call.record for call in recording.dumps[0].calls] == [1]
    assert any_mentions(recording.notes, "2 entries", "not be read")


def test_a_kineto_trace_with_process_groups_is_not_claimed() -> None:
    text = json.dumps({"distributedInfo": {"pg_config": []}, "traceEvents": []}).encode()
    assert not dump.is_mine(text, "trace.json")


def test_the_first_version_has_one_number_and_no_groups(tmp_path: Path) -> None:
    old = {
        "version": "1.1",
        "entries": [
            {
                "record_id": at,
                "pg_id": 0,
                "seq_id": at + 1,
                "profiling_name": "nccl:all_reduce",
                "input_sizes": ((8,),),
                "state": "scheduled" if at else "completed",
                "frames": [],
            }
            for at in range(2)
        ],
    }
    data = pickle.dumps(old, 2)
    assert dump.is_mine(data, "nccl_trace_rank_1")
    (read,) = read_folder(write_dumps(tmp_path, {1: data}))

    assert [call.sequence for call in read.calls] == [1, 2]
    assert read.groups[0].label == "group 0"


def test_autograds_thread_is_named_where_there_is_no_python_stack(tmp_path: Path) -> None:
    call = entry(0, frames=[], thread_name="pt_autograd_0", state="started")
    write_dumps(tmp_path, {0: dump_bytes([call])})

    assert mentions(read_folder(tmp_path)[0].calls[0].where_words, "backward", "autograd")


def test_the_report_shows_the_last_collective_of_each_rank(tmp_path: Path) -> None:
    write_case(tmp_path, "skip/pickle")
    (text,) = texts_of(dump.read([source(path) for path in sorted(tmp_path.iterdir())]))

    assert ("group", "default_pg: rank 0-3") in text.pairs
    rows = {row[0]: row for row in text.tables[0].rows}
    assert rows["2"][1:3] == ("barrier", "7")
    assert rows["0-1, 3"][-1] == "exchange, train.py:66"


def test_objects_that_many_entries_share_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle names an object again for two bytes: the work is bounded by the file, not by what it
    would be written out."""
    made: list[str] = []

    def frame(*fields: object) -> FlightFrame:
        made.append("frame")
        return FlightFrame(*fields)  # type: ignore[arg-type]

    monkeypatch.setattr(dump, "FlightFrame", frame)
    shared = entry(0)
    shared["frames"] = [shared["frames"][0]] * 1_000
    alike = [entry(record) | {"frames": shared["frames"]} for record in range(300)]
    for entries, most in (([shared] * 5_000, dump.MAX_FRAMES), (alike, dump.MAX_FRAMES)):
        made.clear()
        write_dumps(tmp_path, {0: dump_bytes(entries)})
        (read,) = read_folder(tmp_path)
        assert len(read.calls) == len(entries)
        assert 0 < len(made) <= most
