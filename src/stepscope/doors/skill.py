"""What teaches an agent to use stepscope.

Prints the SKILL.md that ships with the package; with --to it is put where the agent looks for
skills, as DIR/stepscope/SKILL.md.

    stepscope skill --to .claude/skills
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from stepscope.cli import options as declare
from stepscope.cli.printing import note, put
from stepscope.errors import UsageError

FILE = "SKILL.md"
FOLDER = "stepscope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    to: Path | None = declare.option("--to DIR", "the folder of the agent's skills", Path)
    force: bool = declare.option("--force", "replace one that was changed by somebody")


def run(options: Options) -> int:
    text = skill_text()
    if options.to is None:
        put(text)
        return 0
    path = options.to / FOLDER / FILE
    _install(text, path, is_forced=options.force)
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
