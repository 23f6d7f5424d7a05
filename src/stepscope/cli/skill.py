"""What teaches an agent to use stepscope: record, diagnose, change one thing, verify.

Prints the SKILL.md that ships with the package; with --to it is put where the agent looks for
skills, as DIR/stepscope/SKILL.md.

    stepscope skill --to .claude/skills
"""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path

from stepscope.cli.printing import note, put
from stepscope.errors import UsageError

FILE = "SKILL.md"
FOLDER = "stepscope"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", type=Path, metavar="DIR", help="the folder of the agent's skills")
    parser.add_argument(
        "--force", action="store_true", help="replace one that was changed by somebody"
    )


def run(arguments: argparse.Namespace) -> int:
    text = skill_text()
    if arguments.to is None:
        put(text)
        return 0
    path: Path = arguments.to / FOLDER / FILE
    _install(text, path, is_forced=arguments.force)
    note(path)
    return 0


def skill_text() -> str:
    return (resources.files("stepscope") / "data" / FILE).read_text(encoding="utf-8")


def _install(text: str, path: Path, *, is_forced: bool) -> None:
    try:
        if path.exists() and path.read_text(encoding="utf-8") != text and not is_forced:
            raise UsageError(f"{path} is there and not the same: --force replaces it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (OSError, UnicodeError) as problem:
        raise UsageError(f"cannot write {path}: {problem}") from None
