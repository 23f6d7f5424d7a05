"""Stacks as a flame graph: one SVG file, callers above what they call, as wide as their share.

a (train.py:3);b (train.py:9) 48        a line of a stack, its samples behind it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from stepscope.process.stderr import harmless

FULL_WIDTH, ROW_HEIGHT, LETTER_WIDTH = 1200.0, 18, 6.7
"""Sizes in pixels."""
MIN_WIDTH = 0.5
MAX_DEPTH = 200
COLOURS = ("#e8743b", "#ed8f4c", "#f2a65e", "#f5bb72")


@dataclass(slots=True)
class _Call:
    name: str
    num: int = 0
    calls: dict[str, _Call] = field(default_factory=dict)

    def add(self, stack: Iterable[str], num: int) -> None:
        self.num += num
        call = self
        for name in stack:
            call = call.calls.setdefault(name, _Call(name))
            call.num += num


def flame_svg(lines: Iterable[str]) -> str:
    """A whole file. What is no stack is passed over."""
    cut = (line.rpartition(" ") for line in lines)
    return flame_of(
        (stack.split(";"), int(num)) for stack, _, num in cut if stack and num.isdecimal()
    )


def flame_of(stacks: Iterable[tuple[Sequence[str], int]], label: str = "") -> str:
    """The picture of stacks with what each counts; `label` says what it shows to who cannot see
    it."""
    root = _Call("all")
    for stack, num in stacks:
        root.add(stack[:MAX_DEPTH], num)
    drawn = list(_drawn(root, 0.0, 0, root.num)) if root.num else []
    height = ROW_HEIGHT * (1 + max((depth for depth, _ in drawn), default=0))
    named = f' role="img" aria-label="{escape(label)}"' if label else ""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {FULL_WIDTH:g} {height}" '
        f'width="{FULL_WIDTH:g}" height="{height}" font-family="monospace" font-size="11"{named}>'
    )
    return "\n".join([head, *(text for _, text in drawn), "</svg>\n"])


def _drawn(call: _Call, left: float, depth: int, whole: int) -> Iterator[tuple[int, str]]:
    width = FULL_WIDTH * call.num / whole
    if width < MIN_WIDTH:
        return
    name = harmless(call.name)
    shown = name[: int(width / LETTER_WIDTH)] if width >= 4 * LETTER_WIDTH else ""
    colour = COLOURS[sum(call.name.encode()) % len(COLOURS)]
    top = depth * ROW_HEIGHT
    box = (
        f'<g><title>{escape(name)}: {call.num / whole:.1%}</title><rect x="{left:.1f}" y="{top}" '
        f'width="{width:.1f}" height="{ROW_HEIGHT - 1}" fill="{colour}"/><text x="{left + 2:.1f}" '
        f'y="{top + 13}">{escape(shown)}</text></g>'
    )
    yield depth, box
    for inner in call.calls.values():
        yield from _drawn(inner, left, depth + 1, whole)
        left += FULL_WIDTH * inner.num / whole
