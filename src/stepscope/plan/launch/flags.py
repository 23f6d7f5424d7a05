"""`--name value` pairs of a shell script, nothing of which is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping

from stepscope.errors import InputError

MAX_WORDS = 100_000
_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w{0,60})=([^\s;()]{0,200})\s*$")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w{0,60}|\d)(?::?-([^}]{0,60}))?\}?")
Flags = dict[str, str | bool]


def flags_of(text: str, where: str, read: Collection[str]) -> tuple[Flags, tuple[str, ...]]:
    """The flags, and which of those that are `read` have a variable that is not set there.
    Variables are taken from assignments in the same file."""
    variables: dict[str, str] = {}
    for line in text.splitlines():
        match = _ASSIGNED.match(line)
        if match is not None:
            name, value = match[1], match[2].strip("\"'")
            own = _VARIABLE.fullmatch(value)
            if own is not None and own[1] == name and own[2] is not None:
                # NAME=${NAME:-2}: what is taken where nobody sets it before.
                value = variables.get(name) or own[2]
            variables[name] = value
    words = _words(text, where)
    flags: Flags = {}
    unknown: list[str] = []
    for index, word in enumerate(words):
        if not word.startswith("--") or len(word) < 4:
            continue
        name, has_value, value = word[2:].partition("=")
        if not has_value:
            following = words[index + 1] if index + 1 < len(words) else "--"
            value = "" if following.startswith("--") or following == "\\" else following
        filled = _filled(value, variables)
        if filled is None or "$" in filled or "`" in filled:
            if name in read:
                unknown.append(f"--{name} {value[:60]} is not set in this file")
            continue
        flags[name] = filled or True
    return flags, tuple(unknown[:20])


def _words(text: str, where: str) -> list[str]:
    try:
        # Neither a line's end in the middle of a command nor an array's brackets are words.
        plain = text.replace("\\\n", " ").replace("(", " ").replace(")", " ")
        words = [word.strip() for word in shlex.split(plain, comments=True)]
    except ValueError as problem:
        raise InputError(f"{where}: not a shell script: {problem}") from None
    if len(words) > MAX_WORDS:
        raise InputError(f"{where}: more than {MAX_WORDS} words are no launch script")
    # An assignment of several flags in quotes is one word to the shell.
    parts: list[str] = []
    for word in words:
        if " --" in f" {word}" and " " in word.strip():
            parts += word.partition("=")[2].split() if "=" in word.split()[0] else word.split()
        else:
            parts.append(word)
    return parts


def _filled(value: str, variables: Mapping[str, str], depth: int = 4) -> str | None:
    """Value with the file's own variables put in; None where one is not set there."""
    for _ in range(depth):
        match = _VARIABLE.search(value)
        if match is None:
            return value
        known: str | None = variables.get(match[1]) or match[2]
        if known is None:
            return None
        value = value[: match.start()] + known + value[match.end() :]
        if len(value) > 1000:
            return None
    return None
