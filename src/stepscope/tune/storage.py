"""Small files that are shared: here, or behind a URL (s3://, gs://, ...) through fsspec.

A local file is appended to and replaced under a lock, so that two searches on one machine, or on
one shared disk, lose nothing of each other's. Behind a URL nothing can be appended: a store there
is a folder, and every record an object of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stepscope.errors import InputError
from stepscope.protocol.untrusted import open_regular
from stepscope.protocol.whole_write import write_whole
from stepscope.readers.remote import as_path, find_remote, shown

MAX_BYTES = 64 << 20
"""A file of records beyond this is no cache of ours: a record takes less than a kilobyte."""
MAX_FILES = 100_000
"""Objects in one folder behind a URL."""
Location = Path | str
"""A local path, or a URL as it stands."""


def location_of(text: str | os.PathLike[str]) -> Location:
    """The location that these words name."""
    return as_path(os.fspath(text))


def name_of(location: Location) -> str:
    """The location as messages may have it."""
    return shown(location) if isinstance(location, str) else str(location)


def read_all(location: Location) -> bytes | None:
    """The bytes of a file, or of every file of a folder behind a URL, one after the other; None
    when there is nothing."""
    try:
        if isinstance(location, str):
            return _read_remote(location)
        if not location.exists():
            return None
        if not location.is_file():
            raise InputError(f"{location} is not a file. Name a file, such as tuned.jsonl")
        with open_regular(location) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise InputError(
            f"cannot read {name_of(location)}: {problem.strerror or problem}"
        ) from None
    return _bounded(data, location)


def _read_remote(url: str) -> bytes:
    _, files = find_remote(url, MAX_FILES)
    if sum(file.size for file in files) > MAX_BYTES:
        raise _too_big(url)
    pieces = []
    for file in files:
        with suppress(FileNotFoundError), file.open() as opened:
            # An object may be taken away while its folder is read.
            pieces.append(opened.read(MAX_BYTES + 1))
    return _bounded(b"\n".join(pieces), url)


def _bounded(data: bytes, location: Location) -> bytes:
    if len(data) > MAX_BYTES:
        raise _too_big(location)
    return data


def _too_big(location: Location) -> InputError:
    return InputError(
        f"{name_of(location)} holds more than {MAX_BYTES >> 20} MiB: too much for a file of tuned "
        "settings"
    )


def write_all(location: Location, data: bytes) -> None:
    """Puts the file there whole, or not at all."""
    with _in_words(location):
        if isinstance(location, str):
            system, path = _writable(location)
            system.pipe_file(path, data)
            return
        location.parent.mkdir(parents=True, exist_ok=True)
        write_whole(location, data)


def put(location: Location, name: str, line: bytes) -> None:
    """Adds one record: at the end of a local file, or as the object `name` of a folder behind a
    URL."""
    with _in_words(location):
        if isinstance(location, str):
            system, path = _writable(location)
            system.pipe_file(f"{str(path).rstrip('/')}/{name}.json", line + b"\n")
            return
        with locked(location), location.open("ab+") as file:
            # What another writer left half done must not spoil this record too.
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line + b"\n")


def is_folder(url: str) -> bool:
    """Whether a URL names a folder that is there."""
    with _in_words(url):
        system, path = _writable(url)
        return bool(system.isdir(path))


def take_away(url: str, name: str) -> None:
    """Removes the object `name` of a folder behind a URL; nothing where it is gone already."""
    with _in_words(url), suppress(FileNotFoundError):
        system, path = _writable(url)
        system.rm_file(f"{str(path).rstrip('/')}/{name}.json")


@contextmanager
def locked(location: Path) -> Iterator[None]:
    """No other process that asks has the file meanwhile. Location the system has no such locks,
    nothing is held."""
    location.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # pragma: no cover - not on this system
        yield
        return
    with (location.parent / f".{location.name}.lock").open("ab") as file:
        with suppress(OSError):
            # Some network disks have no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _writable(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(
            f"{shown(url)} needs fsspec, which is not installed: pip install 'stepscope[remote]'"
        ) from None
    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as problem:
        raise InputError(f"cannot open {shown(url)}: {problem}") from None
    return system, str(path)


@contextmanager
def _in_words(location: Location) -> Iterator[None]:
    try:
        yield
    except NotImplementedError:
        raise InputError(
            f"{name_of(location)} cannot be written to. Give a folder of an object store, or a "
            "local file"
        ) from None
    except OSError as problem:
        raise InputError(
            f"cannot write {name_of(location)}: {problem.strerror or problem}"
        ) from None
