"""A container's log is read as the output that it holds: docker's JSON lines and Kubernetes' text,
whole and in pieces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.auxiliary import read_auxiliary
from stepscope.readers.format import Source
from stepscope.readers.inputs import find_sources
from stepscope.readers.text_lines import MAX_ENTRY_BYTES, ContainerLog, opened
from stepscope.recordings.nccl.log import read as read_nccl_logs
from tests.readers.test_formats import MEGATRON, NCCL
from tests.recordings.compiler.test_torch_logs import recompile
from tests.recordings.job_log.test_log import NEW_OOM

TIME = "2026-11-16T08:00:00.931087621Z"
PIECE_BYTES = 16 << 10
"""Where docker and containerd cut a line."""
JOB = (
    "".join(MEGATRON.format(n=n) for n in range(1, 40))
    + NCCL
    + recompile("L['x'].size()[0] == 4")
    + NEW_OOM
)


def docker(text: str, stream: str = "stderr", size: int = PIECE_BYTES) -> str:
    pieces = [
        line[at : at + size]
        for line in text.splitlines(keepends=True)
        for at in range(0, len(line), size)
    ]
    return "".join(
        json.dumps({"log": piece, "stream": stream, "time": TIME}, separators=(",", ":")) + "\n"
        for piece in pieces
    )


def cri(text: str, stream: str = "stderr", size: int = PIECE_BYTES) -> str:
    told = ""
    for line in text.splitlines():
        pieces = [line[at : at + size] for at in range(0, len(line), size)] or [""]
        told += (
            "".join(f"{TIME} {stream} P {piece}\n" for piece in pieces[:-1])
            + f"{TIME} {stream} F {pieces[-1]}\n"
        )
    return told


def unwrapped(tmp_path: Path, text: str | bytes) -> tuple[str, ContainerLog]:
    path = tmp_path / "0.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    log = opened(Source(path=path, label="0.log"))
    return b"".join(log.blocks()).decode(), log


@pytest.mark.parametrize("wrap", [docker, cri])
@pytest.mark.parametrize("size", [PIECE_BYTES, 40])
def test_what_the_job_wrote_comes_out(tmp_path: Path, wrap: Callable[..., str], size: int) -> None:
    text, log = unwrapped(tmp_path, wrap(JOB, size=size))
    assert (text, log.problem) == (JOB, None)


@pytest.mark.parametrize("wrap", [docker, cri])
def test_pieces_of_two_streams_are_joined_apart(tmp_path: Path, wrap: Callable[..., str]) -> None:
    out, err = (
        wrap("0123456789\n", "stdout", 4).splitlines(),
        wrap("abcdefg\n", "stderr", 4).splitlines(),
    )
    woven = [line for pair in zip(out, err, strict=False) for line in pair] + out[len(err) :]
    text, _ = unwrapped(tmp_path, "\n".join(woven) + "\n")
    assert text.splitlines() == ["abcdefg", "0123456789"], "a line stands where it ended"


@pytest.mark.parametrize(
    "line",
    [
        '{"stream":"stdout","log":"hello\\n","kubernetes":{"pod_name":"job-0"}}',
        '{"log":"hello\\n","stream":"stdout","attrs":{"tag":"job"},"time":"2026-11-16T08:00:00Z"}',
        '{"time":"2026-11-16T08:00:00Z", "log": "hello\\n"}',
        "2026-11-16T08:00:00.346494690+01:00 stdout F hello",
        "2026-11-16T08:00:00.346494690Z stdout F:tag1:tag2 hello",
    ],
)
def test_entries_as_other_runtimes_write_them(tmp_path: Path, line: str) -> None:
    assert unwrapped(tmp_path, line + "\n")[0] == "hello\n"


@pytest.mark.parametrize(
    "text",
    [
        JOB,
        '{"log": "a path", "level": 1}\n',
        '{"log":"hello\\n","stream":"stdout"\n',
        "2026-11-16 08:00:00 stdout F hello\n",
        '{"traceEvents": [{"name": "log"}]}',
        "",
    ],
)
def test_any_other_text_is_as_it_is(tmp_path: Path, text: str) -> None:
    told, log = unwrapped(tmp_path, text)
    assert (told, log.problem) == (text, None)


@pytest.mark.parametrize(
    ("wrap", "name"), [(docker, "7ab3-json.log.gz"), (cri, "0.log"), (cri, "stdout")]
)
def test_a_containers_log_is_read_as_the_logs_that_it_holds(
    tmp_path: Path, wrap: Callable[..., str], name: str
) -> None:
    path = tmp_path / name
    data = wrap(("loss 2.0\n" * 9_000) + JOB, size=100).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with find_sources([path]) as found:
        assert [source.format for source in found.others] == [
            "torch-logs",
            "training-log",
            "job-log",
        ]
        beside, nccl = read_auxiliary(found.others), read_nccl_logs(found.logs)
    assert beside is not None
    assert beside.training is not None
    assert beside.compiler is not None
    assert (beside.training.step_ns, len(beside.compiler.compiles), nccl.num_messages) == (
        451_000_000,
        1,
        1,
    )
    (failure,) = beside.training.outputs[0].failures
    assert (failure.line, failure.ranks, failure.tried_bytes) == (
        9_000 + JOB.count("\n"),
        (2,),
        round(22.78 * 2**30),
    )


def test_other_tools_in_a_containers_log_are_read_too(tmp_path: Path) -> None:
    smi = "timestamp, index, utilization.gpu [%]\n" + "2026/11/16 08:00:0{0}.000, 0, 9{0} %\n"
    path = tmp_path / "smi.log"
    path.write_text(
        cri(
            "".join(
                smi.format(n) if n == 0 else smi.splitlines(keepends=True)[1].format(n)
                for n in range(5)
            )
        )
    )
    with find_sources([path]) as found:
        assert [source.format for source in found.others] == ["nvidia-smi"]
        beside = read_auxiliary(found.others)
    assert beside is not None
    assert beside.system is not None


def test_damage_is_counted_and_costs_itself_alone(tmp_path: Path) -> None:
    whole = docker("one\ntwo\nthree\n")
    text, log = unwrapped(tmp_path, whole[20:] + "garbage\n" + whole[: len(whole) // 2])
    assert text.splitlines()[1:4] == ["two", "three", "garbage"]
    assert log.problem is not None
    assert "3 line(s)" in log.problem
    text, _ = unwrapped(tmp_path, f"{TIME} stdout F a\n{TIME} stdout P its end never came")
    assert text == "a\nits end never came\n"


def test_hostile_entries_are_bounded(tmp_path: Path) -> None:
    endless = (
        f"{TIME} stdout F a\n"
        + f"{TIME} stdout P {'x' * 60_000}\n" * 100
        + '{"log":"'
        + "y" * (3 * MAX_ENTRY_BYTES)
    )
    text, log = unwrapped(tmp_path, endless)
    assert max(map(len, text.split("\n"))) <= 3 * MAX_ENTRY_BYTES
    assert text.count("x") == 6_000_000, "nothing is lost"
    assert log.problem is not None
    deep = (
        '{"log":"a\\n","stream":"stdout"}\n{"log":'
        + "[" * 100_000
        + "\n"
        + '{"log":"\\ud800\\n","stream":"x"}\n'
    )
    text, _ = unwrapped(tmp_path, deep)
    assert text.split("\n")[0] == "a"
    assert text.endswith("?\n")


@given(
    st.lists(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.text("abc \u00e9\t{", max_size=9)),
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_nothing_is_lost_and_nothing_comes_twice(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]], size: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for wrap in (docker, cri):
        wrapped = wrap("begin\n", "stdout") + "".join(
            wrap(text + "\n", stream, size) for stream, text in lines
        )
        assert unwrapped(folder, wrapped)[0].split("\n") == [
            "begin",
            *(text for _, text in lines),
            "",
        ]
