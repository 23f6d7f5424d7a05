"""nccl-tests' and rccl-tests' output, in the formats that their versions have printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import FormatError, InputError
from stepscope.recordings.nccl.tests import parse_nccl_tests, read_nccl_tests
from tests.wording import mentions

RANKS = "".join(
    (
        f"#  Rank {rank:2} Group  0 Pid  {4000 + rank} on     node-a device {rank:2} "
        f"[0x{rank:02x}] "
        "NVIDIA A100-SXM4-40GB\n"
    )
    for rank in range(4)
)
HEAD = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
THREADS = (
    "# nThread 1 nGpus 4 minBytes 1024 maxBytes 1048576 step: 32(factor) warmup iters: 5 iters: "
    "40 agg iters: 1 validation: 1\n"
)
NEW = (
    "# Collective test starting: all_reduce_perf\n"
    + THREADS
    + "#\n# Using devices\n"
    + RANKS
    + "#\n"
    + HEAD
    + """\
        1024           256     float     sum      -1    13.52    0.08    0.11      0    13.11    0.08    0.12      0
       32768          8192     float     sum      -1    15.00    2.18    3.28      0    16.00    2.05    3.07    N/A
     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    39.00   26.89   40.33      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 14.3
#
"""  # noqa: E501
)
OLD = """\
# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  59 on node-b device  0 [0x0f] Tesla V100-SXM2-16GB
#   Rank  1 Pid  60 on node-c device  0 [0x10] Tesla V100-SXM2-16GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256   float     sum    25.10    0.04    0.04  1e-07    24.90    0.04    0.04  1e-07
        4096          1024   float     sum    27.10    0.15    0.15  0e+00    26.90    0.15    0.15  0e+00
"""  # noqa: E501


def test_the_newer_format() -> None:
    found = parse_nccl_tests(NEW, "out.txt")
    assert found.device == "NVIDIA A100-SXM4-40GB"
    assert found.num_nodes == 1
    assert {(p.kind, p.group_size, p.tier, p.backend) for p in found.points} == {
        ("all_reduce", 4, "node", "nccl")
    }
    assert [p.size_bytes for p in found.points] == [1024, 32768, 1048576]
    assert [p.time.seconds for p in found.points] == pytest.approx([13.52e-6, 15e-6, 40e-6])
    assert found.points[1].time.high_s == pytest.approx(16e-6)
    assert found.points[0].time.low_s == pytest.approx(13.11e-6)
    assert {p.time.repeats for p in found.points} == {40}, (
        "iters, not warmup iters and not agg iters"
    )


def test_our_bus_bandwidth_is_the_one_they_print() -> None:
    printed = {1024: 0.11, 32768: 3.28, 1048576: 39.32}
    for point in parse_nccl_tests(NEW, "out.txt").points:
        assert point.bus_bytes_per_s / 1e9 == pytest.approx(printed[point.size_bytes], abs=0.006)


def test_the_older_format_has_no_root_and_tells_errors() -> None:
    found = parse_nccl_tests(OLD, "reduce_scatter_perf.log")
    assert [(p.kind, p.tier, p.group_size) for p in found.points] == [
        ("reduce_scatter", "across", 2)
    ] * 2
    assert found.points[0].time.seconds == pytest.approx(25.1e-6)
    assert found.num_nodes == 2


def test_several_tests_in_one_file() -> None:
    text = "".join(
        NEW.replace("all_reduce_perf", name)
        for name in ("all_reduce_perf", "alltoall_perf", "sendrecv_perf")
    )
    assert [p.kind for p in parse_nccl_tests(text, "x").points] == ["all_reduce"] * 3 + [
        "all_to_all"
    ] * 3 + ["send_recv"] * 3


def test_the_command_line_tells_the_test() -> None:
    body = NEW.split("\n", 1)[1]
    text = (
        f"$ ./build/all_gather_perf -b 1K -e 1M -f 32 -g 4\n{body}$ ./build/broadcast_perf -b 1K "
        f"-e 1M -f 32 -g 4\n{body}"
    )
    assert [p.kind for p in parse_nccl_tests(text, "x").points] == ["all_gather"] * 3 + [
        "broadcast"
    ] * 3


def test_the_ratio_of_bandwidths_tells_an_all_reduce() -> None:
    body = NEW.split("\n", 1)[1]
    assert {p.kind for p in parse_nccl_tests(body, "run17.txt").points} == {"all_reduce"}


def test_a_test_that_nothing_tells_is_asked_for() -> None:
    body = (
        NEW.split("\n", 1)[1]
        .replace("39.32", "19.66")
        .replace("40.33", "20.17")
        .replace("3.28", "1.64")
        .replace("3.07", "1.54")
    )
    with pytest.raises(FormatError, match="which test"):
        parse_nccl_tests(body, "run17.txt")


def test_ranks_of_several_nodes() -> None:
    text = NEW.replace("4002 on     node-a", "4002 on     node-b").replace(
        "4003 on     node-a", "4003 on     node-b"
    )
    found = parse_nccl_tests(text, "x")
    assert {p.tier for p in found.points} == {"world"}
    assert found.num_nodes == 2


def test_groups_that_run_beside_one_another_count_once() -> None:
    text = NEW.replace("Rank  2 Group  0", "Rank  0 Group  1").replace(
        "Rank  3 Group  0", "Rank  1 Group  1"
    )
    assert {p.group_size for p in parse_nccl_tests(text, "x").points} == {2}


def test_wrong_results_are_left_out_and_said() -> None:
    text = NEW.replace("39.32      0", "39.32     17")
    found = parse_nccl_tests(text, "x")
    assert [p.size_bytes for p in found.points] == [1024, 32768]
    (note,) = found.notes
    assert mentions(note, "all_reduce in x", "1 sizes", "left out", "wrong")


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "0: "])
def test_launchers_prefixes_are_taken_off(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in NEW.splitlines())
    assert parse_nccl_tests(text, "x").points == parse_nccl_tests(NEW, "x").points


def test_in_place_alone_is_taken_where_out_of_place_was_not_run() -> None:
    text = NEW.replace("40.00   26.21   39.32      0", "  N/A     N/A     N/A    N/A")
    assert parse_nccl_tests(text, "x").points[2].time.seconds == pytest.approx(39e-6)


def test_host_names_stay_behind() -> None:
    assert "node-a" not in repr(parse_nccl_tests(NEW, "x"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no line"),
        ("\x00\x01 1 2 3", "no line"),
        (HEAD, "no line"),
        (NEW.replace(RANKS, ""), "its ranks"),
        (
            NEW.replace("1024 ", "1" * 5000)
            .replace("32768 ", "\u00b2" * 9)
            .replace("1048576 ", "9" * 30),
            "no line",
        ),
        (
            NEW.replace("Rank  0", "Rank " + "0" * 5000)
            .replace("Rank  1", "Rank x")
            .replace("Rank  2", "Rank"),
            "its ranks",
        ),
        (
            NEW.replace("13.52", "nan")
            .replace("13.11", "inf")
            .replace("15.00", "0.00")
            .replace("16.00", "-1"),
            None,
        ),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str | None) -> None:
    if said is None:
        assert [p.size_bytes for p in parse_nccl_tests(text, "x").points] == [1048576]
        return
    with pytest.raises(FormatError, match=said):
        parse_nccl_tests(text, "x")


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_bytes(b"\xff\xfe broken words\n" + NEW.encode())
    assert len(read_nccl_tests(path).points) == 3
    with pytest.raises(InputError, match="No such file"):
        read_nccl_tests(tmp_path / "none")
