"""What a finding means, why it costs, and how to fix it.

CODE is a finding's code, such as serial-loader; --list names them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.cli import options as declare
from stepscope.cli.printing import put
from stepscope.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    code: str | None = declare.option("CODE", "a finding's code", nargs="?")
    list: bool = declare.option("--list", "every code with its first line")


def run(options: Options) -> int:
    from stepscope.rules.explanation import explain, first_lines

    if options.list or options.code is None:
        if options.code is not None:
            raise UsageError("give a code or --list, not both")
        put("\n".join(f"{code:26} {line}" for code, line in first_lines()) + "\n")
        return 0
    put(explain(options.code) + "\n")
    return 0
