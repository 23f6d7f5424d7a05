"""What a long run goes on writing every second, and which steps are measured on a device."""

from __future__ import annotations

import json
from pathlib import Path

from stepscope.capture.counters.samples import MemoryLeft
from stepscope.capture.live import LARGEST_BYTES, STEPS_A_SECOND, LiveFile
from stepscope.capture.passes import Passes
from stepscope.capture.recording.schedule import ALL_MARKED, MARKED, Marks
from stepscope.readers.run_folder.line_tail import Lines
from tests.capture.fakes import write


def test_the_file_stays_small_and_every_line_is_read_once(tmp_path: Path) -> None:
    live, lines = LiveFile(tmp_path / "live.jsonl"), Lines(tmp_path / "live.jsonl")
    seen = []
    for second in range(2_000):
        live.add(json.dumps([second, "x" * 500]))
        live.write()
        seen += [line[0] for line in lines.new()]
        assert (tmp_path / "live.jsonl").stat().st_size <= LARGEST_BYTES
    assert seen == list(range(2_000))


def test_short_steps_are_thinned_alike_on_all_ranks(tmp_path: Path) -> None:
    live = LiveFile(tmp_path / "live.jsonl")
    assert all(live.wants(step) for step in range(20)), "nothing is known of their pace"
    live.steps_per_s = 500.0
    wanted = [step for step in range(512) if live.wants(step)]
    assert STEPS_A_SECOND <= len(wanted) * 500 / 512 < 2 * STEPS_A_SECOND
    live.steps_per_s = 520.0
    assert set(wanted) >= {step for step in range(512) if live.wants(step)}


def test_bursts_come_every_few_seconds_at_the_same_steps() -> None:
    marks, other = Marks(), Marks()
    assert all(marks.holds(step) for step in range(ALL_MARKED))
    marks.adapt(100.0)
    other.adapt(125.0)
    mine = {step for step in range(ALL_MARKED, 4000) if marks.holds(step)}
    common = mine & {step for step in range(ALL_MARKED, 4000) if other.holds(step)}
    assert len(common) >= 2 * MARKED
    assert len(mine) <= MARKED * (4000 - ALL_MARKED) / 200
    marks.adapt(0.5)
    assert sum(marks.holds(step) for step in range(1000, 1016)) == MARKED
    assert marks.next_look(1000) == 1008


def test_an_exchange_inside_a_backward_pass_is_counted_there() -> None:
    comms = Passes()
    comms.add(10, 20)
    comms.add(110, 120)
    comms.add(130, 140)
    comms.drop_since(100)
    assert comms.fold() == (10, 1)


def test_what_is_left_of_a_control_group_leaves_out_its_cache(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/job"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "proc/self/statm": "10 3 1 1 0 1 0",
            f"{group}/memory.max": "1000000",
            f"{group}/memory.current": "900000",
            f"{group}/memory.stat": "anon 600000\ninactive_file 200000\n",
        },
    )
    assert MemoryLeft(tmp_path).take()["cgroup_memory_left_bytes"] == 300_000
