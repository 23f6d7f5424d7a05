"""Reading whole files: what a good one becomes, and what each kind of damage costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.trace import NONE, Kind, Launch, OpInputs
from stepscope.errors import FormatError, InputError, StepscopeError
from stepscope.readers import stream
from stepscope.readers.kineto import json_chunks as feed
from stepscope.readers.kineto.trace import read as read_kineto
from stepscope.readers.trace.assemble import LONGEST_NAME
from tests.builders import HEADER, event, kernel, read, same, source, step_events, trace_text, write
from tests.wording import any_mentions, mentions


def test_a_step_becomes_rows_and_tables(tmp_path: Path) -> None:
    trace = read(tmp_path / "t.json", trace_text())
    assert trace.num_raw_events == len(step_events())
    assert len(trace) == 9
    row = {trace.names[code]: i for i, code in enumerate(trace.name.tolist())}
    gemm = row["gemm"]
    assert (
        trace.start_ns[gemm],
        trace.dur_ns[gemm],
        trace.correlation[gemm],
        trace.stream[gemm],
    ) == (9_000, 20_125, 77, 7)
    launch = trace.details[trace.detail[gemm]]
    assert isinstance(launch, Launch)
    assert launch.grid == (1, 2, 3)
    inputs = trace.details[trace.detail[row["aten::mm"]]]
    assert isinstance(inputs, OpInputs)
    assert inputs.dims == "[[2, 3], []]"
    assert trace.detail[row["Stream Sync"]] == NONE
    collective = trace.collectives[trace.collective[row["ncclDevKernel_AllReduce"]]]
    assert (collective.name, collective.group, collective.in_elements, collective.sequence) == (
        "allreduce",
        "0",
        4,
        3,
    )
    assert trace.size_bytes[row["Memcpy HtoD"]] == 4096
    assert trace.memory is not None
    assert trace.memory.size_bytes.tolist() == [512]
    assert trace.memory.time_ns.tolist() == [50_500]
    assert trace.threads[trace.thread[row["aten::mm"]]].name == 'thread "20"'
    assert trace.notes == ()


def test_the_fields_beside_the_events_are_kept(tmp_path: Path) -> None:
    meta = read(tmp_path / "t.json", trace_text()).meta
    assert (meta.rank, meta.rank_source, meta.world_size) == (3, "distributedInfo", 8)
    assert meta.process_groups == ({"pg_name": "0", "ranks": [0, 1]},)
    assert meta.devices[0].compute_capability == (9, 0)
    assert meta.base_ns == HEADER["baseTimeNanoseconds"]
    assert meta.has_shapes
    assert meta.has_stacks


def test_fields_after_the_events_count_as_well(tmp_path: Path) -> None:
    late = read(tmp_path / "t.json", trace_text(header={}, **HEADER))
    assert late.meta.rank == 3
    assert late.meta.devices[0].num_sms == 132


@pytest.mark.parametrize("indent", [None, 0, 1, 7])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_layout_does_not_matter(tmp_path: Path, indent: int | None, newline: str) -> None:
    plain = read(tmp_path / "t.json", trace_text())
    other = read(
        tmp_path / "u.json",
        b"\xef\xbb\xbf" + trace_text(indent=indent).replace("\n", newline).encode(),
    )
    assert (plain.start_ns == other.start_ns).all()
    assert plain.names == other.names
    assert plain.details[0] is not None
    assert other.notes == ()


def test_a_bare_array_is_a_trace(tmp_path: Path) -> None:
    trace = read(tmp_path / "t.json", json.dumps(step_events()))
    assert len(trace) == 9
    assert trace.notes == ()
    assert trace.meta.rank is None


def test_an_array_that_is_never_closed_keeps_its_events(tmp_path: Path) -> None:
    trace = read(tmp_path / "t.json", json.dumps(step_events())[:-1] + ",\n")
    assert len(trace) == 9
    assert mentions(trace.notes[0], "ends before")


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]", '{"traceEvents":[\n]\n, "a": 1}'])
def test_no_events_is_a_trace_with_a_note(tmp_path: Path, text: str) -> None:
    trace = read(tmp_path / "t.json", text)
    assert len(trace) == 0
    assert trace.num_raw_events == 0
    (note,) = trace.notes
    assert mentions(note, "no events")


def test_two_lists_of_events_are_both_read(tmp_path: Path) -> None:
    one, two = json.dumps([event(ts=1)]), json.dumps([event(ts=2), event(ts=3)])
    trace = read(
        tmp_path / "t.json",
        f'{{"traceEvents": {one}, "record_shapes": 1, "traceEvents": {two}, "with_stack": 1}}',
    )
    assert trace.start_ns.tolist() == [1_000, 2_000, 3_000]
    assert trace.meta.has_shapes
    assert trace.meta.has_stacks
    assert "2 lists of events" in trace.notes[0]


def test_files_glued_together_are_read_with_a_note(tmp_path: Path) -> None:
    trace = read(tmp_path / "t.json", trace_text([event(ts=1)]) + "\n" + trace_text([event(ts=2)]))
    assert trace.start_ns.tolist() == [1_000, 2_000]
    assert trace.meta.rank == 3
    assert "2 lists of events" in trace.notes[0]


def test_arrays_glued_together_are_told(tmp_path: Path) -> None:
    trace = read(tmp_path / "t.json", json.dumps([event()]) + json.dumps([event()]))
    assert len(trace) == 1
    (note,) = trace.notes
    assert mentions(note, "after", "left out")


def test_one_event_a_line_is_refused_with_advice(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(e) for e in step_events())
    with pytest.raises(FormatError, match=r"one event after another.*Put \["):
        read(tmp_path / "t.json", text)


@pytest.mark.parametrize("text", ["", " \n", "\x00\x00"])
def test_nothing_at_all_is_one_clear_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(StepscopeError, match=r"nothing to read|without a list"):
        read(tmp_path / "t.json", text)


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "<html>",
        "\x00\x01\x02x",
        "{}",
        '{"a": [1, 2]}',
        "[1, 2, 3]",
        '["a", null, []]',
        "[[1, 2], [3]]",
    ],
)
def test_what_is_no_trace_is_one_clear_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError, match=r"t\.json.*trace"):
        read(tmp_path / "t.json", text)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot open"):
        read_kineto(source(tmp_path / "none.json"))


def test_every_truncation_keeps_the_complete_events(tmp_path: Path) -> None:
    events = [
        event(
            ts=i,
            name=f"op{i}",
            args={"Input Dims": [[i, 2]], "Input type": ["float"], "nested": [{"name": "x"}]},
        )
        for i in range(2)
    ]
    text = trace_text(events, record_shapes=1).encode()
    start = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    decoder, ends, at = json.JSONDecoder(), [], start
    for _ in events:
        at = decoder.raw_decode(text.decode(), at)[1]
        ends.append(at)
        at += 2
    for cut in range(start, len(text)):
        trace = read(tmp_path / "t.json", text[:cut])
        assert len(trace) == sum(end <= cut for end in ends), cut
        assert trace.meta.rank == 3
        assert any("ends before" in note for note in trace.notes) == (cut <= ends[-1]), cut


def test_a_file_cut_in_its_header_is_an_error(tmp_path: Path) -> None:
    text = trace_text()
    with pytest.raises(FormatError, match="trace events"):
        read(tmp_path / "t.json", text[: text.index('"traceEvents"') + 5])


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        ('"args": {"x": NaN}', True),
        ('"args": {"x": -Infinity}', True),
        ('"args": {"x": 1e999}', True),
        ('"args": {"x": 123456789012345678901234567890}', True),
        ('"args": {"stream": true, "device": [1], "correlation": {}}', True),
        ('"args": null', True),
        ('"args": [1]', True),
        ('"args": {"Python parent id": null, "bytes": "12"}', True),
        ('"args": {"x": "C:\\temp\\q"}', True),
        ('"args": {"x": "line\nbreak\ttab"}', True),
        ('"args": {"x": "\\ud800"}', True),
        ('"args": {"a": 1, "a": 2}, "ts": 5, "ts": 1', True),
        ('"pid": 1.5', True),
        ('"pid": null, "tid": [3]', True),
        ('"tid": -5', True),
        ('"cat": null', True),
        ('"cat": 5', True),
        ('"name": {"a": 1}', True),
        ('"id": 0x12', False),
        ('"args": {"x": "unescaped "quotes" inside"}', False),
        ('"args": {"x": }', False),
        ('"ph": 5', False),
    ],
)
def test_damage_costs_at_most_its_own_event(tmp_path: Path, damage: str, kept: bool) -> None:
    whole = json.dumps(event(ts=1))
    text = f'{{"traceEvents": [{whole}, {whole[:-1]}, {damage}}}, {whole}, {whole}]}}'
    trace = read(tmp_path / "t.json", text)
    assert len(trace) == (4 if kept else 3)
    assert trace.num_raw_events == 4
    assert kept or any("no trace events" in note for note in trace.notes)


@pytest.mark.parametrize("missing", ["cat", "name", "pid", "tid", "args"])
def test_a_missing_field_does_not_cost_the_event(tmp_path: Path, missing: str) -> None:
    trace = read(tmp_path / "t.json", trace_text([event(**{missing: None})]))
    assert len(trace) == 1
    assert trace.unknown == ({"(no category)": 1} if missing == "cat" else {})


def test_bytes_that_are_no_utf8_become_marks(tmp_path: Path) -> None:
    text = trace_text(
        [event(name="caf?"), event(ts=2, name="caf\u00e9"), event(ts=3, name="naïve \u65e5")]
    ).encode()
    trace = read(
        tmp_path / "t.json",
        text.replace(b"caf?", b"caf\xff\xfe").replace(b"na\\u00efve", "na\u00efve".encode()),
    )
    assert [trace.names[code] for code in trace.name.tolist()] == [
        "caf\ufffd\ufffd",
        "caf\u00e9",
        "na\u00efve \u65e5",
    ]


def test_unknown_categories_and_phases_are_counted_by_name(tmp_path: Path) -> None:
    others = [
        {"ph": phase, "name": "c", "pid": 1, "tid": 1, "ts": 1, "args": {"v": 1}}
        for phase in "CCbenNOD"
    ]
    odd = [
        {"ph": "Q", "ts": 1},
        event(cat="npu_kernel"),
        event(cat="mtia_insight"),
        event(cat="npu_kernel"),
    ]
    trace = read(tmp_path / "t.json", trace_text([*others, *odd]))
    assert trace.unknown == {
        "mtia_insight": 1, "npu_kernel": 2, "phase 'Q'": 1, "phase C (counter)": 2,
        "phase D (object)": 1, "phase N (object)": 1, "phase O (object)": 1,
        "phase b (async start)": 1, "phase e (async end)": 1, "phase n (async instant)": 1,
    }  # fmt: skip
    assert len(trace) == 3
    assert set(trace.kind.tolist()) == {Kind.OTHER}
    assert trace.num_raw_events == 12


def test_starts_and_ends_are_paired_per_thread(tmp_path: Path) -> None:
    def edge(ph: str, ts: float, tid: int, name: str = "") -> dict[str, Any]:
        return {
            "ph": ph,
            "cat": "user_annotation",
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": ts,
            "args": {"External id": tid},
        }

    edges = [
        edge("B", 1, 1, "outer"),
        edge("B", 2, 2, "other"),
        edge("B", 3, 1, "inner"),
        edge("E", 4.5, 1),
        edge("E", 9, 1),
    ]
    edges += [
        edge("E", 20, 2),
        edge("E", 21, 2),
        edge("B", 30, 1, "open"),
        edge("B", 40, 3, "late"),
        edge("E", 39, 3),
    ]
    trace = read(tmp_path / "t.json", trace_text(edges))
    rows = [
        (trace.names[n], s, d)
        for n, s, d in zip(trace.name, trace.start_ns, trace.dur_ns, strict=True)
    ]
    assert rows == [
        ("outer", 1_000, 8_000),
        ("other", 2_000, 18_000),
        ("inner", 3_000, 1_500),
        ("late", 40_000, 0),
    ]
    assert trace.unknown == {"phase B without its E": 1, "phase E without its B": 1}
    assert trace.external.tolist() == [1, 2, 1, 3]


@pytest.mark.parametrize("chunk", [64, 300, 5000])
def test_objects_inside_an_event_that_look_like_events_are_not(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(feed, "PIECE_BYTES", chunk // 2)
    nested = [{"ph": "X", "name": f"no{i}", "ts": i, "dur": 1} for i in range(20)]
    events = [event(ts=i, args={"list": nested}) for i in range(30)]
    trace = read(tmp_path / "t.json", trace_text(events, record_shapes=1))
    assert trace.start_ns.tolist() == [1_000 * i for i in range(30)]
    assert trace.num_raw_events == 30
    assert trace.meta.has_shapes
    assert trace.names == ("aten::mm",)


@pytest.mark.parametrize("where", ["name", "args", "key", "list", "entry", "header", "trailer"])
def test_a_huge_string_costs_only_itself(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MAX_EVENT_BYTES", 200_000)
    monkeypatch.setattr(feed, "MAX_OUTSIDE_BYTES", 100_000)
    monkeypatch.setattr(feed, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(stream, "BLOCK_BYTES", 4096)
    huge = 'x}, {"ph": "X\\' * 100_000
    middle: Any = {
        "name": event(name=huge), "args": event(args={"a": huge}), "key": event(**{huge: 1}),
        "list": event(args={"a": [{"ph": "X", "ts": 1}] * 30_000}), "entry": huge,
    }.get(where, event(ts=2))  # fmt: skip
    header = {**HEADER, "comment": huge} if where == "header" else HEADER
    trailer = {"comment": huge, "with_stack": 1} if where == "trailer" else {"with_stack": 1}
    trace = read(
        tmp_path / "t.json",
        trace_text([event(ts=1), middle, event(ts=3), kernel(1, 4, 5)], header, **trailer),
    )
    whole = where in ("header", "trailer")
    assert trace.start_ns.tolist() == (
        [1_000, 2_000, 3_000, 4_000] if whole else [1_000, 3_000, 4_000]
    )
    assert trace.meta.rank == 3
    assert trace.meta.has_stacks
    assert trace.num_raw_events == 4
    assert len(trace.notes) == 1
    assert ("KiB of fields" if whole else "larger than") in trace.notes[0]


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"args":['])
def test_deep_nesting_costs_only_its_own_event(tmp_path: Path, opening: str) -> None:
    closing = "".join({"[": "]", "{": "}"}[c] for c in reversed(opening) if c in "[{")
    deep = opening * 50_000 + "1" + closing * 50_000
    one = json.dumps(event(ts=1))
    trace = read(
        tmp_path / "t.json",
        f'{{"traceEvents": [{one}, {{"ph": "X", "ts": 2, "args": {deep}}}, {one}]}}',
    )
    assert trace.start_ns.tolist() == [1_000, 1_000]
    assert trace.num_raw_events == 3


def test_nothing_but_brackets_ends(tmp_path: Path) -> None:
    trace = read(tmp_path / "t.json", "[" * 300_000)
    assert len(trace) == 0
    assert mentions(trace.notes[0], "ends before")


def test_a_damaged_field_beside_the_events_does_not_cost_the_others(tmp_path: Path) -> None:
    text = trace_text([event()]).replace(
        '"schemaVersion": 1', '"schemaVersion": , "cmd": "python /"x/" run"'
    )
    trace = read(tmp_path / "t.json", text)
    assert trace.meta.rank == 3
    assert trace.meta.devices[0].num_sms == 132
    (note,) = trace.notes
    assert mentions(note, "schemaVersion", "could not be read")


def test_one_bad_event_leaves_the_rest_of_its_chunk_on_the_fast_path(tmp_path: Path) -> None:
    events = [event(ts=i, args={"Input type": ["float"], "Input Dims": [[i]]}) for i in range(5000)]
    text = trace_text(events).replace('"ts": 2500', '"ts": NaN', 1)
    trace = read(tmp_path / "t.json", text)
    assert len(trace) == 4999
    assert any_mentions(trace.notes, "1 event", "damaged")


def test_devices_without_streams_are_placed_by_their_timeline(tmp_path: Path) -> None:
    events = [
        event(cat="kernel", pid=2, tid=9, args={}),
        event(cat="xpu_runtime", ts=2),
        event(cat="kernel", ts=3, pid="HPU", tid="q"),
    ]
    trace = read(tmp_path / "t.json", trace_text(events))
    assert trace.stream.tolist() == [9, -1, -1]
    assert trace.device.tolist() == [2, -1, -1]


def test_a_name_and_a_file_that_disagree_on_the_rank_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "rank5.json", trace_text([event()]))
    named = source(path).__class__(path=path, label="rank5.json", rank=5, rank_source="file name")
    trace = read_kineto(named)
    assert trace.meta.rank == 3
    (note,) = trace.notes
    assert mentions(note, "file name", "rank 5", "distributedInfo", "rank 3", "latter")


def test_progress_tells_the_bytes_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", trace_text())
    told: list[int] = []
    assert same(read_kineto(source(path), told.append), read_kineto(source(path)))
    assert told[-1] == path.stat().st_size


@pytest.mark.parametrize("depth", [200, 450, 600, 900, 50_000])
def test_fields_deep_in_one_another_do_no_harm(tmp_path: Path, depth: int) -> None:
    group = '{"pg_name": "0", "pg_desc": ' + "[" * depth + "]" * depth + "}"
    text = trace_text(distributedInfo={"rank": 3, "pg_config": ["GROUP"]}).replace('"GROUP"', group)
    assert len(read(tmp_path / "t.json", text)) > 0


def test_a_time_beyond_all_numbers_is_damage_and_no_warning(tmp_path: Path) -> None:
    events = [
        *step_events(),
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1e306, "dur": 1.0},
    ]
    trace = read_kineto(source(write(tmp_path / "a.json", trace_text(events))))
    trace.self_check()
    assert len(trace) == len(
        read_kineto(source(write(tmp_path / "b.json", trace_text(step_events()))))
    )


def test_what_the_capture_saw_becomes_marks_on_its_thread(tmp_path: Path) -> None:
    base = 1_700_000_000_000_000_000
    marks = [
        ["torch.save at train.py(3): main", base + 1_000, base + 5_000, 20],
        ["Python GC", base + 9_000, base + 9_500, 99],
        ["before its time", base - 1, base, 20],
        ["cut off"],
        7,
    ]
    more = json.dumps({"baseTimeNanoseconds": base, "stepscope_marks": marks})
    text = "{" + more[1:-1] + ', "traceEvents": ' + json.dumps(step_events()) + "}"
    trace = read(tmp_path / "t.json", text)
    (mark,) = [i for i, code in enumerate(trace.name.tolist()) if "torch.save" in trace.names[code]]
    assert (trace.kind[mark], trace.start_ns[mark], trace.dur_ns[mark]) == (Kind.MARK, 1_000, 4_000)
    assert trace.threads[trace.thread[mark]].tid == "20"
    assert "Python GC" not in trace.names


@pytest.mark.parametrize("is_marked", [True, False])
def test_modules_that_the_capture_marked_are_marks(tmp_path: Path, is_marked: bool) -> None:
    """The profiler writes them as operators, which they are where nobody says otherwise."""
    module = json.dumps(event(name="nn.Module: Linear_0"))
    more = '"stepscope_modules": true, ' if is_marked else ""
    trace = read(tmp_path / "t.json", "{" + more + f'"traceEvents": [{module}]' + "}")
    assert trace.kind.tolist() == [Kind.MARK if is_marked else Kind.OP]


def test_a_name_of_millions_of_letters_is_cut(tmp_path: Path) -> None:
    long = "void gemm<" + "int, " * LONGEST_NAME
    events = [event(name=long + "1>"), event(name=long + "2>", ts=5), event(name="aten::mm", ts=9)]
    trace = read(tmp_path / "t.json", trace_text(events))
    assert [trace.names[code] for code in trace.name.tolist()] == [
        long[:LONGEST_NAME],
        long[:LONGEST_NAME],
        "aten::mm",
    ]
    assert len(set(trace.names)) == len(trace.names)
    (note,) = trace.notes
    assert mentions(note, "2 name", f"{LONGEST_NAME} letters", "cut")


def test_a_trace_without_events_that_has_marked_modules_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"stepscope_modules": true, "traceEvents": []}')
    trace = read_kineto(source(path))
    assert len(trace) == 0
