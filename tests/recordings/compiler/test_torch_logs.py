"""What TORCH_LOGS tells, of real logs and of damaged and hostile ones. Expected figures were
counted by other means."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.compiler import CompilerReport
from stepscope.errors import FormatError, InputError
from stepscope.readers.detect import format_of
from stepscope.readers.format import Source
from stepscope.recordings.compiler import builder, torch_logs
from stepscope.recordings.compiler.guards import guard_of
from tests.recording_texts import texts_of
from tests.shared_data import SAMPLES
from tests.wording import mentions

LAB = SAMPLES / "formats" / "torch_logs.txt"


def line(
    text: str,
    *,
    ident: str = "0/1",
    kind: str = "recompiles",
    rank: int | None = 0,
    process: int = 7,
) -> str:
    prefix = "" if rank is None else f"[rank{rank}]:"
    mark = f" [__{kind}]" if kind else ""
    return (
        f"{prefix}V1115 02:01:47.025000 {process} torch/_dynamo/guards.py:4760] [{ident}]{mark} "
        f"{text}\n"
    )


def recompile(
    *guards: str, ident: str = "0/1", rank: int | None = 0, process: int = 7, name: str = "f"
) -> str:
    told = [
        f"Recompiling function {name} in train.py:59",
        "    triggered by the following guard failure(s):",
    ]
    told += [f"    - {guard}" for guard in guards]
    return "".join(line(text, ident=ident, rank=rank, process=process) for text in told)


def broken(place: str, reason: str, *hints: str, ident: str = "0/0", rank: int | None = 0) -> str:
    told = [
        f"Graph break in user code at {place}",
        f"Graph Break Reason: {reason}",
        "  Explanation: it cannot.",
    ]
    told += [f"  Hint: {hint}" for hint in hints]
    file, _, number = place.partition(":")
    told += ["", "User code traceback:", f'  File "{file}", line {number}, in g', "    x.item()"]
    return "".join(line(text, ident=ident, kind="graph_breaks", rank=rank) for text in told)


def read(tmp_path: Path, text: str | bytes, name: str = "log.txt") -> CompilerReport:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return torch_logs.read([Source(path=path, label=name)])


def test_a_real_log_gives_what_grep_counts_in_it() -> None:
    text = LAB.read_text()
    assert format_of(text.encode()[: 64 << 10], "x.txt") is not None
    report = torch_logs.read([Source(path=LAB, label="torch_logs.txt")])
    (function,) = report.functions()
    given_up = len(re.findall(r"hit config\.recompile_limit", text))
    told = Counter(re.findall(r"Recompiling function (\S+) in (\S+)", text))
    assert (function.name, function.location) == ("f", "train/artifacts.py:59")
    assert (
        (function.recompiles, function.limit)
        == (sum(told.values()) - given_up, "recompile_limit (8)")
        == (21, "recompile_limit (8)")
    )
    assert (
        function.resumed
        == sum(count for (name, _), count in told.items() if "resume" in name)
        == 14
    )
    assert (function.compiles, function.seconds, report.seconds) == (None, None, None)
    (size,) = function.guards
    assert (size.guard.kind, size.guard.subject, size.guard.index, size.count) == (
        "size",
        "x",
        0,
        8,
    )
    assert size.values == tuple(str(8 * n) for n in range(1, 10))
    values = next(guard for guard in function.resumed_guards if guard.guard.kind == "value")
    assert (values.guard.subject, values.guard.location, values.guard.code) == (
        "___stack0",
        "train/artifacts.py:61",
        "if y.sum().item() > 0:",
    )
    assert values.count == len(
        set(re.findall(r"\[(1/\d)\] \[__recompiles\]     - 1/\d: ___stack0", text))
    )


def test_a_real_log_tells_each_break_with_its_line_reason_and_hint() -> None:
    text = LAB.read_text()
    report = torch_logs.read([Source(path=LAB, label="torch_logs.txt")])
    heads = Counter(re.findall(r"Graph break [^\n]*in user code at (\S+)", text))
    assert {place.graph_break.location: place.count for place in report.break_counts()} == dict(
        heads
    )
    item, printed = report.break_counts()
    assert (item.graph_break.location, item.graph_break.code) == (
        "train/artifacts.py:61",
        "if y.sum().item() > 0:",
    )
    assert (
        item.graph_break.reason
        == "Unsupported Tensor.item() call with capture_scalar_outputs=False"
    )
    assert "capture_scalar_outputs = True" in item.graph_break.hints[0]
    assert (printed.graph_break.code, printed.count) == ('print("break")', 8)
    assert not any("report an issue" in hint for hint in printed.graph_break.hints)


def test_ranks_that_write_into_one_file_are_told_apart_and_counted_once(tmp_path: Path) -> None:
    guard = "0/0: tensor 'x' size mismatch at index 1. expected 8, actual 9"
    zero = recompile(guard, rank=0, process=7).splitlines(keepends=True)
    one = recompile(guard, rank=1, process=8).splitlines(keepends=True)
    mixed = "".join(text for pair in zip(zero, one, strict=True) for text in pair)
    report = read(tmp_path, mixed)
    (function,) = report.functions()
    assert (function.recompiles, function.guards[0].count) == (1, 1)
    assert [(each.rank, each.process, len(each.guards or ())) for each in report.compiles] == [
        (0, 7, 1),
        (1, 8, 1),
    ]


def test_lines_before_a_process_has_a_rank_are_its_own(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        recompile("0/0: n == 1", rank=None) + recompile("0/1: n == 2", ident="0/2", rank=3),
    )
    assert {each.rank for each in report.compiles} == {3}
    assert report.functions()[0].recompiles == 2


def test_a_limit_alone_names_the_function(tmp_path: Path) -> None:
    told = [
        "torch._dynamo hit config.cache_size_limit (8)",
        "   function: 'forward' (model.py:12)",
        "   last reason: tensor 'L['x']' size mismatch at index 0. expected 4, actual 5",
    ]
    report = read(tmp_path, "".join(line(text, kind="", ident="2/8") for text in told))
    (function,) = report.functions()
    assert (function.name, function.location, function.limit) == (
        "forward",
        "model.py:12",
        "cache_size_limit (8)",
    )
    assert function.recompiles == 0
    assert mentions(function.guards[0].words, "tensor x", "dimension 0", "4, 5")


def test_logs_of_old_versions_are_read_without_ids(tmp_path: Path) -> None:
    def old(text: str, kind: str = "guards.__recompiles") -> str:
        return f"[2023-11-21 19:02:13,073] torch._dynamo.{kind}: [DEBUG] {text}\n"

    def told(end: int) -> str:
        first = (
            f"    - L['end'] == {end}              # for i in range(start+1, end):  # "
            "<ipython-input-6>:9 in accumulate"
        )
        lines = [
            "Recompiling function accumulate in <ipython-input-6>:6",
            "    triggered by the following guard failure(s):",
            first,
        ]
        return "".join(old(each) for each in lines)

    def stop(place: str) -> str:
        lines = [
            "Graph break: call_function BuiltinVariable(print) from user code at:",
            place,
            "    print(x)",
        ]
        return "".join(old(each, "symbolic_convert.__graph_breaks") for each in lines)

    report = read(tmp_path, told(10) + told(11) + stop('  File "a.py", line 5, in f'))
    (function,) = report.functions()
    assert (function.recompiles, function.guards[0].guard.subject, function.guards[0].values) == (
        2,
        "end",
        ("10", "11"),
    )
    assert function.guards[0].guard.location == "<ipython-input-6>:9"
    (place,) = report.break_counts()
    assert (place.graph_break.location, place.graph_break.reason) == (
        "a.py:5",
        "call_function BuiltinVariable(print)",
    )


@pytest.mark.parametrize(
    ("text", "kind", "subject", "index", "expected", "actual"),
    [
        (
            "3/0: tensor 'x' size mismatch at index 1. expected 2, actual 3",
            "size",
            "x",
            1,
            "2",
            "3",
        ),
        (
            "0/3: tensor 'L['self'].w' stride mismatch at index 0. expected 1, actual 2",
            "stride",
            "self.w",
            0,
            "1",
            "2",
        ),
        (
            "4/0: tensor 'x' dtype mismatch. expected Float, actual Double",
            "dtype",
            "x",
            None,
            "Float",
            "Double",
        ),
        ("4/0: tensor 'x' rank mismatch. expected 1, actual 2", "rank", "x", None, "1", "2"),
        (
            "4/2: tensor 'x' requires_grad mismatch. expected requires_grad=0",
            "requires_grad",
            "x",
            None,
            "0",
            None,
        ),
        ("4/3: GLOBAL_STATE changed: grad_mode ", "global state", "grad_mode", None, None, None),
        ("___check_global_state()", "global state", "", None, None, None),
        ("1/1: 2 <= x.size()[0] <= 10  # if x", "bound", "x", 0, "2 <= x.size()[0] <= 10", None),
        ("L['x'].size()[2] == 7", "size", "x", 2, "7", None),
        ("0/2: len(L['xs']) == 1", "length", "xs", None, "1", None),
        ("0/4: d['k'] == 2", "value", "d['k']", None, "2", None),
        (
            "0/2: ___check_type_id(xs, 140578719626048), type=<class 'list'>",
            "type",
            "xs",
            None,
            "<class 'list'>",
            None,
        ),
        ("0/0: ___check_obj_id(L['fn'], 9432)", "identity", "fn", None, None, None),
        ("0/0: ", "other", "", None, None, None),
        ("something that a later version prints", "other", "", None, None, None),
    ],
)
def test_guards_are_understood(
    text: str, kind: str, subject: str, index: int | None, expected: str | None, actual: str | None
) -> None:
    guard = guard_of(text)
    assert (guard.kind, guard.subject, guard.index, guard.expected, guard.actual) == (
        kind,
        subject,
        index,
        expected,
        actual,
    )


def test_a_guard_keeps_the_users_line_and_torchs_hint() -> None:
    text = "2/0: s.i == 0      # s.i += 1  # mp/b.py:28 in forward (HINT: make it a tensor)"
    assert guard_of(text, [("/home/b.py:28", "s.i += 1")]).location == "/home/b.py:28"
    guard = guard_of(text)
    assert (guard.text, guard.code, guard.location, guard.hint) == (
        "s.i == 0",
        "s.i += 1",
        "mp/b.py:28",
        "make it a tensor",
    )


def test_a_break_of_2_4_has_its_reason_at_the_end_of_the_compilers_stack(tmp_path: Path) -> None:
    told = [
        "Graph break: from user code at:",
        '  File "/a/m.py", line 7, in g',
        "    if x.item():",
        "",
    ]
    told += [
        "Traceback (most recent call last):",
        '  File "/usr/torch/_dynamo/exc.py", line 221, in unimplemented',
    ]
    told += ["    raise Unsupported(msg)", "torch._dynamo.exc.Unsupported: Tensor.item"]
    (place,) = read(
        tmp_path, "".join(line(text, kind="graph_breaks") for text in told)
    ).break_counts()
    assert (place.graph_break.location, place.graph_break.code, place.graph_break.reason) == (
        "/a/m.py:7",
        "if x.item():",
        "Tensor.item",
    )


def test_a_break_inside_a_package_tells_who_called_it(tmp_path: Path) -> None:
    place = "/env/lib/python3.11/site-packages/lib/layer.py:9"
    text = [
        f"Graph break in user code at {place}",
        "Graph Break Reason: Data-dependent branching",
        "User code traceback:",
        '  File "/home/me/train.py", line 40, in step',
        "    layer(x)",
        '  File "/env/lib/python3.11/site-packages/lib/layer.py", line 9, in forward',
        "    if x.sum() > 0:",
    ]
    report = read(
        tmp_path, "".join(line(each, kind="graph_breaks", ident="0/0_1") for each in text)
    )
    (found,) = report.break_counts()
    assert (found.graph_break.location, found.graph_break.called_from) == (
        place,
        "/home/me/train.py:40",
    )
    assert (found.graph_break.id, found.graph_break.code) == ("0/0", "if x.sum() > 0:")


def test_hints_of_inductor_are_counted(tmp_path: Path) -> None:
    report = read(tmp_path, line("Using FallbackKernel: aten.sort", kind="perf_hints") * 3)
    assert report.whole.hints == (("Using FallbackKernel: aten.sort", 3),)
    assert any(table.title == "performance hints" for table in texts_of(report)[0].tables)


def test_every_cut_of_a_log_is_read_or_refused_in_words(tmp_path: Path) -> None:
    text = (
        recompile("0/0: n == 1", "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 9")
        + broken("m.py:3", "No", "Do")
    ).encode()
    for end in range(0, len(text), 13):
        if b"__recompiles]" in text[:end]:
            assert len(read(tmp_path, text[:end]).functions()) <= 1
        else:
            with pytest.raises(FormatError, match="TORCH_LOGS="):
                read(tmp_path, text[:end])
    assert len(read(tmp_path, text).break_counts()) == 1


def test_gzip_that_ends_early_gives_what_was_there_and_says_so(tmp_path: Path) -> None:
    whole = "".join(recompile(f"0/0: n == {n}", ident=f"0/{n}") for n in range(400))
    report = read(tmp_path, gzip.compress(whole.encode(), 1)[:-200], "log.txt.gz")
    assert 0 < report.functions()[0].recompiles <= 400
    assert any("gzip" in note for note in report.recordings[0].notes)


def test_control_characters_colours_and_giant_lines_do_no_harm(tmp_path: Path) -> None:
    giant = line("x" * 3_000_000, kind="recompiles")
    odd = "\x1b[33m" + recompile("0/0: n == 1\x07\x00").replace("\n", "\r\n") + "\x1b[0m\xff\n"
    report = read(
        tmp_path,
        odd.encode("latin-1")
        + giant.encode()
        + b"\x00" * 5000
        + recompile("0/1: n == 2", ident="0/2").encode(),
    )
    assert report.functions()[0].recompiles == 2
    assert any("long lines" in note for note in report.recordings[0].notes)
    assert all(len(guard.text) <= 300 for each in report.compiles for guard in each.guards or ())


def test_a_million_lines_stay_within_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "MAX_COMPILES", 50)
    monkeypatch.setattr(builder, "MAX_BREAKS", 20)
    noise = "step 1 loss 0.1\n" * 1_000_000
    text = "".join(recompile(f"0/0: n == {n}", ident=f"{n}/1", name=f"f{n}") for n in range(80))
    text += "".join(broken(f"m.py:{n}", "No", ident=f"{n}/0") for n in range(60))
    report = read(tmp_path, text + noise)
    assert (len(report.compiles), len(report.breaks)) == (50, 20)
    notes = " ".join(report.recordings[0].notes)
    assert "30 compilations" in notes
    assert "40 graph breaks" in notes


def test_a_file_without_such_lines_is_refused_and_not_claimed(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="TORCH_LOGS="):
        read(tmp_path, "epoch 1\n")
    with pytest.raises(InputError):
        torch_logs.read([Source(path=tmp_path / "gone.txt", label="gone.txt")])
    for other in (
        b"",
        b"\x00" * 100,
        b'{"traceEvents": []}',
        b"[2023-11-21 19:02:13,073] INFO step 3",
        b"I said [__recompiles]\n",
    ):
        assert not torch_logs.is_mine(other, "torch_logs.txt")


def test_two_reports_of_one_run_count_once_and_fill_each_other(tmp_path: Path) -> None:
    text = recompile("0/0: n == 1") + broken("m.py:3", "No", "Do")
    one, two = read(tmp_path, text), read(tmp_path, text + recompile("0/1: n == 2", ident="0/2"))
    joined = CompilerReport(recordings=(*one.recordings, *two.recordings))
    assert joined.functions()[0].recompiles == 2
    assert joined.break_counts()[0].count == 1
    assert len(joined.recordings) == 2


def samples() -> Iterator[tuple[str, str, bytes]]:
    mismatch = "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 16"
    text = recompile(mismatch) * 3 + broken("train.py:61", "item() call", "do not")
    yield "torch-logs", "torch_logs.txt", text.encode()
