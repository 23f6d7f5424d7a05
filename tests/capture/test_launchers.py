"""Jobs as people start and write them: ranks that are spawned or forked, threads, several
optimizers, odd ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.readers.run_folder.folder import RankRecord, RunRecord, read_run
from tests.capture.jobs import (
    LOOP,
    environment,
    run_light,
    run_to_end,
    script,
    torchrun,
)
from tests.installed import package

torch = package("torch")

WINDOW = ("--start-step", "8", "--steps", "2")


QUIET = (*WINDOW, "--no-diagnose")


def run(
    where: Path,
    *command: str,
    out: str = "",
    code: int = 0,
    stdin: str | None = None,
    told: tuple[str, ...] = QUIET,
) -> RunRecord:
    """The command's run folder, once its output and exit code are seen to be its own."""
    words = ["run", "--out", "kept", *told, "--", *command]
    if stdin is None:
        ours = run_light(*words, env=environment(), cwd=where)
    else:
        ours = run_to_end(*words, env=environment(), cwd=where, stdin=stdin.encode())
    err = ours.stderr.decode()
    assert (ours.returncode, ours.stdout.decode()) == (code, out), err
    assert "Traceback" not in err, err
    kept = read_run(where / "kept")
    assert [rank.problem for rank in kept.ranks] == [None] * len(kept.ranks)
    return kept


def steps(rank: RankRecord) -> int:
    """Optimizer steps: distances between them, and the first."""
    return len(rank.rows) + 1


RANKS = """
import torch.distributed as dist
import torch.multiprocessing as processes
def rank_main(rank, folder):
    meeting = "file://" + folder + "/meet"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    ddp = nn.parallel.DistributedDataParallel(model)
    mine = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(20):
        ddp(torch.randn(4, 32)).mean().backward()
        mine.step(); mine.zero_grad()
    # DDP first: where it has the group last, its end holds the interpreter while it waits for
    # gloo's thread, which may want it to let its last work go (torch 2.13), and neither goes on.
    del ddp, mine
    dist.destroy_process_group()
if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        processes.start_processes(rank_main, (folder,), nprocs=2, start_method=sys.argv[1])
    print("both done")
"""


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_ranks_that_no_launcher_numbers_record_all_their_steps(tmp_path: Path, start: str) -> None:
    kept = run(
        tmp_path,
        sys.executable,
        str(script(tmp_path, RANKS)),
        start,
        out="both done\n",
    )
    assert [(rank.rank, steps(rank), list(rank.windows)) for rank in kept.ranks] == [
        (0, 20, [8]),
        (1, 20, [8]),
    ]
    assert kept.notes == ()


KINDS = {
    "thread": """
import threading
thread = threading.Thread(target=train, args=(20,)); thread.start(); thread.join()
gone = threading.Thread(target=sys.exit, args=(4,)); gone.start(); gone.join()
""",
    "gan": """
critic = nn.Linear(8, 1)
other = torch.optim.Adam(critic.parameters())
for _ in range(20):
    other.zero_grad(); critic(model(torch.randn(4, 32)).detach()).mean().backward(); other.step()
    optimizer.zero_grad(); critic(model(torch.randn(4, 32))).mean().backward(); optimizer.step()
""",
    "accumulated": """
for _ in range(20):
    for _ in range(4):
        (model(torch.randn(16, 32)).mean() / 4).backward()
    optimizer.step(); optimizer.zero_grad()
""",
    "lbfgs": """
search, x = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), torch.randn(16, 32)
def closure():
    search.zero_grad(); loss = model(x).square().mean(); loss.backward(); return loss
for _ in range(20):
    search.step(closure)
""",
    "as gradients come": """
each = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
def hook(p):
    each[p].step(); each[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
for _ in range(20):
    model(torch.randn(4, 32)).square().mean().backward()
""",
    "scaled": """
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    scaler.scale(model(torch.randn(4, 32)).mean()).backward()
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
""",
    "another default device": """
torch.set_default_device("meta"); torch.set_default_dtype(torch.float64)
model = nn.Linear(4, 4); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.randn(2, 4)).mean().backward(); optimizer.step(); optimizer.zero_grad()
""",
    "elsewhere": """
os.environ.pop("PYTHONPATH", None)
os.chdir("/")
train(20)
""",
}
NUM_BACKWARDS = {"gan": {2}, "accumulated": {4}, "lbfgs": {1, 2, 3}}

FORKED = """
for name, text in KINDS.items():
    child = os.fork()
    if child == 0:
        # A process each, for a kind leaves torch changed; multiprocessing's way out, which atexit
        # has no part in.
        os.environ["RANK"] = str(list(KINDS).index(name))
        import multiprocessing.util
        code = 1
        try:
            exec(text, globals())
            code = 0
        finally:
            multiprocessing.util._exit_function()
            os._exit(code)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RankRecord]:
    folder = tmp_path_factory.mktemp("kinds")
    path = script(folder, f"KINDS = {KINDS!r}\n" + FORKED)
    kept = run(folder, sys.executable, str(path), out="".join(f"{name} 0\n" for name in KINDS))
    return {name: kept.ranks[number] for number, name in enumerate(KINDS)}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_turn_of_the_loop_is_a_step_however_it_is_written(
    kinds: dict[str, RankRecord], kind: str
) -> None:
    rank = kinds[kind]
    assert steps(rank) == 20
    assert list(rank.windows) == [8]
    assert {row["num_backwards"] for row in rank.rows} <= NUM_BACKWARDS.get(kind, {1})


def test_a_profiler_with_a_schedule_of_the_jobs_own_is_left_alone(tmp_path: Path) -> None:
    text = """
from torch.profiler import ProfilerActivity, profile, schedule
seen, plan = [], schedule(wait=2, warmup=3, active=2, repeat=2)
see = lambda p: seen.append(len(p.events()) > 0)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=see) as own:
    train(20, lambda step: own.step(), pause_s=0)
print(seen)
"""
    told = ("--start-step", "3", "--no-diagnose")
    (rank,) = run(
        tmp_path, sys.executable, str(script(tmp_path, text)), out="[True, True]\n", told=told
    ).ranks
    assert steps(rank) == 20


@pytest.mark.parametrize("way", ["-", "a shell script"])
def test_a_program_that_is_no_file(tmp_path: Path, way: str) -> None:
    text = LOOP + "train(20)\nprint('done')\n"
    if way == "a shell script":
        script(tmp_path, "train(20)\nprint('done')", name="job.py")
        shell = tmp_path / "go.sh"
        shell.write_text(f"echo first\n{sys.executable} -m job\necho last\nexit 3\n")
        kept = run(tmp_path, "sh", "go.sh", out="first\ndone\nlast\n", code=3)
    else:
        kept = run(tmp_path, sys.executable, "-", stdin=text, out="done\n")
    assert [(steps(rank), list(rank.windows)) for rank in kept.ranks] == [(20, [8])]


def test_an_isolated_python_runs_without_and_the_user_is_told(tmp_path: Path) -> None:
    path = script(tmp_path, "train(3)\nprint('done')")
    kept = run(tmp_path, sys.executable, "-I", str(path), out="done\n", told=WINDOW)
    assert kept.ranks == ()
    (note,) = kept.notes
    assert "python -I" in note
    assert "python -I" in (tmp_path / "kept" / "diagnosis.json").read_text()


def test_a_job_that_leaves_at_once_keeps_what_was_written(tmp_path: Path) -> None:
    text = """
train(20)
print("leaving", flush=True)
os._exit(0)
"""
    (rank,) = run(tmp_path, sys.executable, str(script(tmp_path, text)), out="leaving\n").ranks
    assert 8 <= steps(rank) <= 20
    assert list(rank.windows) == [8]


def test_a_python_that_has_no_stepscope_of_its_own(tmp_path: Path) -> None:
    """Another environment, which sees torch but not us: the capture comes through the run folder
    alone."""
    import venv

    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    python = tmp_path / "other" / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import sys; print(sys.path[-1])"],
        capture_output=True,
        text=True,
        check=True,
    )
    site, libraries = Path(found.stdout.strip()), tmp_path / "libraries"
    libraries.mkdir()
    assert torch.__file__ is not None
    for installed in Path(torch.__file__).parents[1].iterdir():
        if "stepscope" not in installed.name and installed.suffix != ".pth":
            (libraries / installed.name).symlink_to(installed)
    (site / "libraries.pth").write_text(f"{libraries}\n")
    (tmp_path / "linked").symlink_to(tmp_path / "other")
    text = "train(20)\nprint('done')"
    python = tmp_path / "linked" / "bin" / "python"
    alone = [
        str(python),
        "-c",
        "import importlib.util as u; print(u.find_spec('stepscope'), u.find_spec('torch') is None)",
    ]
    asked = subprocess.run(
        alone, capture_output=True, text=True, check=True, env=environment(), cwd=tmp_path
    )
    assert asked.stdout == "None False\n", "the environment is what this test means it to be"
    (rank,) = run(tmp_path, str(python), str(script(tmp_path, text)), out="done\n").ranks
    assert steps(rank) == 20
    assert list(rank.windows) == [8]


STRAGGLER = """
import torch.distributed as dist
dist.init_process_group("gloo")
late = dist.get_rank() == 1 and sys.argv[1] == "late"
big = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]))
mine = torch.optim.SGD(big.parameters(), lr=0.01)
for _ in range(24):
    loss = big(torch.randn(64, 256)).square().mean()
    if late:
        time.sleep(0.3)
    loss.backward(); mine.step(); mine.zero_grad()
# As above.
del big, mine
dist.destroy_process_group()
"""


def test_ranks_of_a_launcher_record_themselves_and_one_that_comes_late_is_named(
    tmp_path: Path,
) -> None:
    """On a machine whose cores other work takes, a replay may miss the step, and then nobody is
    named: another recording is made. The wrong one is never named."""
    path = script(tmp_path, STRAGGLER)
    launcher = torchrun(tmp_path, str(path), "late")
    for number in range(5):
        place = tmp_path / str(number)
        place.mkdir()
        kept = run(place, *launcher, told=("--start-step", "10"))
        assert [(rank.rank, steps(rank), list(rank.windows)) for rank in kept.ranks] == [
            (0, 24, [10]),
            (1, 24, [10]),
        ]
        diagnosis = json.loads((place / "kept" / "diagnosis.json").read_text())
        named = [
            finding["ranks"] for finding in diagnosis["findings"] if finding["code"] == "late-rank"
        ]
        assert named in ([], [[1]])
        if named:
            return
    pytest.fail("five recordings, and nobody was named in any")
