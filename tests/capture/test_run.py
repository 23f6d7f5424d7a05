"""Real jobs recorded with nothing edited."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.analyses.run.whole_run import rank_whole_run
from tests.capture.jobs import Ended, environment, record, script, stepscope
from tests.installed import need
from tests.waiting import LONGEST_S, until

need("torch")

WINDOW = ("--start-step", "8", "--steps", "2")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    text = "train(30)\nprint('trained')"
    return record(tmp_path_factory.mktemp("plain"), text, *WINDOW, diagnose=True)


def test_a_plain_loop_gives_steps_and_a_recording(plain: Ended) -> None:
    assert (plain.code, plain.out) == (0, b"trained\n")
    (rank,) = plain.run.ranks
    assert [row["step"] for row in rank.rows] == list(range(1, 30)), (
        "30 optimizer steps are 29 distances"
    )
    assert list(rank.windows) == [8]
    states = [row["state"] for row in rank.rows]
    assert states[:5] == [1] * 5
    assert states[7:10] == [2, 2, 2], "one step to warm the profiler up, and two recorded"
    assert states[-1] == 0
    assert all(row["num_backwards"] == 1 and row["num_batches"] == 0 for row in rank.rows)
    trace = json.loads(rank.windows[8].read_text())
    marks = sorted(
        e["name"]
        for e in trace["traceEvents"]
        if e.get("name", "").startswith("ProfilerStep") and e["ph"] == "X"
    )
    assert sorted(set(marks)) == ["ProfilerStep#10", "ProfilerStep#9"]


def test_the_diagnosis_is_told_on_stderr_and_kept(plain: Ended) -> None:
    assert plain.out == b"trained\n", "the job's own words alone"
    assert "measured without the profiler" in plain.err
    kept = json.loads((plain.folder / "diagnosis.json").read_text())
    assert kept["schema"] == "stepscope.diagnosis/1"
    assert kept["step"]["source"] == "measured"


def test_the_run_is_accounted_for_from_the_process_start_to_its_end(tmp_path: Path) -> None:
    text = """
rows = torch.utils.data.TensorDataset(torch.randn(480, 32))
class SlowStart(torch.utils.data.SequentialSampler):
    def __iter__(self):
        time.sleep(0.25)
        return super().__iter__()
loader = torch.utils.data.DataLoader(rows, batch_size=16, sampler=SlowStart(rows))
def at(step):
    if step % 20 == 15:
        torch.save(model.state_dict(), sys.argv[0] + ".pt")
    if step % 20 == 5:
        # Far longer than a step of 2 ms on a machine whose cores others take.
        model.eval(); time.sleep(0.25); model.train()
step = 0
for epoch in range(2):
    for (x,) in loader:
        at(step)
        step += 1
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
"""
    done = record(tmp_path, text, "--start-step", "900")
    (rank,) = done.run.ranks
    notes, first = rank.metadata, rank.metadata["first_step"]
    moments = [notes["started_ns"], notes["imported_ns"], first["begun_ns"], first["end_ns"]]
    assert moments == sorted(moments)
    assert first["end_ns"] <= (rank.rows[0]["end_ns"] or 0) - (rank.rows[0]["dur_ns"] or 0)
    assert notes["ended_ns"] >= (rank.rows[-1]["end_ns"] or 0)
    assert first["num_batches"] == 1
    (epoch,) = [event for event in rank.events if event["kind"] == "epoch"]
    assert (epoch["step"], epoch["loader"], epoch["wait_ns"] > 0) == (30, first["loader"], True)
    whole = rank_whole_run(rank, done.run.metadata)
    assert whole is not None
    run = done.run.metadata
    assert whole.dur_ns == run["ended_wall_ns"] - run["started_wall_ns"]
    nums = {part.what: part.num for part in whole.parts}
    assert (nums["saves"], nums["evaluation"], nums["epoch_start"]) == (3, 3, 1)
    assert {"start_up", "first_batch", "steady", "shutdown"} <= set(nums)


def test_planted_logging_is_accounted_for(tmp_path: Path) -> None:
    """Slow handlers of logging; a call inside another is counted once, and
    that of another thread not at all."""
    text = """
import logging, threading
planted_ns = called_ns = 0
def planted(seconds):
    global planted_ns
    begun = time.perf_counter_ns()
    time.sleep(seconds)
    if threading.current_thread() is threading.main_thread():
        planted_ns += time.perf_counter_ns() - begun
def call(function, *args, **more):
    global called_ns
    begun = time.perf_counter_ns()
    function(*args, **more)
    called_ns += time.perf_counter_ns() - begun
class Slow(logging.Handler):
    def emit(self, record):
        planted(0.04)
        inside.warning("inside")
class Quick(logging.Handler):
    def emit(self, record):
        planted(0.02)
log, inside = logging.getLogger("job"), logging.getLogger("inside")
log.addHandler(Slow())
inside.addHandler(Quick())
def at(step):
    if step % 10 == 4:
        call(log.warning, "loss")
    if step % 10 == 9:
        call(inside.warning, "loss")
    if step == 25:
        beside = threading.Thread(target=log.warning, args=("beside",))
        beside.start()
        beside.join()
train(60, at)
sys.stdout.write(f"{planted_ns} {called_ns}")
"""
    done = record(tmp_path, text, "--start-step", "900")
    whole = rank_whole_run(done.run.ranks[0], done.run.metadata)
    assert whole is not None
    (part,) = [each for each in whole.parts if each.what == "logging"]
    assert part.num == 12
    planted_ns, called_ns = map(int, done.out.split())
    # A call takes what is planted in it, and on a busy machine the time until a core is free.
    assert planted_ns <= part.dur_ns <= called_ns
    lines = {event["line"] for event in done.run.ranks[0].events if event["kind"] == "log"}
    assert all("train.py" in line for line in lines)


# A spawned worker imports torch anew: one tells what two do.
@pytest.mark.parametrize(("start", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_loader_waits_are_seen_and_workers_leave_no_folder(
    tmp_path: Path, start: str, num_workers: int
) -> None:
    text = f"""
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randn(32)
def main():
    loader = torch.utils.data.DataLoader(
        Slow(), batch_size=8, num_workers={num_workers}, multiprocessing_context={start!r})
    for x in loader:
        model(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
if __name__ == "__main__":
    main()
"""
    ended = record(tmp_path, text, *WINDOW)
    assert ended.code == 0, ended.err
    assert [folder.name for folder in ended.folder.glob("rank-*")] == ["rank-0"]
    (rank,) = ended.run.ranks
    assert all(row["num_batches"] == 1 for row in rank.rows)
    assert sum(row["wait_ns"] or 0 for row in rank.rows) > 0


def test_python_m_and_a_sitecustomize_of_the_machine(tmp_path: Path) -> None:
    script(tmp_path, "train(12)\nimport marker; print(marker.SEEN)", name="job.py")
    (tmp_path / "marker.py").write_text("SEEN = []\n")
    (tmp_path / "sitecustomize.py").write_text("import marker; marker.SEEN.append('theirs')\n")
    words = [
        "run",
        "--no-diagnose",
        "--out",
        str(tmp_path / "run"),
        "--",
        sys.executable,
        "-m",
        "job",
    ]
    done = subprocess.run(
        stepscope(*words),
        capture_output=True,
        timeout=LONGEST_S,
        check=False,
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(tmp_path)),
    )
    assert (done.returncode, done.stdout) == (0, b"['theirs']\n"), done.stderr
    assert (tmp_path / "run" / "rank-0" / "steps.jsonl").is_file()


def test_a_recording_is_made_on_demand_by_file_and_by_signal(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "train(10**9, at_step=lambda s: sys.exit(0) if os.path.exists(sys.argv[1]) else None)",
    )
    run, stop = tmp_path / "run", tmp_path / "stop"
    words = [
        "run",
        "--no-diagnose",
        "--out",
        str(run),
        "--start-step",
        "5",
        "--",
        sys.executable,
        str(path),
        str(stop),
    ]
    process = subprocess.Popen(stepscope(*words), env=environment())

    def recordings() -> int:
        return len(list(run.glob("rank-0/window-*.json")))

    try:
        until(lambda: recordings() == 1)
        (run / "record-now").touch()
        until(lambda: recordings() == 2)
        process.send_signal(signal.SIGUSR2)
        until(lambda: recordings() == 3)
    finally:
        stop.touch()
        assert process.wait(LONGEST_S) == 0


HABITS = """
import gc, io, threading
kept = io.BytesIO()
# So many that to look through them takes more than the millisecond from which on it is told.
index = [[number] for number in range(100_000)]
def habits(step):
    gc.collect()
    torch.save(model.state_dict(), kept)
    beside = threading.Thread(target=torch.save, args=(model.state_dict(), io.BytesIO()))
    beside.start()
    beside.join()
    if step % 10 == 0:
        model.eval()
        model.train()
train(30, habits)
"""


def test_saves_collections_and_evaluations_are_seen_with_their_lines(tmp_path: Path) -> None:
    ended = record(tmp_path, HABITS, *WINDOW)
    (rank,) = ended.run.ranks
    assert all(row["save_ns"] for row in rank.rows)
    assert all(row["gc_ns"] for row in rank.rows)
    assert sum(row["num_evals"] or 0 for row in rank.rows) == 2, (
        "the first is before the first step"
    )
    saves = [event for event in rank.events if event["kind"] == "save"]
    assert len(saves) == len(rank.rows), "what another thread saves holds no step up"
    assert len({save["bytes"] for save in saves}) == 1, "each its own, in one file"
    assert all(save["cpu_ns"] > 0 for save in saves)
    # On a busy machine a step may be slow for a reason of its own, and has a line then.
    lined = [event for event in rank.events if "line" in event and event["kind"] != "slow"]
    assert all("habits" in event["line"] for event in lined)
    assert {event["kind"] for event in lined} == {"save", "gc", "evaluation"}
    marks = json.loads(rank.windows[8].read_text())["stepscope_marks"]
    names = [name.partition(" at ")[0] for name, *_ in marks]
    assert sorted(set(names)) == ["gc.collect()", "torch.save"]
    assert names.count("torch.save") == 2, "of the recorded steps, not of the warm-up"
