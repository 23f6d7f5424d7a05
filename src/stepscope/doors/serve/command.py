"""A page for this machine: its runs, their reports, a job live.

DIR holds runs that `stepscope run` recorded, traces, or a TensorBoard log_dir (default: here, with
stepscope-runs/). Nothing but the loopback interface listens, and nothing is written. It ends with
Ctrl-C. From another machine: ssh -L 8484:127.0.0.1:8484 HOST.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.cli import options as declare
from stepscope.cli.options import int_in_range
from stepscope.cli.printing import note

PORT = 8484


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    folder: Path = declare.option("DIR", "default: this folder", Path, Path(), nargs="?")
    port: int = declare.option(
        "--port N",
        f"default: {PORT}; 0: any that is free",
        int_in_range("a port; give a number up to 65535", 0, 65_535),
        PORT,
    )


def run(options: Options) -> int:
    from stepscope.doors.serve.pages import Pages
    from stepscope.doors.serve.server import LOOPBACK, server_of
    from stepscope.errors import UsageError

    if not options.folder.is_dir():
        raise UsageError(f"{options.folder} is no folder: name one with runs or traces in it")
    try:
        server = server_of(options.port, Pages(options.folder).answer)
    except OSError as problem:
        raise UsageError(
            f"cannot listen on {LOOPBACK}:{options.port}: {problem.strerror}. Take another --port"
        ) from None
    note(f"http://{LOOPBACK}:{server.port}/  (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0
