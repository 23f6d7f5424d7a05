"""On how many objects each setting took effect, and why it did not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.protocol.run_folder import APPLIED_FILE, write_json

ALREADY = "the job has it so already"
MAX_CHARS = 300


class Applied:
    """The settings that are wanted, and what became of each."""

    def __init__(self, settings: Mapping[str, Any], raised: Collection[str] = ()) -> None:
        self.settings = dict(settings)
        self._raised = frozenset(raised)
        self.counts: dict[str, int] = dict.fromkeys(settings, 0)
        self.reasons: dict[str, str] = {}
        self._num_changed: dict[str, int] = dict.fromkeys(settings, 0)
        self._folder: Path | None = None

    def wanted(self, *names: str) -> dict[str, Any]:
        """Settings of these that are asked for."""
        return {name: self.settings[name] for name in names if name in self.settings}

    def is_enough(self, name: str, job_value: Any) -> bool:
        """Whether the job's own value stays: the setting is to raise it, and would not. Says so."""
        is_number = isinstance(job_value, int | float) and not isinstance(job_value, bool)
        if name not in self._raised or not is_number or job_value < self.settings[name]:
            return False
        self.failed(
            name,
            f"the job has {job_value:g} of its own, and {self.settings[name]:g} would not be more",
        )
        return True

    def took(self, name: str, *, before: Any = None) -> None:
        """Note that it took effect on one more object, which had `before` until then."""
        is_news = not self._num_changed[name]
        self.counts[name] += 1
        self._num_changed[name] += before != self.settings[name]
        if self._num_changed[name]:
            self.reasons.pop(name, None)
        else:
            self.reasons[name] = ALREADY
        if is_news:
            self._write_news()

    def holds(self, name: str, *, before: Any) -> None:
        """A switch of the whole process: there is but one of it."""
        if not self.counts[name]:
            self.took(name, before=before)

    def failed(self, name: str, why: str) -> None:
        """Note that it could not be applied on top of an object."""
        if name in self.counts and not self._num_changed[name]:
            self.reasons[name] = why[:MAX_CHARS]
            self._write_news()

    def lost(self, name: str, why: str) -> None:
        """Note that it took effect, and was undone."""
        self.counts[name] = self._num_changed[name] = 0
        self.failed(name, why)

    def failed_all(self, problem: Exception) -> None:
        for name, count in self.counts.items():
            if not count:
                self.failed(name, words_of(problem))

    def write(self, folder: Path) -> None:
        """Writes it down, and from now on whenever there is news: a count alone is none."""
        self._folder = folder
        self._write_news()

    def _write_news(self) -> None:
        if self._folder is not None:
            # A disk that is full is no matter of the job's.
            with suppress(OSError):
                write_json(
                    self._folder / APPLIED_FILE, {"counts": self.counts, "reasons": self.reasons}
                )


def words_of(problem: BaseException) -> str:
    text = str(problem).strip()
    return f"{type(problem).__name__}: {text.splitlines()[0]}" if text else type(problem).__name__
