"""Hangs: each that was planted in a real job of 4 ranks, of NCCL and of gloo; and formed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.core.recordings.nccl import Hang
from stepscope.readers.format import Source
from stepscope.recordings.flight.dump import read
from stepscope.recordings.flight.hang import find_hang
from tests.flight_dumps import (
    NCCL,
    dump_bytes,
    entry,
    read_folder,
    real,
    write_case,
    write_dumps,
)
from tests.wording import any_mentions, mentions


def hang_of(folder: Path, by_rank: dict[int, list[dict[str, Any]]], **more: Any) -> Hang:
    write_dumps(folder, {rank: dump_bytes(entries, **more) for rank, entries in by_rank.items()})
    hang = find_hang(read_folder(folder))
    assert hang is not None
    return hang


@pytest.mark.parametrize(
    ("case", "kind", "at_fault", "words"),
    [
        ("skip", "different", (2,), "rank 2 issued barrier (validate, train.py:77) where"),
        ("other", "different", (1,), "rank 1 issued broadcast (share_settings, train.py:71) where"),
        ("dtype", "types", (1,), "rank 1 has Double"),
        ("size", "no-dump", (3,), "rank 3 left no dump"),  # gloo ends the process
        ("sleep", "missing", (0,), "rank 0 did not come|all_reduce 5"),
        ("raise", "no-dump", (2,), "rank 2 left no dump"),
        ("order", "order", (), "rank 1 in all_reduce 4 of data_parallel"),
        ("chain", "missing", (3,), "rank 3 did not come|all_reduce 5"),
        ("uneven", "no-dump", (3,), "rank 3 left no dump"),  # gloo ends the process
        ("send", "missing", (0,), "rank 0 did not come|all_reduce 5"),  # in a send, not recorded
    ],
)
def test_hang_planted_under_gloo_is_named(
    tmp_path: Path, case: str, kind: str, at_fault: tuple[int, ...], words: str
) -> None:
    hang = find_hang(read_folder(write_case(tmp_path, f"{case}/pickle")))

    assert hang is not None
    assert (hang.kind, hang.at_fault) == (kind, at_fault)
    assert mentions(hang.summary, *words.split("|"))
    assert hang.where is not None
    assert hang.where.split(":")[0].endswith("train.py")


@pytest.mark.parametrize(
    ("case", "kind", "at_fault", "words"),
    [
        ("skip", "different", (2,), "rank 2 issued barrier (validate, train.py:77) where"),
        ("other", "different", (1,), "rank 1 issued broadcast (share_settings, train.py:71) where"),
        ("dtype", "types", (1,), "rank 1 has BFloat16"),
        ("size", "sizes", (3,), "rank 3 has 4,000 elements (exchange, train.py:66)"),
        ("sleep", "missing", (0,), "rank 0 did not come|all_reduce 5"),
        ("raise", "no-dump", (2,), "rank 2 left no dump"),
        ("order", "order", (), "rank 1 in all_reduce 4 of data_parallel"),
        ("chain", "missing", (3,), "rank 3 did not come|all_reduce 5"),
        ("uneven", "sizes", (3,), "rank 3 has 1 element (train_ddp, train.py:116)"),
        ("send", "peer", (1,), "rank 1 did not receive|rank 0 sends (pass_on, train.py:83)"),
    ],
)
def test_hang_planted_under_nccl_is_named(
    tmp_path: Path, case: str, kind: str, at_fault: tuple[int, ...], words: str
) -> None:
    hang = find_hang(read_folder(write_case(tmp_path, f"{case}/pickle", NCCL)))

    assert hang is not None
    assert (hang.kind, hang.at_fault) == (kind, at_fault)
    assert mentions(hang.summary, *words.split("|"))
    assert hang.where is not None


@pytest.mark.parametrize("case", sorted(n[:-5] for n in real() if n.endswith("/json")))
def test_json_gives_the_same_without_lines(tmp_path: Path, case: str) -> None:
    hang = find_hang(read_folder(write_case(tmp_path / "a", f"{case}/json")))
    with_lines = find_hang(read_folder(write_case(tmp_path / "b", f"{case}/pickle")))

    assert hang is not None
    assert with_lines is not None
    assert (hang.kind, hang.at_fault, hang.sequence) == (
        with_lines.kind,
        with_lines.at_fault,
        with_lines.sequence,
    )
    assert hang.where is None


def test_the_lost_dump_of_a_waiting_rank_changes_nothing_but_itself(tmp_path: Path) -> None:
    write_case(tmp_path, "other/pickle")
    (tmp_path / "nccl_trace_rank_3").unlink()

    hang = find_hang(read_folder(tmp_path))

    assert hang is not None
    assert (hang.kind, hang.at_fault) == ("different", (1,))
    assert [rank.state for rank in hang.ranks if rank.rank == 3] == ["no dump"]


def test_sizes_that_differ(tmp_path: Path) -> None:
    waits = [entry(0), entry(1, state="started")]
    other = [entry(0), entry(1, state="started", size=4000)]
    hang = hang_of(tmp_path, {0: waits, 1: waits, 2: waits, 3: other})

    assert (hang.kind, hang.at_fault, hang.waiting) == ("sizes", (3,), (0, 1, 2))
    assert "rank 3 has 4,000 elements" in hang.summary
    assert "4,096" in hang.summary


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("reduce_scatter_tensor", "sizes"),
        ("_all_gather_base", "sizes"),
        ("scatter", "link"),
        ("all_to_all", "link"),
        ("reduce_scatter_tensor_coalesced", "link"),
    ],
)
def test_sizes_may_differ_where_a_rank_is_the_root_or_parts_are_uneven(
    tmp_path: Path, op: str, kind: str
) -> None:
    waits = [entry(0), entry(1, op, state="started")]
    other = [entry(0), entry(1, op, state="started", size=8192)]
    assert hang_of(tmp_path, {0: waits, 1: other, 2: waits, 3: waits}).kind == kind


def test_a_send_and_its_receive_of_another_size(tmp_path: Path) -> None:
    sends = [entry(0), entry(1, "send 0->1", sequence=1, size=100, state="started")]
    receives = [entry(0), entry(1, "recv 1<-0", sequence=1, size=200, line=96, state="started")]
    idle = [entry(0)]
    hang = hang_of(tmp_path, {0: sends, 1: receives, 2: idle, 3: idle})

    assert (hang.kind, hang.at_fault) == ("sizes", ())
    assert mentions(hang.summary, "rank 0 sends 100 elements (exchange, train.py:66)")
    assert mentions(hang.summary, "rank 1 receives 200 elements (exchange, train.py:96)")
    same = [entry(0), entry(1, "recv 1<-0", sequence=1, size=100, state="started")]
    assert hang_of(tmp_path / "same", {0: sends, 1: same, 2: idle, 3: idle}).kind == "link"


def test_devices_that_began_groups_in_another_order_wait_for_one_another(tmp_path: Path) -> None:
    """All have issued both, and the second waits for the first on each device. Groups of a mesh
    have one name."""

    def ranks(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            entry(0),
            entry(1, sequence=1, state="started", **first),
            entry(2, sequence=1, state="scheduled", **second),
        ]

    tensor = [{"process_group": (str(name), "mesh_tp")} for name in (1, 2)]
    data = [{"process_group": (str(name), "mesh_dp")} for name in (3, 4)]
    hang = hang_of(
        tmp_path,
        {
            0: ranks(tensor[0], data[0]),
            1: ranks(data[1], tensor[0]),
            2: ranks(data[0], tensor[1]),
            3: ranks(tensor[1], data[1]),
        },
        groups={"1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)},
    )

    assert (hang.kind, hang.waiting) == ("order", (0, 1, 2, 3))
    assert mentions(hang.summary, "rank 0 in all_reduce 1 of mesh_tp (exchange, train.py:66)")
    assert mentions(hang.summary, "for rank 1")


def test_another_shape_of_as_many_elements_is_no_fault(tmp_path: Path) -> None:
    waits = [entry(0), entry(1, state="scheduled")]
    other = [entry(0), entry(1, state="scheduled", input_sizes=[[64, 64]])]
    hang = hang_of(tmp_path, {0: waits, 1: other, 2: waits, 3: waits})

    assert hang.kind == "link"


def test_a_receive_that_was_never_posted(tmp_path: Path) -> None:
    sends = [entry(0), entry(1, "send 0->1", sequence=1, line=81, state="started")]
    goes_on = [entry(0), entry(1, sequence=2, line=145, state="started")]
    others = [entry(0), entry(1, "send 2->3", sequence=1), entry(2, sequence=2, state="started")]
    hang = hang_of(tmp_path, {0: sends, 1: goes_on, 2: others, 3: others})

    assert (hang.kind, hang.at_fault) == ("peer", (1,))
    assert mentions(hang.summary, "rank 1 did not receive", "rank 0 sends (exchange, ")
    assert mentions(
        hang.summary, "rank 1 is in all_reduce 2 of default_pg (exchange, train.py:145)"
    )


def test_a_dump_with_another_ranks_number_does_not_wait_for_itself(tmp_path: Path) -> None:
    sends = [entry(0), entry(1, "send 0->1", sequence=1, state="started")]
    write_dumps(tmp_path, {1: dump_bytes(sends)})
    (path,) = tmp_path.iterdir()
    (recording,) = read([Source(path=path, label=str(path))]).recordings

    assert find_hang(recording.dumps) is None
    assert mentions(recording.notes, str(path), "with rank 1", "its name")


def test_peers_of_a_group_are_ranks_of_the_group(tmp_path: Path) -> None:
    inside: dict[str, Any] = {"process_group": ("5", "pipeline")}
    sends = [entry(0), entry(1, "send 0->1", sequence=1, state="started", **inside)]
    hang = hang_of(
        tmp_path, {2: sends, 3: [entry(0)], 0: [entry(0)], 1: [entry(0)]}, groups={"5": (2, 3)}
    )

    assert (hang.kind, hang.at_fault, hang.waiting) == ("peer", (3,), (2,))


def test_the_rank_at_the_end_of_a_chain_of_groups_is_named(tmp_path: Path) -> None:
    """0 waits for 1 in one group, 1 for 2 in another, and 2 is in no collective."""
    first: dict[str, Any] = {"process_group": ("1", "tensor")}
    second: dict[str, Any] = {"process_group": ("2", "data")}
    hang = hang_of(
        tmp_path,
        {
            0: [entry(0, **first), entry(1, state="started", line=10, **first)],
            1: [
                entry(0, **first),
                entry(1, sequence=1, **second),
                entry(2, sequence=2, state="started", line=20, **second),
            ],
            2: [entry(0, sequence=1, **second)],
        },
        ranks=(0, 1, 2),
        groups={"1": (0, 1), "2": (1, 2)},
    )

    assert (hang.kind, hang.at_fault, hang.waiting) == ("missing", (2,), (1,))
    assert hang.where == "exchange, train.py:20"
    assert any_mentions(hang.details, "rank 0 waits", "all_reduce 2 of tensor")


def test_a_device_that_has_not_begun_what_the_others_are_in(tmp_path: Path) -> None:
    begun, queued = [entry(0), entry(1, state="started")], [entry(0), entry(1, state="scheduled")]
    hang = hang_of(tmp_path, {0: begun, 1: begun, 2: queued, 3: begun})

    assert (hang.kind, hang.at_fault) == ("device", (2,))


def test_all_in_one_collective_that_agree_is_the_link(tmp_path: Path) -> None:
    waits = [entry(0), entry(1, state="started")]
    hang = hang_of(tmp_path, dict.fromkeys(range(4), waits))

    assert (hang.kind, hang.at_fault) == ("link", ())
    assert mentions(hang.summary, "all 4 ranks", "all_reduce 2")


def test_two_sides_of_equal_number_accuse_nobody(tmp_path: Path) -> None:
    one = [entry(0), entry(1, state="started")]
    other = [entry(0), entry(1, "broadcast", state="started", line=9)]
    hang = hang_of(tmp_path, {0: one, 1: other}, ranks=(0, 1))

    assert (hang.kind, hang.at_fault) == ("different", ())
    assert any_mentions(hang.details, "whose fault")


def test_how_long_it_was_open_is_told_where_the_dumps_tell_it(tmp_path: Path) -> None:
    late = 1_790_000_000_000_000_000 + 20_000_000_000
    open_call = entry(1, state="started", time_discovered_started_ns=late)
    waits = [entry(0), open_call]
    hang = hang_of(tmp_path / "a", {0: waits, 1: waits, 2: waits, 3: [entry(0)]})
    assert hang.waited_s == pytest.approx(20.0, abs=0.01)
    assert mentions(hang.details[-1], "20 s", "timeout is 15 s")

    waits = [entry(0), {**open_call, "time_discovered_started_ns": late - 19_000_000_000}]
    hang = hang_of(tmp_path / "b", {0: waits, 1: waits, 2: waits, 3: [entry(0)]})
    assert mentions(hang.details[-1], "no hang")

    hang_of_gloo = find_hang(read_folder(write_case(tmp_path / "c", "sleep/pickle")))
    assert hang_of_gloo is not None
    assert hang_of_gloo.waited_s is None


def test_real_hangs_were_open_longer_than_their_timeout(tmp_path: Path) -> None:
    hang = find_hang(read_folder(write_case(tmp_path, "skip/pickle", NCCL)))

    assert hang is not None
    assert hang.waited_s is not None
    assert hang.waited_s > 15


def test_jobs_whose_collectives_all_ended_are_not_hung(tmp_path: Path) -> None:
    done = dump_bytes([entry(0), entry(1), entry(2)])
    ahead = dump_bytes([entry(0), entry(1), entry(2), entry(3)])
    write_dumps(tmp_path, {0: done, 1: done, 2: ahead, 3: done})

    assert find_hang(read_folder(tmp_path)) is None


def test_buffers_that_lost_their_beginning_are_compared_where_all_have_something(
    tmp_path: Path,
) -> None:
    """A ring that wrapped on one rank alone: what it lost is no rank that did not come."""
    whole = [*(entry(at) for at in range(9)), entry(9, state="started")]
    hang = hang_of(tmp_path, {0: whole, 1: whole[6:], 2: whole, 3: whole[:-1]})

    assert (hang.kind, hang.at_fault, hang.waiting) == ("missing", (3,), (0, 1, 2))
