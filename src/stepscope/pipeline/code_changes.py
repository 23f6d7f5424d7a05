"""What a finding's advice makes of the lines of the training code that it is about.

The run folder knows which line made the loader and the optimizer. Its script is read where this
user made the run on this machine and the script is older than the run: a folder of somebody else's
may name any file, and a line may have moved.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from stepscope.analyses.script_call import MAX_CHARS, NotSureError, code_change, with_keywords
from stepscope.core.action_code import action_code
from stepscope.core.diagnosis import Diagnosis, Finding
from stepscope.core.run import RunFacts
from stepscope.experiments.preflight import unable_with
from stepscope.protocol.made_here import STARTED_IN, has_our_mark
from stepscope.protocol.settings import OF_LOADERS, raised_by
from stepscope.readers.run_folder.folder import RunRecord

FRAME = re.compile(r"(?P<path>.+\.py)\((?P<line>\d{1,7})\): ")
"""`path/train.py(41): main`, as a profiler names a frame."""


class Wanted(NamedTuple):
    """Keywords that a finding's advice has, and the line of the call that gets them."""

    code: str
    path: Path
    line: int
    name: str
    keywords: dict[str, Any]


class Patch(NamedTuple):
    """A patch in unified form, empty where nothing can be changed; the findings that it has, and
    why others are not in it."""

    text: str
    codes: tuple[str, ...]
    left: tuple[tuple[str, str], ...]


def with_code_changes(diagnosis: Diagnosis, record: RunRecord) -> Diagnosis:
    """Each finding with its lines, where they can surely be rewritten."""
    scripts = _Scripts(record)
    if scripts.refusal is not None or diagnosis.facts.run is None:
        return diagnosis
    findings = tuple(
        _with_change(finding, diagnosis.facts.run, scripts) for finding in diagnosis.findings
    )
    return replace(diagnosis, findings=findings)


def patch_of(diagnosis: Diagnosis, record: RunRecord, findings: Sequence[Finding]) -> Patch:
    """The changes of these findings together; what an earlier one excludes, or has set already, is
    left out."""
    scripts, run = _Scripts(record), diagnosis.facts.run
    after: dict[Path, str] = {}
    taken: list[Wanted] = []
    left: list[tuple[str, str]] = []
    for finding in findings:
        try:
            if scripts.refusal is not None or run is None:
                raise NotSureError(scripts.refusal or "it is no run's")
            if any(wanted.code in finding.excludes for wanted in taken):
                raise NotSureError("it does not go together with one before it")
            wanted = _wanted(finding, run)
            before = after.get(wanted.path) or scripts.text(wanted.path)
            line = _moved(wanted, scripts.text(wanted.path), before)
            after[wanted.path] = _rewritten(wanted._replace(line=line), before)
            taken.append(wanted)
        except NotSureError as why:
            left.append((finding.code, str(why)))
    text = "".join(
        _unified(scripts.shown(path), scripts.text(path), new) for path, new in after.items()
    )
    return Patch(text, tuple(each.code for each in taken), tuple(left))


def _moved(wanted: Wanted, first: str, now: str) -> int:
    """The line of the call after what was changed before it."""
    for tag, begins, ends, new, _ in difflib.SequenceMatcher(
        None, _lines(first), _lines(now), autojunk=False
    ).get_opcodes():
        if begins <= wanted.line - 1 < ends and tag in ("equal", "replace"):
            return new + wanted.line - begins
    raise NotSureError("its line was changed by another one")


def _with_change(finding: Finding, run: RunFacts, scripts: _Scripts) -> Finding:
    try:
        wanted = _wanted(finding, run)
        text = scripts.text(wanted.path)
        change = code_change(scripts.shown(wanted.path), text, _rewritten(wanted, text))
    except NotSureError:
        return finding
    return replace(finding, code_change=change)


def _rewritten(wanted: Wanted, text: str) -> str:
    raised = raised_by(wanted.code, wanted.keywords)
    return with_keywords(text, wanted.line, wanted.name, wanted.keywords, raised)


def _wanted(finding: Finding, run: RunFacts) -> Wanted:
    """What the action's own code says, at the line that made what it is about."""
    for statement in action_code(finding.action)[0].splitlines():
        name, keywords = _call_of(statement)
        if not keywords:
            continue
        for rank in run.ranks:
            match = FRAME.match(rank.made_at.get(name, ""))
            if match is None:
                continue
            unable = unable_with(rank.loader, keywords) if name == "DataLoader" else {}
            if unable:
                raise NotSureError(next(iter(unable.values())))
            path = Path(match["path"])
            return Wanted(finding.code, path, int(match["line"]), name, keywords)
        raise NotSureError(f"the run does not know which line made its {name}")
    raise NotSureError("its advice is no keyword of a call")


def _call_of(statement: str) -> tuple[str, dict[str, Any]]:
    """`DataLoader(..., num_workers=7)` as its name and its keywords; a batch size is another
    training, and is not set."""
    try:
        call = ast.parse(statement, mode="eval").body
    except SyntaxError:
        return "", {}
    if not isinstance(call, ast.Call):
        return "", {}
    name = ast.unparse(call.func).rpartition(".")[2]
    keywords = {
        each.arg: each.value.value
        for each in call.keywords
        if each.arg is not None and isinstance(each.value, ast.Constant)
    }
    is_loader = name == "DataLoader"
    known = set(OF_LOADERS) - {"batch_size"} if is_loader else set(keywords)
    return name, keywords if keywords.keys() <= known else {}


class _Scripts:
    """The run's scripts, each read once."""

    def __init__(self, record: RunRecord) -> None:
        self._texts: dict[Path, str] = {}
        told = record.metadata
        started_in, started_ns = told.get(STARTED_IN), told.get("started_wall_ns")
        self.refusal: str | None = None
        try:
            is_ours = has_our_mark(record.path, told)
        except (OSError, RuntimeError):
            is_ours = False
        if not (is_ours and isinstance(started_in, str) and isinstance(started_ns, int)):
            self.refusal = "the run was not made by this user on this machine, or was moved"
            return
        self._started_in, self._started_ns = Path(started_in), started_ns

    def shown(self, path: Path) -> str:
        """Path as it is seen from the folder that the run was started in."""
        absolute = os.path.normpath(self._started_in / path)
        base = str(self._started_in)
        inside = os.path.commonpath([absolute, base]) == base
        return os.path.relpath(absolute, base) if inside else absolute

    def text(self, path: Path) -> str:
        if path not in self._texts:
            self._texts[path] = self._read(self._started_in / path)
        return self._texts[path]

    def _read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                data = file.read(MAX_CHARS + 1) if stat.S_ISREG(state.st_mode) else b""
        except OSError as problem:
            raise NotSureError(f"{path} cannot be read ({problem.strerror})") from problem
        if state.st_mtime_ns > self._started_ns:
            raise NotSureError(f"{path} was changed since the run began")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise NotSureError(f"{path} is no UTF-8") from problem


def _unified(name: str, before: str, after: str) -> str:
    """`git apply` strips one part of a name, and `patch -p0` none: `./` suits both."""
    shown = name if os.path.isabs(name) else f"./{name}"
    lines = difflib.unified_diff(_lines(before), _lines(after), shown, shown)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    """Each with its end, as Python counts them: a form feed ends none."""
    *whole, last = text.split("\n")
    return [f"{line}\n" for line in whole] + ([last] if last else [])
