"""The pages of `stepscope serve`: what is there, a running job, a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from stepscope import __version__
from stepscope.core.contract.runs import RunEntry
from stepscope.report.document.blocks import Document
from stepscope.report.html import environment, render
from stepscope.report.runs import age_words, size_words, verdict_words
from stepscope.report.units import ms, plural

STYLES = ("page.css", "serve.css")
MAX_COMMAND = 120


class RecordedFiles(Struct, frozen=True, kw_only=True):
    """Traces that are served: a file, or all of a folder's."""

    name: str
    """Seen from the folder that is served."""
    num_files: int
    size_bytes: int
    wall_ns: int
    """When the last of them was written."""


def index_page(
    folder: str,
    runs: Sequence[RunEntry],
    recordings: Sequence[RecordedFiles],
    num_left_out: int,
    now_ns: int,
) -> str:
    """All runs and recordings, and a form that compares two."""
    counts = ((len(runs), "run"), (len(recordings), "recording"))
    title = ", ".join(plural(count, noun) for count, noun in counts if count)
    page = {
        **_page("index", folder, title or "No run and no recording"),
        "runs": [_run(entry, now_ns) for entry in runs],
        "recordings": [_recording(each, now_ns) for each in recordings],
        "num_left_out": num_left_out,
        "choices": [
            *((entry.name, entry.name) for entry in runs),
            *((each.name, _label(each)) for each in recordings),
        ],
    }
    return _rendered(page, policy=("img-src data:",), forms="'self'")


def _run(entry: RunEntry, now_ns: int) -> dict[str, Any]:
    command = " ".join(entry.command)
    return {
        "name": entry.name,
        "tags": entry.tags,
        "report": _link("/report", what=entry.name),
        "live": _link("/live", what=entry.name) if entry.state == "running" else None,
        "age": "" if entry.started_wall_ns is None else age_words(now_ns - entry.started_wall_ns),
        "step": "" if entry.step_ms is None else ms(entry.step_ms * 1e6),
        "verdict": verdict_words(entry),
        "size": size_words(entry.size_bytes),
        "command": command if len(command) <= MAX_COMMAND else f"{command[: MAX_COMMAND - 3]}...",
    }


def _recording(recording: RecordedFiles, now_ns: int) -> dict[str, Any]:
    return {
        "name": _label(recording),
        "report": _link("/report", what=recording.name),
        "num_files": recording.num_files,
        "age": age_words(now_ns - recording.wall_ns),
        "size": size_words(recording.size_bytes),
    }


def _label(recording: RecordedFiles) -> str:
    return "all in this folder" if recording.name == "." else recording.name


def live_page(folder: str, name: str, document: Document, *, has_ended: bool) -> str:
    """A running job, drawn anew until it has ended."""
    page = {
        **_page("live", folder, name),
        "document": document,
        "source": _link("/frame", what=name),
        "report": _link("/report", what=name),
        "state": "The job has ended." if has_ended else "Drawn anew every two seconds.",
    }
    scripts = () if has_ended else ("serve.js",)
    return _rendered(page, scripts, policy=("img-src data:", "connect-src 'self'"))


def frame_html(document: Document) -> str:
    """The part of the live page that is drawn anew."""
    macros: Any = environment().get_template("blocks.html").module
    return str(macros.draw(document))


def refusal_page(folder: str, title: str, words: str) -> str:
    """Why there is no page."""
    return _rendered({**_page("refusal", folder, title), "words": words}, policy=("img-src data:",))


def _page(kind: str, folder: str, title: str) -> dict[str, Any]:
    return {"kind": kind, "folder": folder, "title": title, "version": __version__}


def _rendered(
    page: dict[str, Any],
    scripts: Sequence[str] = (),
    *,
    policy: Sequence[str] = (),
    forms: str = "'none'",
) -> str:
    return render("serve.html", page, scripts, STYLES, policy=policy, forms=forms)


def _link(path: str, **given: str) -> str:
    return f"{path}?{urlencode(given, errors='surrogateescape')}"
