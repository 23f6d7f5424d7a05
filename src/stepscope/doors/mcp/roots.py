"""The folders that a server was given: no tool reads anything outside of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import InputError
from stepscope.protocol.run_folder import RUNS

MAX_FILES = 100_000
MAX_PATH = 4096


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders, as the file system has them: without links."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, folders: Sequence[Path]) -> Roots:
        resolved = []
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"{folder} is no folder: name folders with runs or traces in them")
            resolved.append(folder.resolve())
        return cls(tuple(resolved))

    def path(self, text: str) -> str:
        """The path that the text names, links followed: seen from a root, absolute inside one, or
        the name of a run. InputError where it leads out of them, or to nothing."""
        if not text or len(text) > MAX_PATH or "\0" in text or "://" in text:
            raise InputError("give a path inside the folders that this server was started with")
        outside = False
        for folder in self.folders:
            for candidate in self._candidates(text, folder):
                whole = Path(os.path.realpath(candidate))
                if not self.has(whole):
                    outside = True
                elif whole.exists():
                    self._refuse_links_outside(whole)
                    return str(whole)
        if outside:
            raise InputError(f"{text} is outside of the folders that this server was started with")
        raise InputError(
            f"{text} is in none of the folders that this server was started with. Name a file, a "
            "folder or a run there (last, last~1)"
        )

    def has(self, path: Path) -> bool:
        return any(path == folder or folder in path.parents for folder in self.folders)

    def _candidates(self, text: str, folder: Path) -> list[Path]:
        from stepscope.readers.run_folder.kept_runs import resolve

        direct = folder / text
        if os.path.lexists(direct):
            return [direct]
        try:
            # A tag may name what lies elsewhere: it is looked at like any other path.
            named = resolve(text, folder / RUNS)
        except InputError:
            named = text
        return [direct] if named == text else [folder / named]

    def _refuse_links_outside(self, whole: Path) -> None:
        """A folder is read with all that is in it: no link there may lead out either."""
        if not whole.is_dir():
            return
        count = 0
        for where, folders, names in os.walk(whole):
            for name in (*folders, *names):
                count += 1
                path = os.path.join(where, name)
                if os.path.islink(path) and not self.has(Path(os.path.realpath(path))):
                    raise InputError(
                        f"{path} is a link that leads out of the folders that this server was "
                        "started with: name the files beside it one by one"
                    )
            if count > MAX_FILES:
                raise InputError(f"{whole} has more than {MAX_FILES} files: name a part of it")
