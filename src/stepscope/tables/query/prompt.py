"""The prompt of `stepscope query`: one question after another over one run."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.cli.printing import put, say
from stepscope.errors import StepscopeError

GREETING = (
    "SQL over the run's tables; end it with ; or an empty line. "
    ".tables lists them, .schema TABLE their columns, .quit ends."
)
ENDINGS = (".quit", ".exit", ".q")


def converse(answer: Callable[[str], None], read: Callable[[str], str] = input) -> int:
    """Ask until the user has enough. What is wrong with a question is said, and the next one
    asked."""
    _ease_typing()
    put(f"{GREETING}\n")
    while (text := next_question(read)) is not None:
        try:
            if text:
                answer(text)
        except StepscopeError as problem:
            say(problem)
        except KeyboardInterrupt:
            say("interrupted")
    return 0


def next_question(read: Callable[[str], str]) -> str | None:
    """What is typed up to a semicolon or an empty line; a command that begins with a dot is one
    line. None when input ends."""
    lines: list[str] = []
    while True:
        try:
            line = read("stepscope> " if not lines else "      ...> ")
        except EOFError:
            put("\n")
            return None
        except KeyboardInterrupt:
            put("\n")
            lines = []
            continue
        word = line.strip()
        if not lines and word.split(" ")[0].rstrip(";") in ENDINGS:
            return None
        if not word or word.endswith(";") or (not lines and word.startswith(".")):
            return "\n".join([*lines, line]).strip()
        lines.append(line)


def _ease_typing() -> None:
    """Arrow keys and completion of table names, where the platform has readline."""
    try:
        import readline
    except ImportError:
        return
    from stepscope.tables.rows.columns import TABLES

    words = sorted(
        {
            *TABLES,
            ".tables",
            ".schema",
            ".quit",
            *(c.name for table in TABLES.values() for c in table.columns),
        }
    )

    def complete(start: str, number: int) -> str | None:
        fitting = [word for word in words if word.startswith(start)]
        return fitting[number] if number < len(fitting) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>+-*/;")
    readline.parse_and_bind("tab: complete")
