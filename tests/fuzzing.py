"""Damaged files go the whole way: read, measured, judged, drawn and written as JSON, or refused in
words.

A round takes a sample of a format, damages it by a seed, and asks for all of these;
`Outcome.problem` says what was wrong. tests/test_fuzz.py runs some rounds of every format, `python
-m benchmarks.fuzz` as many as one likes.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema  # type: ignore[import-untyped]

from stepscope.cli.main import main
from stepscope.cli.printing import say
from stepscope.core.diagnosis import Diagnosis
from stepscope.errors import StepscopeError
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.readers import stream
from stepscope.readers.kineto import json_chunks as feed
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.markdown import to_markdown
from stepscope.report.document.terminal import to_text
from tests.format_samples import CLUSTER, DIAGNOSIS, HARDWARE, MODEL, RUN, WATCHED, Sample, samples
from tests.mutations import mutated
from tests.shared_data import ROOT
from tests.splices import name_of, spliced

READ, REFUSED = "diagnosed", "refused"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
WINDOW = re.compile(r"window-|diagnosis")
"""Of a run, damaged less often: traces and diagnoses are fuzzed by themselves."""
WIDTH = 80
HANG_S = 120
PLAN = ("plan", "--seq", "2048", "--global-batch", "64", "--format", "json")
ALONE = (CLUSTER, DIAGNOSIS, HARDWARE, MODEL, RUN, WATCHED)
"""Not given together with other recordings."""
SPLICE = "splice"
"""The kind of what is made of pieces of all."""
DEFAULTS = {"--model": "llama3-8b", "--cluster": "1x8xH200"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    kind: str
    seed: int
    answer: str
    """READ or REFUSED."""
    num_notes: int = 0
    seconds: float = 0.0
    """On the processor: other work on the machine does not count."""
    problem: str | None = None
    """What must not be, and where."""


@cache
def kinds() -> tuple[str, ...]:
    """Every format, and what else is fuzzed."""
    return tuple(dict.fromkeys(sample.kind for sample in samples()))


def run_round(kind: str, seed: int, folder: Path) -> Outcome:
    """One damaged input; `folder` is emptied, and holds it afterwards."""
    chance = random.Random(f"{kind} {seed}")
    sample = chance.choice([one for one in samples() if one.kind == kind])
    shutil.rmtree(folder, ignore_errors=True)
    files = write_damaged(sample, chance, folder)
    if kind not in ALONE and chance.random() < 0.3:
        files += _beside(chance, folder)
    return _outcome(kind, seed, files, folder, chance)


def run_splice(seed: int, folder: Path) -> Outcome:
    """One to three files made of pieces of samples of any kinds, under the name of any."""
    chance = random.Random(f"{SPLICE} {seed}")
    every = [
        (sample.kind, name, data) for sample in samples() for name, data in sample.files.items()
    ]
    names = [name for _, name, _ in every]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files, kind = [], SPLICE
    for number in range(chance.choice((1, 1, 1, 2, 3))):
        (kind, _, one), (_, _, other) = chance.choice(every), chance.choice(every)
        path = folder / f"{number}_{name_of(names, chance)}"
        path.write_bytes(spliced(one, other, chance))
        files.append(path)
    as_kind = kind if kind in ALONE and kind not in (RUN, WATCHED) else SPLICE
    return _outcome(as_kind, seed, files, folder, chance, told=SPLICE)


def _outcome(
    kind: str,
    seed: int,
    files: list[Path],
    folder: Path,
    chance: random.Random,
    told: str | None = None,
) -> Outcome:
    """What became of them, asked as this kind is."""
    begun = time.process_time()
    answer, num_notes, problem = READ, 0, None
    try:
        with _no_hang(), _small_pieces(chance):
            num_notes = ask(kind, files, folder)
    except StepscopeError as refusal:
        answer, problem = REFUSED, _message_problem(_said(refusal))
    except AnswerError as wrong:
        problem = str(wrong)
    except BaseException as crash:
        if isinstance(crash, KeyboardInterrupt):
            raise
        problem = f"CRASH {type(crash).__name__}: {str(crash)[:200]} at {_place(crash)}"
    seconds = time.process_time() - begun
    return Outcome(
        kind=told or kind,
        seed=seed,
        answer=answer,
        num_notes=num_notes,
        seconds=seconds,
        problem=problem,
    )


def _beside(chance: random.Random, folder: Path) -> list[Path]:
    """Other recordings given together with the first: a trace, or what any tool wrote, whole or
    damaged."""
    files = []
    for number in range(chance.choice([1, 1, 2])):
        sample = chance.choice(
            [one for one in samples() if one.kind not in ALONE and (number or one.kind == "kineto")]
        )
        for name, data in sample.files.items():
            path = folder / f"{chance.choice(('rank0', 'rank1', '0', 'x'))}_{number}_{name}"
            path.write_bytes(data if chance.random() < 0.7 else mutated(data, chance))
            files.append(path)
    return files


class AnswerError(Exception):
    """An answer that must not be."""


def write_damaged(sample: Sample, chance: random.Random, folder: Path) -> list[Path]:
    """The sample's files, one of them damaged (of a run, up to three)."""
    names = list(sample.files)
    spoiled = {
        chance.choice([name for name in names if not WINDOW.search(name)] + names)
        for _ in range(chance.choice([1, 1, 2, 3]))
    }
    for name, data in sample.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(mutated(data, chance) if name in spoiled else data)
    return [folder / name for name in names]


def ask(kind: str, files: list[Path], folder: Path) -> int:
    if kind == WATCHED:
        return _command("watch", "--once", str(folder))
    if kind in (CLUSTER, MODEL, HARDWARE):
        option = {CLUSTER: "--cluster", MODEL: "--model", HARDWARE: "--hardware"}[kind]
        given = [word for pair in (DEFAULTS | {option: str(files[0])}).items() for word in pair]
        return _command(*PLAN, *given, is_json=True)
    if kind == DIAGNOSIS:
        good = folder / "good.json"
        good.write_bytes(
            next(
                sample.files["contract.json"]
                for sample in samples()
                if "contract.json" in sample.files
            )
        )
        return _any_command(
            ("report", str(files[0]), "-o", str(folder / "report.html")),
            ("compare", str(good), str(files[0]), "--format", "json"),
            ("compare", str(files[0]), str(good), "--fail-if", "step_ms > baseline"),
            (
                "diagnose",
                str(_small_trace(folder)),
                "--no-cache",
                "--fail-if",
                "step_ms > baseline",
                "--baseline",
                str(files[0]),
            ),
        )
    paths = [str(folder)] if kind == RUN else [str(path) for path in files]
    return check(diagnose(paths, Options(use_cache=False, jobs=1, all_findings=True)))


def check(diagnosis: Diagnosis) -> int:
    """Everything that is made of a diagnosis; the number of its notes."""
    text = to_text(diagnosis_document(diagnosis), width=WIDTH)
    _refuse_control(text, "the report")
    if max(map(len, text.splitlines()), default=0) > WIDTH:
        raise AnswerError(f"WIDTH: a line of the report is longer than {WIDTH}")
    contract = _loaded(to_json(diagnosis))
    to_markdown(diagnosis_document(diagnosis))
    fault = jsonschema.exceptions.best_match(_validator().iter_errors(contract))
    if fault is not None:
        raise AnswerError(f"SCHEMA: {fault.json_path}: {fault.message[:150]}")
    for finding in contract["findings"]:
        gains = {
            name: finding[name]
            for name in ("predicted_speedup", "predicted_low", "predicted_high")
            if name in finding
        }
        if any(gain is not None and gain < 1.0 for gain in gains.values()):
            raise AnswerError(f"GAIN: {finding['code']} {gains}")
    return len(contract["notes"])


def _any_command(*commands: tuple[str, ...]) -> int:
    """Several commands on the same file: refused where each of them refuses it."""
    refusals = []
    for arguments in commands:
        try:
            _command(*arguments, is_json="json" in arguments)
        except StepscopeError as refusal:
            refusals.append(str(refusal))
            if (problem := _message_problem(str(refusal))) is not None:
                raise AnswerError(problem) from None
    if len(refusals) == len(commands):
        raise StepscopeError(refusals[-1])
    return 0


def _small_trace(folder: Path) -> Path:
    path = folder / "trace.json"
    path.write_bytes(
        next(sample.files["built.json"] for sample in samples() if "built.json" in sample.files)
    )
    return path


def _command(*arguments: str, is_json: bool = False) -> int:
    """A command as a person calls it: its exit code is a meant one, and its output can be shown."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.suppress(SystemExit),
    ):
        code = main(list(arguments))
        if code == 2:
            raise StepscopeError(err.getvalue())
        if code not in (0, 1) or "Make room there, or write somewhere else" in err.getvalue():
            raise AnswerError(f"CODE: {arguments[0]} ended with {code}: {err.getvalue()[:200]}")
    _refuse_control(out.getvalue() + err.getvalue(), arguments[0])
    if is_json and out.getvalue():
        _loaded(out.getvalue())
    return 0


def _loaded(text: str) -> Any:
    def constant(word: str) -> None:
        raise AnswerError(f"JSON: {word} in it")

    return json.loads(text, parse_constant=constant)


def _said(refusal: StepscopeError) -> str:
    """The refusal as a person sees it."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        say(refusal)
    return err.getvalue()


def _message_problem(message: str) -> str | None:
    if not message.strip():
        return "MESSAGE: a refusal without words"
    found = CONTROL.search(message)
    return None if found is None else f"CONTROL: {found[0]!r} in a refusal: {ascii(message)[:200]}"


def _refuse_control(text: str, where: str) -> None:
    found = CONTROL.search(text)
    if found is not None:
        raise AnswerError(
            f"CONTROL: {found[0]!r} in {where}: "
            f"{text[max(0, found.start() - 60) : found.end() + 20]!a}"
        )


def _place(crash: BaseException) -> str:
    ours = [
        frame
        for frame in traceback.extract_tb(crash.__traceback__)
        if "stepscope" in frame.filename
    ]
    frame = (ours or traceback.extract_tb(crash.__traceback__))[-1]
    return f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno}"


@cache
def _validator() -> Any:
    schema: Mapping[str, Any] = json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text())
    return jsonschema.validators.validator_for(schema)(schema)


@contextlib.contextmanager
def _no_hang() -> Iterator[None]:
    """A reading that does not end is ended, long after any that does."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"no answer within {HANG_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _small_pieces(chance: random.Random) -> Iterator[None]:
    """Every size at which a cut between two pieces may fall comes by."""
    with contextlib.ExitStack() as held:
        for module, name, sizes in (
            (feed, "CHUNK_BYTES", [200, 5_000, 2 << 20]),
            (feed, "PIECE_BYTES", [100, 32 << 10]),
            (feed, "MAX_EVENT_BYTES", [2_000, 16 << 20]),
            (stream, "BLOCK_BYTES", [333, 1 << 20]),
        ):
            held.enter_context(
                mock.patch.object(
                    module, name, chance.choice(sizes) if chance.random() < 0.3 else sizes[-1]
                )
            )
        yield
