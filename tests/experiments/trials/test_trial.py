"""Trials of real training jobs, in processes of their own."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.installed import need

need("torch")

from stepscope.analyses.run.metadata import rank_metadata
from stepscope.core.experiments.trials import Change, Trial, Value
from stepscope.errors import UsageError
from stepscope.experiments.compare.comparability import untaken
from stepscope.experiments.trials.record import _numerics, irregular_step_ns, timed_steps, trial_of
from stepscope.experiments.trials.trial import run_trial, steps_of
from stepscope.process.job import Ended
from stepscope.process.members import members
from stepscope.protocol.run_folder import (
    APPLIED_FILE,
    SITE_FOLDER,
    STDERR_FILE,
    STDOUT_FILE,
)
from stepscope.readers.run_folder.folder import read_run
from stepscope.readers.run_folder.values import Row
from tests.capture.jobs import LIGHT, two_ranks
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.waiting import LONGEST_S
from tests.wording import any_mentions, mentions

JOB = """
import json, os, sys
import torch
from torch import nn
torch.manual_seed(0)
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        return torch.full((32,), float(index % 7)), index % 8
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
lr = float(sys.argv[1]) if len(sys.argv) > 1 else 0.01
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
loader = torch.utils.data.DataLoader(Numbers(), batch_size=16, shuffle=True)
for step, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    fused = optimizer.defaults["fused"]
    row = [step, len(x), loader.num_workers, fused, torch.get_num_threads()]
    sys.stdout.write(json.dumps(row) + "\\n")
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "train.py"
    path.write_text(LIGHT + JOB, encoding="utf-8")
    return [sys.executable, str(path)]


def printed(trial: Trial) -> list[list[object]]:
    """What the job printed; the last lines too, which stood in a buffer when it was ended."""
    return [
        json.loads(line)
        for line in (Path(trial.folder) / STDOUT_FILE).read_text(encoding="utf-8").splitlines()
    ]


def left_running(folder: Path) -> set[int]:
    """Those that have its folder in their environment, and what they started."""
    return members(None, str((folder / SITE_FOLDER).absolute()).encode())


def words(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_knobs_take_hold_in_every_rank_and_all_end_at_the_same_step(
    job: list[str], tmp_path: Path
) -> None:
    command = two_ranks(tmp_path, job[-1])
    loaders: dict[str, Value] = {
        "num_workers": 1,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "batch_size": 4,
        "pin_memory": True,
    }
    ddp: dict[str, Value] = {
        "bucket_cap_mb": 1,
        "find_unused_parameters": False,
        "broadcast_buffers": False,
    }
    knobs: dict[str, Value] = {
        **loaders,
        **ddp,
        "fused_optimizer": True,
        "num_threads": 2,
        "gc": "freeze",
        "anomaly_mode": False,
    }
    trial = run_trial(command, tmp_path / "run", Change(knobs=knobs), max_steps=10, warm_up_steps=6)
    assert (trial.exit_code, trial.is_cut, trial.is_good) == (0, True, True)
    # The first optimizer step has no beginning; then 6 warm up, twice 3 batches may be the loader's
    # stock, and 10 count. The last line would follow the step that ended it.
    assert [row[0] for row in sorted(printed(trial))] == [
        step for step in range(6 + 6 + 10) for _ in range(2)
    ]
    assert all(row[1:] == [4, 1, True, 2] for row in printed(trial) if row[0])
    ranks = read_run(tmp_path / "run").ranks
    assert [[row["step"] for row in rank.rows] for rank in ranks] == [list(range(1, 23))] * 2
    timed = [{row["dur_ns"] for row in rank.rows if (row["step"] or 0) > 12} for rank in ranks]
    assert any(set(trial.step_ns) <= some for some in timed)
    assert len(steps_of(read_run(tmp_path / "run"))) >= len(trial.step_ns)
    assert dict(trial.taken) == {**dict.fromkeys(knobs, 1), "pin_memory": 0}
    assert any_mentions(trial.notes, "pin_memory: ", "no GPU")
    # On a machine that is too busy the look at the job's objects ends before it has seen them all.
    was_seen = ranks[0].metadata["num_objects_seen"] == ranks[0].metadata["num_objects"]
    assert not was_seen or ranks[0].metadata["ddp"][0]["find_unused_parameters"] is False
    assert (trial.setup.batch_size, trial.setup.world_size, trial.setup.seed) == (4, 2, 0)
    assert trial.setup.num_parameters == 32 * 64 + 64 + 64 * 8 + 8
    assert [loss.step for loss in trial.losses] == list(range(23)), (
        "one number a step, of both ranks together"
    )
    assert not left_running(tmp_path / "run")


def test_numerics_are_equal_in_equal_runs_and_differ_when_the_rate_does(
    job: list[str], tmp_path: Path
) -> None:
    Path(job[-1]).write_text(LIGHT + JOB, encoding="utf-8")
    first = run_trial(job, tmp_path / "first", max_steps=4, warm_up_steps=8, with_numerics=True)
    assert [row.step for row in first.numerics] == list(range(13))
    assert [row.step for row in first.numerics if row.parameters] == [0, 10, 12]
    assert first.setup.data is not None
    assert [(loss.step, loss.loss) for loss in first.losses] == [
        (row.step, row.loss) for row in first.numerics
    ]

    seen: list[int] = []

    def is_going_on(steps: Sequence[int]) -> bool:
        seen.append(len(steps))
        return not steps

    # One that nobody wants to see the end of, and that has no end of its own.
    again = run_trial(job, tmp_path / "again", with_numerics=True, on_steps=is_going_on)
    assert (again.is_cut, again.is_good) == (True, True)
    assert not any(seen[:-1])
    assert len(again.step_ns) >= seen[-1] > 0
    assert again.numerics[:11] == first.numerics[:11]
    assert again.setup.data == first.setup.data

    other = run_trial(
        job,
        tmp_path / "other",
        Change(arguments=("0.02",)),
        max_steps=4,
        warm_up_steps=8,
        with_numerics=True,
    )
    assert other.setup.data == first.setup.data
    # The first step sees the same weights and data; its update is another.
    assert [(row.loss, row.grad_norm) for row in other.numerics[:1]] == [
        (row.loss, row.grad_norm) for row in first.numerics[:1]
    ]
    assert other.numerics[0].parameters != first.numerics[0].parameters
    assert other.numerics[5].loss != first.numerics[5].loss


def test_a_job_past_its_time_ends_with_all_that_it_started(tmp_path: Path) -> None:
    apart = "subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    code = (
        f"import signal, subprocess, time; signal.signal(signal.SIGTERM, lambda *_: {apart}); "
        f"{apart}; time.sleep(1000)"
    )
    trial = run_trial(words(code), tmp_path / "run", timeout_s=0.5)
    assert trial.is_timed_out
    assert not trial.is_good
    assert trial.exit_code != 0
    assert not left_running(tmp_path / "run")


@pytest.mark.parametrize(
    ("code", "is_out", "is_guess"),
    [
        (
            (
                "import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to "
                "allocate "
                "2 GiB')"
            ),
            True,
            False,
        ),
        ("import os; os.kill(os.getpid(), 9)", True, True),
        ("import sys; sys.exit('ValueError: \\x1b[31mno such file')", False, False),
        (
            "import sys; sys.stderr.write('CUDA out of memory, trying a smaller batch')",
            False,
            False,
        ),
    ],
)
def test_memory_that_ran_out_is_told_from_other_ends(
    code: str, is_out: bool, is_guess: bool, tmp_path: Path
) -> None:
    trial = run_trial(words(code), tmp_path / "run")
    assert trial.is_out_of_memory is is_out
    assert trial.is_killed is is_guess
    assert "\x1b" not in trial.tail


def test_what_a_job_writes_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.experiments.trials.trial.MAX_OUTPUT_BYTES", 1 << 20)
    # It writes more than is kept, and says a last word when its file was cut.
    code = """
import os, sys, time
while os.fstat(1).st_size < 2 << 20:
    os.write(1, b"x" * 65536)
while os.fstat(1).st_size >= 2 << 20:
    time.sleep(0.01)
sys.stdout.write("the end")
"""
    trial = run_trial(words(code), tmp_path / "run", timeout_s=LONGEST_S)
    assert not trial.is_timed_out
    kept = (tmp_path / "run" / STDOUT_FILE).read_bytes()
    assert len(kept) < 1 << 20
    assert b"are left out)" in kept
    assert b"the end" in kept


def test_a_trial_lays_environment_and_arguments_over_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    code = (
        "import os, sys; print(os.environ['A'], os.environ['OMP_NUM_THREADS'], "
        "os.environ['PYTHONPATH'], *sys.argv[1:])"
    )
    change = Change(environment={"A": "b"}, knobs={"num_threads": 3}, arguments=("--lr", "1"))
    trial = run_trial(words(code), tmp_path / "run", change)
    site = str(tmp_path / "run" / SITE_FOLDER)
    assert (tmp_path / "run" / STDOUT_FILE).read_text(encoding="utf-8").split() == [
        "b",
        "3",
        f"{site}:/theirs",
        "--lr",
        "1",
    ]
    assert trial.taken == {"num_threads": 0}
    assert trial.step_ns == ()
    assert not trial.is_good


def test_what_cannot_be_run_is_said_before_anything_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-command"):
        run_trial(["no-such-command"], tmp_path / "run")
    with pytest.raises(UsageError, match=r"prefetch is not"):
        run_trial(words(""), tmp_path / "run", Change(knobs={"prefetch": 2}))
    assert os.listdir(tmp_path) == []
    (tmp_path / "kept").touch()
    with pytest.raises(UsageError, match="not empty"):
        run_trial(words(""), tmp_path)


def test_a_job_that_ends_within_the_warm_up_is_told_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", exit_code=0)
    add_steps(write_rank(run, 0), [row(step, state=1) for step in range(1, 4)])
    ended = Ended(exit_code=0, wall_s=1.0)
    (longer,) = trial_of(read_run(run), Change(), ended, 5).notes
    assert mentions(longer, "4 steps", "first 6", "longer job")
    assert not mentions(longer, "--warm-up")
    (lower,) = trial_of(read_run(run), Change(), ended, 10).notes
    assert mentions(lower, "4 steps", "first 11", "--warm-up")
    assert trial_of(read_run(run), Change(), ended, 2).notes == ()


def test_why_a_setting_was_not_taken_is_told_whatever_its_value_would_be(tmp_path: Path) -> None:
    """`num_workers` is a number elsewhere in a run folder; here it names the words."""
    run = write_run(tmp_path / "run", exit_code=0)
    rank = write_rank(run, 0)
    add_steps(rank, [row(step) for step in range(1, 31)])
    why = "its dataset is iterable and may give every sample once per worker"
    told = {"counts": {"num_workers": 0}, "reasons": {"num_workers": why}}
    (rank / APPLIED_FILE).write_text(json.dumps(told))
    change = Change(knobs={"num_workers": 4})
    made = trial_of(read_run(run), change, Ended(exit_code=0, wall_s=1.0), 5)
    (told_why,) = untaken(made)
    assert mentions(told_why, "num_workers", why)


def test_the_last_words_of_a_job_are_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", exit_code=1)
    (run / STDERR_FILE).write_bytes(b"x" * 50_000 + "\n\u00e9 the end\n".encode())
    tail = trial_of(read_run(run), Change(), Ended(exit_code=1, wall_s=1.0), 5).tail
    assert tail.endswith("x\n\u00e9 the end")
    assert len(tail) < 5_000


def test_steps_that_save_add_to_the_mean_and_not_to_the_pace() -> None:
    """Of 20 timed steps after the warm-up two save; a third one lies beyond the steps that were
    asked for."""

    def timed(step: int) -> Row:
        is_saved = step in (15, 25, 35)
        values: Row = {
            "step": step,
            "dur_ns": 500 if is_saved else 100,
            "device_ns": None,
            "state": 0,
        }
        more: Row = {"num_batches": 1, "num_backwards": 1, "num_evals": 0}
        return values | more | {"save_ns": 300 if is_saved else 0}

    rows = [timed(step) for step in range(1, 41)]
    steps, _ = timed_steps(rows, 10)
    assert steps == (100,) * 27
    assert irregular_step_ns(rows, 10, 20, steps) == pytest.approx((18 * 100 + 2 * 500) / 20 - 100)
    assert irregular_step_ns(rows, 10, None, steps) == pytest.approx(
        (27 * 100 + 3 * 500) / 30 - 100
    )
    assert irregular_step_ns([row for row in rows if not row["save_ns"]], 10, 20, steps) == 0


@pytest.mark.parametrize(("given", "told"), [(0, None), (2, 2.0)])
def test_a_job_that_feeds_itself_has_no_number_of_batches(
    given: int, told: float | None, tmp_path: Path
) -> None:
    """Not 0: a candidate that is fed by a DataLoader would differ in it, and be refused."""
    run = write_run(tmp_path / "run")
    add_steps(write_rank(run, 0), [row(step, num_batches=given) for step in range(1, 31)])
    made = trial_of(read_run(run), Change(), Ended(exit_code=0, wall_s=1.0), 5)
    assert len(made.step_ns) == 25
    assert made.setup.num_batches == told


@pytest.mark.parametrize(("is_whole", "told"), [(True, 10), (False, None)])
def test_parameters_of_a_model_that_was_walked_in_part_are_not_counted(
    is_whole: bool, told: int | None, tmp_path: Path
) -> None:
    """Else one side of a comparison would have fewer than the other."""
    run = write_run(tmp_path / "run")
    write_rank(run, 0, models=[{"class": "Net", "num_params": 10, "is_whole": is_whole}])
    trial = trial_of(read_run(run), Change(), Ended(exit_code=0, wall_s=1.0), 5)
    assert trial.setup.num_parameters == told
    assert rank_metadata(read_run(run).ranks[0]).num_parameters == told


@pytest.mark.parametrize(
    ("optimizer_ns", "told"), [(0, "a backward pass"), (1000, "an optimizer's step")]
)
def test_what_a_step_ends_with_is_told(optimizer_ns: int, told: str, tmp_path: Path) -> None:
    """A side that leaves the update out does less, and is not the same job."""
    run = write_run(tmp_path / "run")
    add_steps(write_rank(run, 0), [row(step, optimizer_ns=optimizer_ns) for step in range(1, 31)])
    assert (
        trial_of(read_run(run), Change(), Ended(exit_code=0, wall_s=1.0), 5).setup.ends_with == told
    )


def test_numerics_keep_a_loss_that_is_no_number_and_leave_out_what_is_none(tmp_path: Path) -> None:
    path = tmp_path / "numerics.jsonl"
    lines = [
        "[0, NaN, Infinity, null, 1]",
        "[1, 1" + "0" * 400 + ', [], null, "x"]',
        "[" * 100_000,
        "7",
        "[true, 1, 1, null, 1]",
    ]
    path.write_bytes("\n".join(lines).encode() + b"\n[2, 1, \xff")
    first, second = _numerics(path)
    assert (first.step, math.isnan(first.loss or 0.0), first.grad_norm, first.parameter_norm) == (
        0,
        True,
        math.inf,
        1.0,
    )
    assert (second.step, second.loss, second.grad_norm, second.parameter_norm) == (
        1,
        None,
        None,
        None,
    )
