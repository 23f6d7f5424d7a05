"""What each address answers."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.cli.additions import live_runs
from stepscope.doors.serve.catalogue import Catalogue, catalogue_of
from stepscope.doors.serve.report import frame_html, index_page, live_page, refusal_page
from stepscope.errors import StepscopeError
from stepscope.experiments.compare.comparison import compare
from stepscope.pipeline.comparison import read_side
from stepscope.pipeline.options import Options
from stepscope.pipeline.page import page_of_recording
from stepscope.pipeline.recording import Recording
from stepscope.protocol.json_text import json_text
from stepscope.report.comparison.html import comparisons_html
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of

MAX_KEPT = 8
"""Pages that are kept in memory: one is some megabytes."""
MAX_FOLLOWED = 4
"""Runs whose pictures are drawn anew from where they were read last."""
MAX_NAME = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    status: int = 200
    kind: str = "text/html"
    has_ended: bool | None = None
    """Whether the job has ended, for a frame."""


class Pages:
    """Makes pages of the folder. Reports are drawn anew from the recordings: a report that lies in
    a folder is a stranger's file, and would run in our name. Nothing is written, no cache
    either."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._series_of: OrderedDict[Path, Callable[[], dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()
        """One is made at a time: each may need most of the memory."""

    def answer(self, path: str, given: Mapping[str, str]) -> Answer:
        try:
            if path == "/":
                return self._index(given.get("command", ""))
            if path == "/report":
                return self._report(given.get("what", ""))
            if path == "/compare":
                return self._compare(given.get("a", ""), given.get("b", ""))
            if path == "/series":
                return self._series(given.get("what", ""))
            if path in ("/live", "/frame"):
                return self._live(given.get("what", ""), is_frame=path == "/frame")
        except StepscopeError as problem:
            return self._refusal("This cannot be shown", str(problem), 422)
        except MemoryError:
            return self._refusal("This cannot be shown", "There is not enough memory for it.", 507)
        except OSError as problem:
            return self._refusal("This cannot be shown", problem.strerror or str(problem), 422)
        return self._refusal("There is no such page", "The list has what there is.", 404)

    def _index(self, chosen: str) -> Answer:
        now = catalogue_of(self._folder)
        text = index_page(
            str(self._folder), now.runs, now.recordings, now.num_left_out, time.time_ns(), chosen
        )
        return Answer(text=text)

    def _report(self, name: str) -> Answer:
        now = catalogue_of(self._folder)
        listed = _listed(now, name)
        if listed is None:
            return self._unlisted(name)
        path = now.path_of(listed)

        def make() -> str:
            with Recording([str(path)], _options()) as recording:
                return render_page(page_of(page_of_recording(recording)))

        return Answer(text=self._once(("report", *_state(path)), make))

    def _compare(self, before: str, after: str) -> Answer:
        now = catalogue_of(self._folder)
        first, second = _listed(now, before), _listed(now, after)
        if first is None or second is None:
            return self._unlisted(before if first is None else after)
        paths = {name: now.path_of(name) for name in (first, second)}

        def make() -> str:
            sides = []
            for name in (first, second):
                with Recording([str(paths[name])], _options()) as recording:
                    sides.append(read_side(recording, name))
            return comparisons_html([compare(*sides)])

        key = ("compare", *_state(paths[first]), *_state(paths[second]))
        return Answer(text=self._once(key, make))

    def _live(self, name: str, *, is_frame: bool) -> Answer:
        now = catalogue_of(self._folder)
        listed = _listed(now, name)
        if listed is None or not now.is_run(listed):
            return self._unlisted(name)
        path = now.path_of(listed)
        document, has_ended = live_runs().document(path)
        if is_frame:
            return Answer(text=frame_html(document), has_ended=has_ended)
        return Answer(text=live_page(str(self._folder), listed, document, has_ended=has_ended))

    def _series(self, name: str) -> Answer:
        now = catalogue_of(self._folder)
        listed = _listed(now, name)
        if listed is None or not now.is_run(listed):
            return self._unlisted(name)
        path = now.path_of(listed)
        with self._lock:
            # What was read of a run is kept while somebody looks at it.
            series = self._series_of.pop(path, None) or live_runs().series(path)
            self._series_of[path] = series
            while len(self._series_of) > MAX_FOLLOWED:
                self._series_of.popitem(last=False)
            text = json_text(series())
        return Answer(text=text, kind="application/json")

    def _once(self, key: tuple[str, ...], make: Callable[[], str]) -> str:
        """Made once for what the files are; the page asked for longest ago goes first."""
        with self._lock:
            text = self._kept.pop(key, None)
            if text is None:
                text = make()
            self._kept[key] = text
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return text

    def _unlisted(self, name: str) -> Answer:
        words = f"{name[:200]} is not among the runs and recordings of this folder."
        return self._refusal("There is no such recording", words, 404)

    def _refusal(self, title: str, words: str, status: int) -> Answer:
        return Answer(text=refusal_page(str(self._folder), title, words), status=status)


def _listed(now: Catalogue, name: str) -> str | None:
    return now.listed(name) if 0 < len(name) <= MAX_NAME else None


def _options() -> Options:
    return Options(use_cache=False, jobs=1)


def _state(path: Path) -> tuple[str, ...]:
    """What changes when a file there does."""
    files = (
        [path]
        if path.is_file()
        else [Path(where, name) for where, _, names in os.walk(path) for name in names]
    )
    newest = size = 0
    for file in files:
        try:
            state = file.lstat()
        except OSError:
            continue
        newest, size = max(newest, state.st_mtime_ns), size + state.st_size
    return (str(path), str(len(files)), str(newest), str(size))
