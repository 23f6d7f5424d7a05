"""Files behind a URL (s3://, gs://, https://, ...), read through fsspec: found, opened, and nothing
copied."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from stepscope.errors import InputError
from stepscope.protocol.untrusted import open_regular

if TYPE_CHECKING:
    from typing_extensions import Self

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
BLOCK_BYTES = 8 << 20
"""Fetched at once: a trace is read from end to end, and a request to an object store takes tens of
milliseconds."""
PACKAGE_OF = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs",
    "abfss": "adlfs", "http": "aiohttp", "https": "aiohttp", "hdfs": "pyarrow", "sftp": "paramiko",
    "ssh": "paramiko",
}  # fmt: skip
VERSION_FIELDS = (
    "ETag", "etag", "generation", "md5Hash", "content_md5",
    "mtime", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip
"""What the stores call that which changes when a file does."""
FOREIGN = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
)
"""What backends raise beside OSError."""


class RemotePath(Struct, frozen=True, kw_only=True):
    """A file behind a URL: what `Path` is to a local one, as far as the readers ask. It travels to
    other machines."""

    url: str
    size: int
    version: int | None = None
    """Changes with the file; None when the store tells nothing of the kind, and then no cache is
    kept."""

    def __str__(self) -> str:
        return shown(self.url)

    @property
    def name(self) -> str:
        return str(self).rstrip("/").rsplit("/", 1)[-1]

    def open(self, _mode: str = "rb") -> BinaryIO:
        """The file's bytes. OSError for what goes wrong, whatever the backend raises."""
        system, path = _system(self.url)
        with _as_os_error():
            return cast("BinaryIO", _File(system.open(path, "rb", block_size=BLOCK_BYTES)))


AnyPath = Path | RemotePath


def open_bytes(path: AnyPath) -> BinaryIO:
    """A file's bytes, wherever it lies; of this machine's, regular ones alone. OSError for what
    goes wrong."""
    return open_regular(path) if isinstance(path, Path) else path.open()


def shown(url: str) -> str:
    """The URL as messages may have it: without a password, nor what follows a question mark, which
    may be a signature."""
    return re.sub(
        r"(?<=://)[^/@]*@", "", url.split("?", 1)[0] if url.lower().startswith("http") else url
    )


def is_private(path: AnyPath) -> bool:
    """Whether no other process can read it: fsspec's file system in memory."""
    return isinstance(path, RemotePath) and path.url.startswith("memory://")


def size_of(path: AnyPath) -> int:
    return path.size if isinstance(path, RemotePath) else path.stat().st_size


def as_path(text: str) -> Path | str:
    """A local Path (also for file://), or the URL as it stands."""
    if not URL.match(text):
        return Path(text)
    return Path(unquote(urlsplit(text).path)) if text.lower().startswith("file://") else text


def find_remote(url: str, most: int) -> tuple[bool, list[RemotePath]]:
    """Whether the URL is a folder, and its files (or itself); InputError beyond `most`. Hidden
    files are passed over."""
    system, path = _system(url)
    with _as_os_error():
        info = system.info(path)
        if info.get("type") != "directory":
            return False, [_remote(url, info)]
        files = system.find(path, detail=True)
    if len(files) > most:
        raise InputError(
            f"{shown(url)} has more than {most} files in it. Name the folder that holds the traces."
        )
    start = len(str(path).rstrip("/"))
    seen = {name: info for name, info in files.items() if "/." not in name[start:]}
    return True, [_remote(system.unstrip_protocol(name), info) for name, info in seen.items()]


def _remote(url: str, info: dict[str, Any]) -> RemotePath:
    version_fields = [f"{key}={info[key]}" for key in VERSION_FIELDS if info.get(key) is not None]
    digest = hashlib.sha256("\n".join(version_fields).encode("utf-8", "surrogateescape")).digest()
    version = int.from_bytes(digest[:8], "little", signed=True) if version_fields else None
    return RemotePath(url=url, size=int(info.get("size") or 0), version=version)


def _system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path in it."""
    scheme = url.split("://", 1)[0].lower()
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        backend = f" {PACKAGE_OF[scheme]}" if scheme in PACKAGE_OF else ""
        raise InputError(
            f"{shown(url)} needs fsspec, which is not installed: pip install "
            f"'stepscope[remote]'{backend}"
        ) from None
    try:
        with _as_os_error():
            system, path = url_to_fs(url)
    except ImportError as problem:
        package = PACKAGE_OF.get(scheme)
        what = (
            f"{shown(url)} needs the package {package}, which is not installed: pip install "
            f"{package}"
        )
        raise InputError(what if package else f"cannot open {shown(url)}: {problem}") from None
    except ValueError as problem:
        advice = "Give s3://, gs://, https:// or another that fsspec knows, or a local path."
        raise InputError(
            f"cannot open {shown(url)}: {str(problem).rstrip('.')}. {advice}"
        ) from None
    except OSError as problem:
        raise InputError(f"cannot open {shown(url)}: {problem}") from None
    return system, path


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        # Backends put the path where the words belong.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    except _foreign() as problem:
        raise OSError(f"{type(problem).__name__}: {problem}") from problem


def _foreign() -> tuple[type[Exception], ...]:
    """The exceptions of those backends that are loaded."""
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in FOREIGN]
    return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))


class _File:
    """A backend's file, whose every failure is an OSError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        with _as_os_error():
            return bytes(self._file.read(size))

    def seek(self, offset: int) -> int:
        try:
            with _as_os_error():
                return int(self._file.seek(offset))
        except ValueError as problem:
            raise OSError(
                f"the server cannot give a part of a file ({problem}); download it first"
            ) from None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
