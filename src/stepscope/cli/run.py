"""Record a job with nothing edited, then diagnose it.

COMMAND is what starts the job: python train.py, python -m pkg, torchrun, accelerate launch,
deepspeed, a shell script. Steps are timed with no profiler attached; then the profiler watches a
few of them; then they are timed again. The job's output and exit code are its own; what stepscope
has to say goes to stderr. While it runs, `kill -USR2` on this process, or a file RUN/record-now,
asks for another recording.
"""

from __future__ import annotations

import shlex
import shutil
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli import options as declare
from stepscope.cli.additions import Watcher, after_job, beside_job
from stepscope.cli.options import int_in_range
from stepscope.cli.printing import say
from stepscope.errors import StepscopeError, UsageError
from stepscope.process.stderr import drop
from stepscope.protocol.options import Options as RecordingOptions
from stepscope.protocol.run_folder import RUNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.core.hardware import ProbedTimes

NO_SCRIPT = 2
"""What Python gives for a script that is not there."""
PYTHON_FLAGS = frozenset({"-u", "-O", "-OO", "-B", "-E", "-I", "-s", "-S", "-q", "-v", "-P"})
NOT_FOUND = 127
"""What a shell gives for a command that is not there."""
BESIDE_JOB, AFTER_JOB = beside_job(), after_job()
_count = int_in_range("a number of steps; give 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What is recorded, and when."""

    start_step: int | None = declare.option(
        "--start-step N",
        "the step to record from (default: the first good moment after 15 steps)",
        _count,
    )
    num_steps: int = declare.option("--steps N", "steps in a recording (default: 3)", _count, 3)
    num_windows: int = declare.option("--windows N", "recordings to make (default: 1)", _count, 1)
    every_steps: int = declare.option(
        "--every N", "steps between two of them (default: 1000)", _count, 1000
    )
    modules: bool = declare.option(
        "--modules", "mark modules in the recording: findings then name them"
    )
    stacks: bool = declare.option(
        "--stacks", "record Python's stacks too: findings then name lines of code"
    )
    memory: bool = declare.option("--memory", "record allocations too")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    out: Path | None = declare.option(
        "--out DIR", f"where to keep the run (default: a dated folder in {RUNS}/)", Path
    )
    recorded: Recorded = declare.part(Recorded)
    watched: Any = declare.part(BESIDE_JOB.options)
    probed: Any = declare.part(AFTER_JOB.options)
    hardware: Path | None = declare.hardware()
    verbose: bool = declare.verbose()
    is_diagnosed: bool = declare.option(
        "--no-diagnose", "record, and leave it at that", action="store_false"
    )
    command: tuple[str, ...] = declare.command()


def run(options: Options) -> int:
    from stepscope.readers.hardware_file import read_hardware

    command = command_of(options.command)
    try:
        refuse_unrunnable(command)
    except UsageError as problem:
        say(problem)
        return NOT_FOUND
    script = missing_script(command)
    if script is not None:
        say(f"{script} is not in {Path.cwd()}: the job cannot start. Is its path right?")
        return NO_SCRIPT
    if options.hardware is not None:
        # Said before the job starts, not after it.
        read_hardware(options.hardware)
    folder = made_folder(options.out)
    code = record(
        folder,
        command,
        RecordingOptions(**asdict(options.recorded)),
        watch=lambda: BESIDE_JOB.start(folder, options.watched),
    )
    if options.is_diagnosed:
        diagnose_run(
            folder,
            options.hardware,
            verbose=options.verbose,
            time_after=lambda devices: AFTER_JOB.time(devices, command, options.probed),
        )
    return code


def missing_script(command: Sequence[str]) -> str | None:
    """The script of `python [flags] script.py`, where it is not there. Other launchers know
    themselves what they start."""
    program, *words = command
    if not Path(program).name.startswith("python") or not words:
        return None
    script = next((word for word in words if not word.startswith("-")), "")
    before = words[: words.index(script)] if script else []
    # After an option that takes a value (-m, -c, -W, -X) the first word is not the script.
    is_script = script.endswith(".py") and all(flag in PYTHON_FLAGS for flag in before)
    return script if is_script and not Path(script).exists() else None


def command_of(
    words: Sequence[str], example: str = "stepscope run -- python train.py"
) -> tuple[str, ...]:
    """What stood after the two dashes."""
    if not words:
        raise UsageError(f"no command was given. Write it after two dashes: {example}")
    return tuple(words)


def refuse_unrunnable(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]} is not a command that can be run here. Is it spelled right, and on PATH?"
        )


def record(
    folder: Path,
    command: Sequence[str],
    options: RecordingOptions,
    watch: Callable[[], Watcher] | None = None,
) -> int:
    """Runs the job with the capture in it; without, where the folder cannot be written. Returns its
    exit code."""
    from stepscope import __version__
    from stepscope.process.control import Requests
    from stepscope.process.launch import launch, prepare

    try:
        started = prepare(folder, command, options, __version__)
    except OSError as problem:
        say(
            f"nothing can be recorded in {folder} ({problem.strerror}); the job runs without. "
            "Give --out a folder that can be written"
        )
        return launch(None, command, {})

    watcher = None if watch is None else watch()
    requests = Requests(folder)

    def meanwhile() -> None:
        with suppress(OSError):
            # A file system that does not answer for a moment must not end the launcher: the job
            # would go with it.
            requests.look()
        if watcher is not None:
            watcher.look()

    try:
        return launch(folder, command, started, meanwhile=meanwhile, on_usr2=requests.ask)
    finally:
        if watcher is not None:
            watcher.close()


def diagnose_run(
    folder: Path,
    hardware: Path | None = None,
    *,
    verbose: bool = False,
    time_after: Callable[[dict[str, ProbedTimes]], bool] | None = None,
) -> None:
    """Prints the diagnosis on stderr and keeps it in the folder. Whatever goes wrong here, the
    job's exit code stands. `time_after` times what the findings ask for, and says whether to judge
    anew."""
    try:
        _diagnose(folder, hardware, verbose=verbose, time_after=time_after)
    except StepscopeError as problem:
        say(str(problem))
    except KeyboardInterrupt:
        say(f"interrupted; the run is kept in {folder}: stepscope diagnose {folder}")
    except OSError as problem:
        say(f"the diagnosis or its report could not be kept in {folder}: {problem.strerror}")
    except Exception as problem:  # noqa: BLE001 - the job has ended as it did, and its exit code is what the caller waits for
        say(
            f"the diagnosis failed, which is a fault of stepscope: {type(problem).__name__}: "
            f"{problem}"
        )


def _diagnose(
    folder: Path,
    hardware: Path | None,
    *,
    verbose: bool,
    time_after: Callable[[dict[str, ProbedTimes]], bool] | None,
) -> None:
    from rich.console import Console

    from stepscope.cli.printing import progress_bar
    from stepscope.cli.report import keep
    from stepscope.pipeline.options import Options as ReadingOptions
    from stepscope.pipeline.page import page_of_recording
    from stepscope.pipeline.recording import Recording
    from stepscope.protocol.run_folder import DIAGNOSIS_FILE, REPORT_FILE, is_run
    from stepscope.report.diagnosis.json import to_json
    from stepscope.report.diagnosis.short import next_commands, short_document
    from stepscope.report.diagnosis.whole import diagnosis_document
    from stepscope.report.document.terminal import show
    from stepscope.report.html import render_page
    from stepscope.report.html.model import page_of

    if not is_run(folder):
        return
    options = ReadingOptions(use_cache=False, hardware=hardware, progress=progress_bar)
    with ExitStack() as stack:
        recording = stack.enter_context(Recording([str(folder)], options))
        _ = recording.diagnosis
        if time_after is not None and time_after(recording.probed.by_name):
            recording = stack.enter_context(Recording([str(folder)], options))
        diagnosis, report = recording.diagnosis, folder / REPORT_FILE
        say(f"the run is kept in {folder}")
        document = diagnosis_document(diagnosis)
        if not verbose:
            whole = f"stepscope diagnose {shlex.quote(str(folder))} -v"
            document = short_document(
                diagnosis, next_commands(diagnosis, whole, shlex.quote(str(report)))
            )
        try:
            show(document, Console(stderr=True))
        except (OSError, SystemExit):
            # Nobody reads stderr any more, which rich takes for an end; the folder gets the
            # diagnosis all the same.
            drop()
        (folder / DIAGNOSIS_FILE).write_text(to_json(diagnosis) + "\n", encoding="utf-8")
        keep(render_page(page_of(page_of_recording(recording))), report)
        if verbose:
            say(f"the report is {report}")


def keep_result(path: Path, text: str) -> None:
    """What was measured cannot be measured again: a full disk is reported, and the report still
    printed."""
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as problem:
        say(f"{path} could not be written: {problem.strerror}")


def new_folder(out: Path | None) -> Path:
    """Where runs are kept: as given, if nothing is there, else a dated folder."""
    folder = out or dated(Path(RUNS))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder} is there already and not empty. Give --out another folder, or take that "
            "one away"
        )
    return folder


def made_folder(out: Path | None) -> Path:
    """The same, made at once, so that a run begun in the same second gets another. Where none can
    be made the job runs all the same, and the recording says why it cannot."""
    while True:
        folder = new_folder(out)
        try:
            folder.mkdir(parents=True, exist_ok=out is not None)
        except FileExistsError:
            if folder.is_dir():
                continue
        except OSError:
            pass
        return folder


def dated(parent: Path) -> Path:
    """A folder that is not there yet, named for now."""
    name = f"{datetime.now().astimezone():%Y-%m-%d-%H%M%S}"
    folder, number = parent / name, 2
    while folder.exists():
        folder, number = parent / f"{name}-{number}", number + 1
    return folder
