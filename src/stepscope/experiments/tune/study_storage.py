"""Optuna's storage: in memory, in a database, or in a journal, which is a file that machines
share."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from stepscope.errors import InputError

BUSY_S = 60.0
"""How long a process waits for another one's write to a file of SQLite before it gives up; by
itself SQLite waits for 5."""
MAX_OPENS, AGAIN_S = 5, 0.2
"""Two processes that open an empty database at once both lay out its tables, and one of them fails:
then they are there."""


def opened_study(optuna: Any, storage: str | None, name: str, sampler: Any) -> Any:
    """The study of this name, made where there is none."""
    for left in reversed(range(MAX_OPENS)):
        try:
            return optuna.create_study(
                study_name=name,
                storage=_storage(optuna, storage),
                sampler=sampler,
                pruner=optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
        except Exception as problem:  # noqa: BLE001 - whatever the database's driver raises, it is the storage that is wrong
            if not left or storage is None or not _is_passing(problem):
                words = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
                raise InputError(
                    f"the storage {hidden(storage or '')} cannot be used: {words}"
                ) from None
        time.sleep(AGAIN_S)
    raise AssertionError("the last failure is raised")


def _is_passing(problem: BaseException) -> bool:
    """Whether somebody else was laying out the same tables, or writing: `already exists`, a version
    written twice, a lock."""
    text = str(problem)
    return type(problem).__name__ == "IntegrityError" or any(
        words in text for words in ("already exists", "is locked")
    )


def _storage(optuna: Any, text: str | None) -> Any:
    if text is None:
        return None
    path = Path(text.removeprefix("journal:"))
    if "://" not in text and path.suffix in (".db", ".sqlite", ".sqlite3"):
        text = f"sqlite:///{path}"
    if text.startswith("sqlite"):
        return optuna.storages.RDBStorage(text, engine_kwargs={"connect_args": {"timeout": BUSY_S}})
    if "://" in text:
        return text
    # The lock of a journal is a link to it: with a path from the root, one that a killed process
    # left is seen to be old.
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = optuna.storages.journal
    return optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))


def hidden(storage: str) -> str:
    """The storage's address without its password."""
    return re.sub(r"(?<=://)[^/@]*@", "", storage)
