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
from stepscope.report.units import ms, plural
from stepscope.runs.view import age_words, size_words, verdict_words

STYLES = ("page.css", "serve.css")
MAX_COMMAND = 120
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
) -> str:
    """All runs and recordings, and a form that compares two."""
    counts = ((len(runs), "run"), (len(recordings), "recording"))
    title = ", ".join(plural(count, noun) for count, noun in counts if count)
    page = {
        **_page("index", folder, title or "No run and no recording"),
        "runs": runs,
        "recordings": recordings,
        "now_ns": now_ns,
        "most": MAX_COMMAND,
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
    words = {"link": link, "label": label, "ms": ms}
    words |= {"age_words": age_words, "size_words": size_words, "verdict_words": verdict_words}
    return render("serve.html", page, scripts, STYLES, policy=policy, forms=forms, **words)


def link(what: str, path: str) -> str:
    return f"{path}?{urlencode({'what': what}, errors='surrogateescape')}"
