"""A process forked after our profiler has run: it must end as it would have, and keep no event of a
recording it is not in.

Kineto starts a thread with the first recording and waits for it when the process ends. A forked
child has the library's state but not that thread: its exit() would stand for ever in
`libkineto::ConfigLoader::~ConfigLoader` (pthread_cond_destroy waits for a waiter that does not
exist). So such a child leaves through _exit(): its own atexit handlers, those of C that it
registered itself and the flush of its streams have run by then; destructors of C++ statics, which
it inherited, have not. A child that forks again, replaces itself (exec) or calls os._exit() is not
concerned.

Nor may it let go of what belongs to CUDA (`never_let_go`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from contextlib import suppress
from typing import Any

from stepscope.capture.guard import suppressed
from stepscope.capture.recording.quiet import quiet_kineto

_profiled_by: list[int] = []
"""The process that opened a recording first; its forked children inherit the note."""
_libc: list[Any] = []
_silenced: list[int] = []
"""The child in which the recording of events that it inherited is switched off."""


def note_profiler() -> None:
    """Prepare before a recording is opened.

    What a child needs is loaded here: it may not be able to import anything.
    """
    if not _profiled_by:
        _profiled_by.append(os.getpid())
        with suppressed():
            libc = ctypes.CDLL(None)
            leave, flush = (
                ctypes.cast(libc[name], ctypes.c_void_p) for name in ("_exit", "fflush")
            )
            _libc[:] = [libc["on_exit"], leave, libc["__cxa_atexit"], flush]


def is_profiler_inherited() -> bool:
    """Whether the profiler's library was used before this process was forked.

    It is not safe to use here.
    """
    return bool(_profiled_by) and _profiled_by[0] != os.getpid()


def never_let_go(*kept: object) -> None:
    """Keep these from being destroyed, even when Python ends.

    The destructors of events and of pinned memory call CUDA. In a forked child that fails, and so
    it does where a kernel's error has lost the device: what they throw ends the process.
    """
    for kept_object in kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept_object))


def settle_child(*, was_recording: bool) -> None:
    """Settle a forked child; `was_recording` where the thread that forked had our profiler
    attached."""
    if not _profiled_by:
        return
    if was_recording:
        # The profiler's callbacks came along and would keep every operator's event until the child
        # ends: 1 kB each.
        with suppressed():
            sys.modules["torch"]._C._autograd._enable_record_function(False)  # noqa: SLF001
            _silenced[:] = [os.getpid()]
    leave_directly()


def leave_directly() -> None:
    """The process, when it comes to exit(), flushes its streams and leaves.

    No destructor of a C++ library runs.
    """
    if _libc:
        # Run in the reverse order: the streams of C are flushed, then _exit(status) is called. Only
        # glibc has on_exit, and only glibc's condition variables wait for their waiters.
        on_exit, leave, at_exit, flush = _libc
        on_exit(leave, None)
        at_exit(flush, None, None)


def make_way_in_child() -> None:
    """Make way before the job's own profiler in such a child.

    It finds none attached, and events are recorded again.
    """
    if _silenced == [os.getpid()]:
        _silenced.clear()
        torch = sys.modules["torch"]
        _skip_cupti_flush()
        with suppressed(), quiet_kineto(torch):
            torch.autograd._disable_profiler()  # noqa: SLF001
        with suppressed():
            torch._C._autograd._enable_record_function(True)  # noqa: SLF001


_RETURN_0 = {"x86_64": b"\x31\xc0\xc3", "aarch64": b"\x00\x00\x80\x52\xc0\x03\x5f\xd6"}
"""The machine code of `return 0`, which is CUPTI_SUCCESS."""


def _skip_cupti_flush() -> None:
    """Skip CUPTI's flush in a forked child that inherited a recording with CUDA's part.

    Ending that recording asks CUPTI for what it holds, and CUPTI waits for a thread of its own that
    no fork copies, for ever. There is nothing to hand over in the child, so its copy of the
    function returns at once.
    """
    path = loaded_library("libcupti.so")
    if path is not None:
        with suppressed():
            return_at_once(ctypes.CDLL(path)["cuptiActivityFlushAll"])


def return_at_once(function: Any) -> None:
    """Make this process's copy of a C function do nothing from here on and return 0."""
    code = _RETURN_0[platform.machine()]
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    page = address - address % mmap.PAGESIZE
    protect = ctypes.CDLL(None)["mprotect"]
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    can_run = mmap.PROT_READ | mmap.PROT_EXEC
    if protect(page, address + len(code) - page, can_run | mmap.PROT_WRITE) == 0:
        ctypes.memmove(address, code, len(code))
        protect(page, address + len(code) - page, can_run)


def loaded_library(name: str) -> str | None:
    """The path of a library that this process has loaded."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if name in path:
                return f"/{path}"
    return None
