"""The matrix of formats: what each lets us judge, and how to record it."""

from __future__ import annotations

from stepscope.protocol.json_text import json_text
from stepscope.readers.formats import BY_NAME, FORMATS, JUDGED, KINETO
from stepscope.readers.inputs import Found
from stepscope.report.names import clean

MOST_NAMED = 8


def formats_text() -> str:
    """For a terminal: names and marks, then how to record each."""
    width = max(len(each.name) for each in FORMATS)
    head = " " * width + "  " + "  ".join(JUDGED)
    lines = [head]
    for each in FORMATS:
        marks = "  ".join(
            ("x" if word in each.judges else ".").center(len(word)) for word in JUDGED
        )
        lines.append(f"{each.name:<{width}}  {marks}".rstrip())
    lines.append("")
    for each in FORMATS:
        lines += [f"{each.name}: {each.words}", f"    {each.record}"]
    return "\n".join(lines)


def formats_markdown() -> str:
    """For the documentation."""
    lines = [f"| format | {' | '.join(JUDGED)} |", f"|---|{'---|' * len(JUDGED)}"]
    for each in FORMATS:
        marks = " | ".join("x" if word in each.judges else "" for word in JUDGED)
        lines.append(f"| `{each.name}`: {each.words} | {marks} |")
    return "\n".join(lines)


def formats_json() -> str:
    """Schema stepscope.formats/1."""
    rows = [
        {
            "name": each.name,
            "words": each.words,
            "kind": each.kind,
            "record": each.record,
            "judges": list(each.judges),
        }
        for each in FORMATS
    ]
    return json_text(
        {"schema": "stepscope.formats/1", "judged": list(JUDGED), "formats": rows}, indent=2
    )


def source_words(found: Found) -> list[str]:
    """A line for each thing that was found in what the user named."""
    lines = []
    for source in (
        *found.logs[:MOST_NAMED],
        *found.sources[:MOST_NAMED],
        *found.others[:MOST_NAMED],
    ):
        known = BY_NAME[source.format or KINETO]
        lines.append(
            f"{clean(source.label)}: {known.name} ({known.words}); it tells of "
            f"{', '.join(known.judges)}"
        )
    more = len(found.sources) + len(found.others) + len(found.logs) - len(lines)
    return [*lines, *([f"and {more} more"] if more > 0 else []), *found.notes]
