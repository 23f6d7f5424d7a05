"""The pages of `stepscope serve`: what is there, a running job, a refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from stepscope import __version__
from stepscope.core.contract.runs import RunEntry
from stepscope.core.facts import PARTS
from stepscope.core.numbers import gain_words
from stepscope.doors.serve.trend import trends_of
from stepscope.report.diagnosis.view import PART_WORDS
from stepscope.report.document.blocks import Document
from stepscope.report.html import environment, render
from stepscope.report.words import ms, percent, plural
from stepscope.runs.view import age_words, size_words, verdict_words

STYLES = ("page.css", "serve.css")
MAX_COMMAND = 120
MAX_COMMANDS = 200
"""Commands to choose from, the most frequent."""
MIN_PART = 0.005
"""Share of a step from which a part has a place in its bar."""
PICTURES = (
    ("steps", "How long a step takes", "ms"),
    ("parts", "Parts of a step, as the host sees them", "ms"),
    ("memory", "Memory", "GB"),
    ("loss", "Loss", ""),
)
"""Charts of the live page: what is drawn, its title and its unit."""


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
    chosen: str = "",
) -> str:
    """All runs and recordings, and a form that compares two; `chosen`: runs of this command
    alone."""
    commands = Counter(" ".join(run.command) for run in runs)
    listed = [run for run in runs if not chosen or " ".join(run.command) == chosen]
    counts = ((len(runs), "run"), (len(recordings), "recording"))
    title = ", ".join(plural(count, noun) for count, noun in counts if count)
    page = {
        **_page("index", folder, title or "No run and no recording"),
        "runs": listed,
        "num_runs": len(runs),
        "commands": [command for command, _ in commands.most_common(MAX_COMMANDS) if command],
        "chosen": chosen,
        "trends": trends_of(listed),
        "legend": [
            (part, PART_WORDS[part]) for part in PARTS if any(part in run.parts for run in listed)
        ],
        "recordings": recordings,
        "now_ns": now_ns,
        "num_left_out": num_left_out,
        "choices": [
            *((entry.name, entry.name) for entry in runs),
            *((each.name, label(each.name)) for each in recordings),
        ],
    }
    return _rendered(page, policy=("img-src data:",), forms="'self'")


def label(name: str) -> str:
    """The label of a recording."""
    return "all in this folder" if name == "." else name


def live_page(folder: str, name: str, document: Document, *, has_ended: bool) -> str:
    """A running job, drawn anew until it has ended."""
    page = {
        **_page("live", folder, name),
        "document": document,
        "source": link(name, "/frame"),
        "series": link(name, "/series"),
        "report": link(name, "/report"),
        "has_ended": has_ended,
        "state": "The job has ended." if has_ended else "Drawn anew every two seconds.",
        "pictures": PICTURES,
    }
    return _rendered(
        page, ("pictures.js", "serve.js"), policy=("img-src data:", "connect-src 'self'")
    )


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
    words: dict[str, Any] = {"link": link, "label": label, "ms": ms, "step_bar": step_bar}
    words |= {"finding_words": finding_words, "shortened": shortened}
    words |= {"age_words": age_words, "size_words": size_words, "verdict_words": verdict_words}
    return render("serve.html", page, scripts, STYLES, policy=policy, forms=forms, **words)


def step_bar(run: RunEntry) -> dict[str, Any] | None:
    """The run's step as parts of a bar, and the same in words."""
    parts = [part for part in PARTS if run.parts.get(part, 0.0) >= MIN_PART]
    if not parts:
        return None
    at, made = 0.0, []
    for part in parts:
        made.append({"part": part, "at": round(at, 1), "width": round(1000 * run.parts[part], 1)})
        at += 1000 * run.parts[part]
    words = (f"{PART_WORDS[part]} {percent(run.parts[part])}" for part in parts)
    return {"parts": made, "words": ", ".join(words)}


def finding_words(run: RunEntry) -> str:
    """The first finding's gain, and whether it was proven: `about 3.1x; proven 2.9x`."""
    finding = run.finding
    if finding is None:
        return ""
    gain = gain_words(finding.predicted_speedup, finding.predicted_low, finding.predicted_high)
    if finding.is_proven is None:
        return f"{gain}, not tried"
    gave = "" if finding.proven_speedup is None else f" {finding.proven_speedup:.2f}x"
    return f"{gain}, proven{gave}" if finding.is_proven else f"{gain}, tried: not proven{gave}"


def shortened(command: str) -> str:
    """Beginning of a command, as much as a line holds."""
    return command if len(command) <= MAX_COMMAND else f"{command[: MAX_COMMAND - 3]}..."


def link(what: str, path: str) -> str:
    return f"{path}?{urlencode({'what': what}, errors='surrogateescape')}"
