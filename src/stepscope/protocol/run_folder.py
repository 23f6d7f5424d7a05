"""The run folder: where each thing that a recorded run leaves behind lies, and what its lines mean.

    RUN/run.json                        the command, its times and end, what was asked
    RUN/site/sitecustomize.py           what every Python of the job starts with
    RUN/site/entered                    there from when it first met torch
    RUN/site/aside                      the run around or inside of this one that records its job
    RUN/control.json                    what the job is asked while it runs: a recording, a stop
    RUN/alerts.jsonl                    a line per alert: kind, ranks, step, words, at_wall_ns
    RUN/rank-3/rank.json                the rank, its machine, versions, environment, knobs, model
    RUN/rank-3/steps.jsonl              a header, an array per step without profiler (STEP_COLUMNS)
    RUN/rank-3/step_summary.jsonl       a header, an array per ten seconds of a long run
                                        (STEP_SUMMARY_COLUMNS); pace.jsonl up to version 0.1.0
    RUN/rank-3/samples.jsonl            a line per second: the device's counters, memory, the host
    RUN/rank-3/live.jsonl               of a long run: the last steps and samples that the two files
                                        above are too full for; begun anew when it is large
    RUN/rank-3/events.jsonl             a line per save, compilation, collection, epoch, recording
    RUN/rank-3/window-20.pt.trace.json  what the profiler saw from step 20 on
    RUN/rank-3/problem.txt              why the capture switched itself off, where it did
    RUN/rank-3/ended.json               that the rank ended itself after the steps asked for
    RUN/rank-3/applied.json             of a trial: each setting, on how many objects, or why not
    RUN/rank-3/equal.json               of a trial: the seed, and a digest of the first batches
    RUN/rank-3/losses.json              of a trial: the loss of each backward pass, and when
    RUN/rank-3/numerics.jsonl           of a trial: what each step computed
    RUN/out-of-memory-4711.json         of a process that died of it: who asked, what was held
    RUN/stdout.txt, RUN/stderr.txt      of a trial: what the job printed
    RUN/diagnosis.json, RUN/report.html what stepscope says of the run

Times are integer nanoseconds: `_ns` of time.perf_counter_ns unless a name says `wall`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from stepscope.protocol.json_text import json_text
from stepscope.protocol.untrusted import as_object, read_json_object
from stepscope.protocol.whole_write import write_whole

SCHEMA = "stepscope.run/1"
RUNS = "stepscope-runs"
"""Where runs are kept, seen from where the job was started."""
TAGS_FILE = "tags.json"
"""File in RUNS with names that a person gave to runs."""
RUN_FILE = "run.json"
RANK_FILE = "rank.json"
STEPS_FILE = "steps.jsonl"
STEP_SUMMARY_FILE = "step_summary.jsonl"
OLD_STEP_SUMMARY_FILE = "pace.jsonl"
SAMPLES_FILE = "samples.jsonl"
EVENTS_FILE = "events.jsonl"
LIVE_FILE = "live.jsonl"
PROBLEM_FILE = "problem.txt"
CONTROL_FILE = "control.json"
ALERTS_FILE = "alerts.jsonl"
DIAGNOSIS_FILE = "diagnosis.json"
REPORT_FILE = "report.html"
ENDED_FILE = "ended.json"
APPLIED_FILE = "applied.json"
EQUAL_FILE = "equal.json"
LOSSES_FILE = "losses.json"
NUMERICS_FILE = "numerics.jsonl"
STDOUT_FILE = "stdout.txt"
STDERR_FILE = "stderr.txt"
FAILURE_NAME = "out-of-memory-{pid}.json"
RUN_FILES = (
    *(RUN_FILE, RANK_FILE, STEPS_FILE, STEP_SUMMARY_FILE, OLD_STEP_SUMMARY_FILE, SAMPLES_FILE),
    *(EVENTS_FILE, LIVE_FILE, ALERTS_FILE, DIAGNOSIS_FILE, ENDED_FILE),
)
"""What a run has beside its traces."""
SITE_FOLDER = "site"
ENTERED_FILE = "entered"
"""File in the site folder, from when the capture first got into a process that imports torch."""
ASIDE_FILE = "aside"
"""File in the site folder, where another `stepscope run` inside of the job, or around it, records
what it starts: that one's folder."""
RANK_FOLDER = re.compile(r"^rank-(\d{1,7})(?:\.(\d{1,10}))?$")
"""The number of the rank, and of the process where another one of the same rank was there before
it."""
OWN_PROFILER = (
    "a profiler of the job's own was attached",
    "the job started a profiler of its own",
)
"""Why a recording was not made: the `problem` of its event."""
WINDOW_NAME = re.compile(r"^window-(\d{1,12})\.pt\.trace\.json(?:\.gz)?$")

STEP_COLUMNS = (
    "step", "end_ns", "dur_ns", "device_ns", "wait_ns", "num_batches", "backward_ns",
    "num_backwards", "optimizer_ns", "save_ns", "gc_ns", "state", "num_evals", "wait_cpu_ns",
    "device_backward_ns", "comm_ns", "log_ns", "between_ns",
)  # fmt: skip
"""One step, from the end of one optimizer step to the end of the next.

`device_ns` is the same distance on the device's own clock, null when it was not measured. `wait_ns`
is spent in next() of a DataLoader, `backward_ns` in backward(), `optimizer_ns` in optimizer steps,
all on the host. `state` is one of STATES, `num_evals` how often eval() of a
module was called, `wait_cpu_ns` what of `wait_ns` the thread spent on a core. `device_backward_ns`
is what of `device_ns` lies after the start of the last backward pass, `comm_ns` is spent in
functions of torch.distributed, `log_ns` in what writes logs, on the host. `between_ns` is from the
last step's end until a batch is first asked for, null where none is.
"""
MODULES_FIELD, MODULE_PREFIX = "stepscope_modules", "nn.Module: "
"""Field of a recording whose operators with such names are marks of modules."""
MARKS_FIELD = "stepscope_marks"
"""Field of a recording: a list of `[name, begun_wall_ns, ended_wall_ns, thread]`, what the hooks
saw and the profiler does not record. A name may end with ` at ` and the line that asked for it, as
the profiler names frames."""
STATES = ("timed", "first", "profiled", "after")
"""timed: nothing but our hooks; first: too early to count; profiled: a profiler was attached;
after: the profiler has just left, or wrote its file in this step."""
STEP_SUMMARY_COLUMNS = (
    "first_step", "num_steps", "from_ns", "to_ns", "min_ns", "max_ns", "wait_ns", "save_ns",
    "num_evals", "log_ns", "slow_ns",
)  # fmt: skip
"""Steps one after the other. `slow_ns` is what slow steps among them took longer than the others,
saves left out."""


MAX_STOCK_STEPS = 400


def stock_steps(num_workers: object, prefetch_factor: object) -> int:
    """Steps that a loader's stock of ready batches may feed, and for which a trial waits: workers
    fill it while a first step compiles.

    Twice the stock, for as it is used up it is half refilled; where a worker is hardly slower than
    a step, what is left of it changes little.
    """
    workers = num_workers if isinstance(num_workers, int) else 0
    factor = prefetch_factor if isinstance(prefetch_factor, int) else 2
    return min(2 * max(workers, 0) * max(factor, 1), MAX_STOCK_STEPS)


def read_options(run: Path) -> dict[str, Any]:
    """What was asked of the capture; empty where nothing can be read."""
    return as_object(read_json_object(run / RUN_FILE).get("options"))


def read_settings(run: Path) -> dict[str, Any]:
    """What a trial lays over the job's own settings, by the names of protocol.settings.SETTINGS."""
    return as_object(read_json_object(run / RUN_FILE).get("settings"))


def step_summary_path(rank_folder: Path) -> Path:
    old = rank_folder / OLD_STEP_SUMMARY_FILE
    return old if old.exists() else rank_folder / STEP_SUMMARY_FILE


def write_json(path: Path, value: object) -> None:
    """Whole or not at all: a reader never meets half a file."""
    write_whole(path, (json_text(value, indent=1) + "\n").encode())


def claim_rank(run: Path, rank: int) -> Path:
    """A folder for this process to write to. A second process of the same rank gets its own, told
    by its process number."""
    for name in (f"rank-{rank}", f"rank-{rank}.{os.getpid()}"):
        folder = run / name
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    return folder


def is_run(path: Path) -> bool:
    """Whether it is a folder that `stepscope run` made."""
    return read_json_object(path / RUN_FILE).get("schema") == SCHEMA
