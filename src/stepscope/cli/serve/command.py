"""A page for this machine alone: its runs and recordings, their reports, two compared, one live.

DIR holds runs that `stepscope run` recorded, traces, or a TensorBoard log_dir (default: here, with
stepscope-runs/). Nothing but the loopback interface listens, and nothing is written. It ends with
Ctrl-C. From another machine: ssh -L 8484:127.0.0.1:8484 HOST.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from stepscope.cli.options import options_of
from stepscope.cli.printing import note

PORT = 8484


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="default: this folder"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=PORT,
        metavar="N",
        help=f"default: {PORT}; 0: any that is free",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    folder: Path
    port: int


def run(arguments: argparse.Namespace) -> int:
    from stepscope.cli.serve.pages import Pages
    from stepscope.cli.serve.server import LOOPBACK, server_of
    from stepscope.errors import UsageError

    options = options_of(ServeOptions, arguments)
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


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number up to 65535")
    return int(text)
