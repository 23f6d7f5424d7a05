"""perf's texts: short cuts of what perf 6 printed for real processes, with figures counted by
hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepscope.core.recordings.system import SystemReport
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.host import perf_text
from tests.recording_texts import texts_of
from tests.wording import any_mentions

STAT = """\
# started on Mon Nov 16 07:39:41 2026


 Performance counter stats for 'python job.py':

           1385.22 msec task-clock                       #    0.503 CPUs utilized
              1932      context-switches                 #    1.395 K/sec
                 2      cpu-migrations                   #    1.444 /sec
             1,954      page-faults                      #    1.411 K/sec
     4,000,000,000      cycles                           #    2.9 GHz
     6,000,000,000      instructions:u                   #    1.50  insn per cycle
   <not supported>      branches
               300      major-faults

       2.751918453 seconds time elapsed

       1.368778000 seconds user
       0.018699000 seconds sys
"""
STAT_CSV = """\
# started on Mon Nov 16 07:39:43 2026

1399.20,msec,task-clock,1399195220,100.00,0.512,CPUs utilized
1672,,context-switches,1399195220,100.00,1.195,K/sec
4,,cpu-migrations,1399195220,100.00,2.859,/sec
<not supported>,,cycles,0,100.00,,
"""
INTERVALS = """\
# started on Mon Nov 16 13:55:19 2026

#           time             counts unit events
     0.200236878              55.77 msec task-clock                       #    0.279 CPUs utilized
     0.200236878              3,888      page-faults                      #   69.721 K/sec
     0.200236878        <not counted>      cycles                                                        (0.00%)
     0.200236878          1,000,000      instructions
     0.200236878    <not supported>      branches
     0.406180621              53.12 msec task-clock                       #    0.266 CPUs utilized
     0.406180621              4,184      page-faults                      #   78.763 K/sec
     0.406180621          2,000,000      cycles
     0.406180621          3,000,000      instructions
     0.406180621    <not supported>      branches
     0.613516733      <not counted> msec task-clock
     0.613516733      <not counted>      page-faults
     0.613516733      <not counted>      cycles
     0.613516733      <not counted>      instructions
     0.613516733    <not supported>      branches
"""  # noqa: E501
SUMMARY = """
 Performance counter stats for 'python3 j.py':

            108.90 msec task-clock                       #    0.177 CPUs utilized
              8073      page-faults                      #   74.132 K/sec

       0.613566205 seconds time elapsed

       0.000000000 seconds user
       0.000000000 seconds sys
"""
INTERVALS_CSV = """\
# started on Mon Nov 16 13:55:16 2026

     0.205634571,57.27,msec,task-clock,57269156,100.00,0.286,CPUs utilized
     0.205634571,52,,context-switches,57269156,100.00,907.993,/sec
     0.205634571,<not supported>,,cycles,0,100.00,,
     0.406006252,55.94,msec,task-clock,55941769,100.00,0.280,CPUs utilized
     0.406006252,55,,context-switches,55941769,100.00,983.165,/sec
     0.406006252,<not supported>,,cycles,0,100.00,,
"""
SUMMARY_CSV = """\
         summary,113.22,msec,task-clock,113220000,100.00,0.279,CPUs utilized
         summary,107,,context-switches,113220000,100.00,945.063,/sec
"""
SCRIPT = """\
python 13889 [000] 57969.000000:    5000000 cpu-clock:pppH:
\tffffffff815e2a84 page_cache_ra_unbounded+0x44 ([kernel.kallsyms])
\tffffffff815ec4a0 handle_mm_fault+0xd0 ([kernel.kallsyms])
\t          24f81b _PyEval_EvalFrameDefault+0x6b (/usr/lib/libpython3.12.so.1.0)
\t    7fcf7a5d78a8 py::collate:/home/me/data.py (/tmp/perf-13889.map)

python 13889 [001] 57969.005000:    5000000 cpu-clock:pppH:
\t          24f81b _PyEval_EvalFrameDefault+0x6b (/usr/lib/libpython3.12.so.1.0)
\t    7fcf7a5d78a8 py::collate:/home/me/data.py (/tmp/perf-13889.map)

python 13890 [001] 57969.010000:    5000000 cpu-clock:pppH:
\t          104f81 at::native::add(at::Tensor const&, int) [clone .isra.0]+0x10 (/x/site-packages/torch/lib/libtorch_cpu.so)
\t    7fcf7a5d78a8 py::step:/home/me/train.py (/tmp/perf-13889.map)

pt_data loader 13891/13892 [000] 57969.020000:    5000000 cpu-clock:pppH:
\t          104f81 [unknown] ([unknown])
"""  # noqa: E501


def of_text(folder: Path, text: str | bytes) -> SystemReport:
    path = folder / "perf.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return SystemReport(recordings=(perf_text.read_file(Source(path=path, label=str(path))),))


def test_stat_gives_counters_and_their_ratios(tmp_path: Path) -> None:
    assert perf_text.is_mine(STAT.encode(), "x")

    (one,) = of_text(tmp_path, STAT).counters

    assert one.command == "'python job.py'"
    assert (one.context_switches, one.migrations, one.page_faults, one.major_faults) == (
        1932,
        2,
        1954,
        300,
    )
    assert one.elapsed_s == 2.751918453
    assert one.cpu_s == pytest.approx(1.38522)
    assert one.busy_cores == pytest.approx(0.503, abs=0.001)
    assert one.instructions_per_cycle == 1.5
    assert one.switches_per_cpu_s == pytest.approx(1395, abs=1)
    assert one.branches is None  # not supported is not zero
    assert one.cache_miss_share is None


def test_stat_csv_gives_the_same_fields(tmp_path: Path) -> None:
    assert perf_text.is_mine(STAT_CSV.encode(), "x")

    (one,) = of_text(tmp_path, STAT_CSV).counters

    assert (one.context_switches, one.migrations, one.cycles) == (1672, 4, None)
    assert (one.busy_cores, one.elapsed_s) == (0.512, None)
    assert one.cpu_s == pytest.approx(1.3992)


def test_intervals_add_up_and_what_was_not_counted_has_no_sum(tmp_path: Path) -> None:
    assert perf_text.is_mine(INTERVALS.encode(), "x")

    report = of_text(tmp_path, INTERVALS)

    (one,) = report.counters
    assert (one.page_faults, one.instructions, one.cycles, one.branches) == (
        8072,
        4_000_000,
        None,
        None,
    )
    assert one.elapsed_s == 0.613516733
    assert one.cpu_s == pytest.approx(0.10889)
    assert one.busy_cores == pytest.approx(0.10889 / 0.613516733)
    notes = report.recordings[0].notes
    assert len(notes) == 3
    assert any_mentions(notes, "not counted", "branches", "virtual machine")
    assert any_mentions(notes, "3 intervals", "perf stat -I", "in 1 of them", "sums")
    assert any_mentions(notes, "in some", "no sum", "cycles")


def test_a_summary_is_not_added_to_its_intervals(tmp_path: Path) -> None:
    (one,) = of_text(tmp_path, INTERVALS + SUMMARY).counters
    assert (one.page_faults, one.elapsed_s, one.command) == (8073, 0.613566205, "'python3 j.py'")
    assert one.cpu_s == pytest.approx(0.1089)
    (one,) = of_text(tmp_path, INTERVALS_CSV + SUMMARY_CSV).counters
    assert (one.context_switches, one.elapsed_s) == (107, 0.406006252)
    assert one.cpu_s == pytest.approx(0.11322)
    (one,) = of_text(
        tmp_path, INTERVALS_CSV + SUMMARY_CSV.replace("         summary,", "")
    ).counters
    assert one.context_switches == 107, "--no-csv-summary leaves the first cell out"


def test_intervals_in_csv_add_up(tmp_path: Path) -> None:
    assert perf_text.is_mine(INTERVALS_CSV.encode(), "x")
    (one,) = of_text(tmp_path, INTERVALS_CSV).counters
    assert (one.context_switches, one.cycles, one.elapsed_s) == (107, None, 0.406006252)
    assert one.cpu_s == pytest.approx(0.11321)
    (twice,) = of_text(tmp_path, INTERVALS_CSV * 2).counters
    assert twice.context_switches == 214, "two runs in one file"
    assert twice.elapsed_s == pytest.approx(2 * 0.406006252)


@pytest.mark.parametrize(("clock", "ms"), [("cpu-clock", 20.0), ("task-clock", 400.73)])
def test_intervals_of_a_whole_machine_tell_no_busy_cores(
    tmp_path: Path, clock: str, ms: float
) -> None:
    lines = "#           time             counts unit events\n"
    lines += f"     0.200235836             {ms} msec {clock}    #    2.004 CPUs utilized\n"
    report = of_text(
        tmp_path, lines + "     0.200235836                226      context-switches\n"
    )
    (one,) = report.counters
    assert (one.busy_cores, one.cpu_s, one.context_switches) == (None, None, 226)
    assert any_mentions(report.recordings[0].notes, "busy cores", "not known")


@pytest.mark.parametrize(
    "line",
    [
        (
            "#           time CPU                    counts unit events\n     0.200245239 CPU0    "
            "  "
            "200.40 msec cpu-clock\n"
        ),
        "     5.003532543,S0,1,4263,,cycles,5003532543,100.00,,\n",
    ],
)
def test_counters_by_core_are_refused_and_not_misread(tmp_path: Path, line: str) -> None:
    with pytest.raises(FormatError, match="per-socket"):
        of_text(tmp_path, line + " Performance counter stats for 'x':\n")


def test_script_gives_functions_threads_and_cores(tmp_path: Path) -> None:
    assert perf_text.is_mine(SCRIPT.encode(), "x")

    (one,) = of_text(tmp_path, SCRIPT).stacks

    assert (one.tool, one.unit, one.amount, one.num_threads, one.num_cores) == (
        "perf",
        "samples",
        4,
        3,
        2,
    )
    assert (one.threads[0].name, one.threads[0].share) == ("python 13889", 0.5)
    assert one.busy_cores == pytest.approx(4 * 0.005 / 0.02)
    assert (one.kernel_share, one.page_fault_share, one.page_read_share) == (0.25, 0.25, 0.25)
    assert one.interpreter_share == 0.25  # the second sample alone: innermost in libpython
    assert one.gil_wait_share is None  # threads that wait are not sampled
    spots = {spot.name: spot for spot in one.functions}
    assert (
        spots["_PyEval_EvalFrameDefault"].self_share,
        spots["_PyEval_EvalFrameDefault"].total_share,
    ) == (0.25, 0.5)
    assert "at::native::add(at::Tensor const&, int) [clone .isra.0]" in spots
    assert [(spot.name, spot.file, spot.total_share) for spot in one.training] == [
        ("collate", "/home/me/data.py", 0.5),
        ("step", "/home/me/train.py", 0.25),
    ]


def test_samples_without_stacks_tell_no_shares(tmp_path: Path) -> None:
    text = "".join(f"python 1 {at}.000000:     250000 cpu-clock:pppH: \n" for at in range(3))

    report = of_text(tmp_path, text)

    assert report.stacks[0].kernel_share is None
    assert report.stacks[0].interpreter_share is None
    assert any("without stacks" in note for note in report.recordings[0].notes)


def test_hostile_scripts_are_bounded(tmp_path: Path) -> None:
    deep = "python 1 1.000000: 250000 cpu-clock: \n" + "\tff f (x)\n" * 5000
    names = "".join(
        f"p\x1b[2J {i} 2.{i:06}: 1 cycles: \n\tff f{i}\u202e (x)\n" for i in range(3000)
    )

    blank = "x" + " " * 60_000 + "\n" + "\n" * 60_000
    deleted = "p 1 3.000000: 1 cycles: \n\tff f+0x1 (/memfd:x (deleted))\n"

    (one,) = of_text(
        tmp_path, deep + "\n" + names + "\n" + deleted + blank + "\x00" * 300_000
    ).stacks

    assert one.amount == 3002
    assert len(one.functions) <= 80
    assert len(one.threads) <= 40
    assert one.busy_cores is None  # cycles are no time


@pytest.mark.parametrize(
    "text", [b"", b"\x00\xff" * 4000, b" Performance counter stats for 'x':\n", b"python 1 2: x\n"]
)
def test_nothing_to_read_is_said(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(FormatError, match="Record with perf"):
        of_text(tmp_path, text)


@pytest.mark.parametrize("text", [STAT, STAT_CSV, SCRIPT, INTERVALS + SUMMARY, INTERVALS_CSV])
def test_any_cut_is_read_or_refused(tmp_path: Path, text: str) -> None:
    for end in range(0, len(text), 17):
        with suppress(FormatError):
            assert of_text(tmp_path, text[:end]).recordings


@pytest.mark.parametrize(
    "head",
    [
        b"1,2,loss,3,4\n",
        b"step 1 2.5: loss\n  detail\n",
        b"a;b (x.py:3) 5\n",
        b'{"traceEvents": []}',
    ],
)
def test_other_texts_are_not_claimed(head: bytes) -> None:
    assert not perf_text.is_mine(head, "x")


@pytest.mark.parametrize("whom", ["'system wide'", "'CPU(s) 0-3'"])
def test_a_whole_machines_clock_is_no_busy_core(tmp_path: Path, whom: str) -> None:
    report = of_text(
        tmp_path, STAT.replace("'python job.py'", whom).replace("1385.22 msec", "44030.7 msec")
    )
    (one,) = report.counters
    assert (one.busy_cores, one.cpu_s, one.switches_per_cpu_s) == (None, None, None), (
        "16 idle cores tick too"
    )
    assert one.context_switches == 1932
    assert any("idle cores too" in note for note in report.recordings[0].notes)


def test_two_clocks_count_one_time(tmp_path: Path) -> None:
    line = "           1385.22 msec task-clock                       #    0.503 CPUs utilized\n"
    (one,) = of_text(tmp_path, STAT.replace(line, line + line.replace("task", " cpu"))).counters
    assert one.cpu_s == pytest.approx(1.38522)


def test_samples_of_several_events_are_said(tmp_path: Path) -> None:
    (recording,) = texts_of(of_text(tmp_path, SCRIPT + SCRIPT.replace("cpu-clock", "page-faults")))
    assert any_mentions(recording.notes, "4 of cpu-clock", "4 of page-faults")
    (recording,) = texts_of(of_text(tmp_path, SCRIPT))
    assert not any("several events" in note for note in recording.notes)


def samples() -> Iterator[tuple[str, str, bytes]]:
    texts = {
        "stat": STAT,
        "stat_csv": STAT_CSV,
        "intervals": INTERVALS,
        "intervals_csv": INTERVALS_CSV,
        "script": SCRIPT,
    }
    for name, text in texts.items():
        yield "perf", f"{name}.txt", text.encode()
