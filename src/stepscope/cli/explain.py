"""What a finding means, why it costs, and how to fix it.

CODE is a finding's code, such as serial-loader; --list names them all.
"""

from __future__ import annotations

import argparse

from stepscope.cli.printing import put
from stepscope.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", metavar="CODE", help="a finding's code")
    parser.add_argument("--list", action="store_true", help="every code with its first line")


def run(arguments: argparse.Namespace) -> int:
    from stepscope.rules.explanation import explain, first_lines

    if arguments.list or arguments.code is None:
        if arguments.code is not None:
            raise UsageError("give a code or --list, not both")
        put("\n".join(f"{code:26} {line}" for code, line in first_lines()) + "\n")
        return 0
    put(explain(arguments.code) + "\n")
    return 0
