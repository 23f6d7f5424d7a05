"""Names out of strangers' files: made harmless, and short enough to read.

Numbers as people read them: the right number of digits, and units that stay with their number.

A number and its unit are joined by a no-break space, so that wrapped prose does not part them; the
sheet prints a plain one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len

MAX_CHARS = 2000
"""A name or note is cut here before anything else looks at it; no real kernel name needs more to be
distinguished from another."""
MAX_MARKS = 2
"""Combining marks kept in a row: scripts need one or two, a smear over the lines above needs
more."""

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, direction overrides, lone surrogates, private and unassigned characters, line
separators."""
_VARIATIONS = dict.fromkeys(range(0xFE00, 0xFE10))
"""Variation selectors change how wide the character before them is drawn, and terminals do not
agree on it."""
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|_GLOBAL__N__\w*::")
_LOOKS_CPP = re.compile(r"::|<|^[\w$.]+\(")
_SUFFIX = re.compile(r"\s*\[clone [^\]]*\]\s*$|\.kd$")
_TEMPLATED = re.compile(r"^(\w{12,})<.*>$", re.ASCII)
"""A kernel whose own name says enough without its arguments; `Kernel2<cutlass_...>` does not."""
_OP_PREFIX = re.compile(r"^(autograd::engine::evaluate_function: |aten::)")


def clean(text: str, *, ascii_only: bool = False) -> str:
    """The text with nothing in it that a terminal obeys: one line, every control character a
    question mark."""
    if text.isascii() and text.isprintable() and len(text) <= MAX_CHARS:
        return text
    cut = text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "..."
    kept: list[str] = []
    marks = 0
    for char in unicodedata.normalize("NFC", cut.translate(_VARIATIONS)):
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks <= MAX_MARKS:
            kept.append(_safe(char, category, ascii_only))
    return "".join(kept)


def _safe(char: str, category: str, ascii_only: bool) -> str:
    if char in "\t\n\r" or (category == "Zs" and char != NBSP):
        return " "
    if category in _UNSAFE or (ascii_only and char != NBSP and not char.isascii()):
        return "?"
    return char


def shorten(text: str, width: int, dots: str = "...") -> str:
    """The text in `width` cells: a template gives up its arguments first, then the middle goes, as
    both ends tell names apart."""
    if cell_len(text) <= width:
        return text
    templated = _TEMPLATED.match(text)
    if templated is not None:
        base = templated[1]
        return next(
            (short for short in (f"{base}<...>", base) if len(short) <= width),
            shorten(base, width, dots),
        )
    room = width - len(dots)
    if room < 2:
        return _head(text, width)
    tail = _head(text[::-1], room * 2 // 5)[::-1]
    return _head(text, room - cell_len(tail)) + dots + tail


def first_clauses(text: str, width: int) -> str:
    """The text in `width` cells: as many whole clauses as there is room for, or words where clauses
    would leave much of it empty."""
    if cell_len(text) <= width:
        return text
    head = _head(text, max(0, width - 4))
    stops = [(i, char) for i, char in _outside(head) if text[i + 1 : i + 2] == " "]
    ends = (max((i for i, char in stops if char in marks), default=0) for marks in (".;:", ","))
    aside = head.rfind(" (")
    if aside > 0 and ")" not in head[aside:]:
        head = head[:aside] + " "
    end = next((end for end in ends if end >= len(head) * 2 // 3), head.rfind(" "))
    return f"{head[:end]} ..." if end > 0 else shorten(text, width)


def _head(text: str, width: int) -> str:
    used, kept = 0, []
    for char in text:
        used += cell_len(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept)


def op_name(name: str) -> str:
    """An operator without the prefix that every operator has."""
    return _OP_PREFIX.sub("", name[:MAX_CHARS])


def kernel_name(name: str) -> str:
    """A kernel without return type, namespaces, arguments and nested templates.

    void at::native::vectorized_elementwise_kernel<4, at::native::F<float>, std::array<char*,
    3ul>>(int, ...) -> vectorized_elementwise_kernel<4, ...>
    """
    text = _ANONYMOUS.sub("", _SUFFIX.sub("", name[:MAX_CHARS]))
    if not _LOOKS_CPP.search(text):
        return text
    head = next((text[:i] for i, char in _outside(text) if char == "("), text).strip()
    start = max(_last_outside(head, " "), _last_outside(head, ":")) + 1
    base, _, rest = head[start:].partition("<")
    if not base:
        return text
    inside = rest.rstrip().removesuffix(">")
    return f"{base}<{_arguments(inside)}>" if rest else base


def _outside(text: str) -> list[tuple[int, str]]:
    """The characters outside of every template and parenthesis, with their indices; an opening
    bracket counts as outside."""
    depth, characters = 0, []
    for i, char in enumerate(text):
        if depth == 0:
            characters.append((i, char))
        if char in "<({[":
            depth += 1
        elif char in ")}]" or (char == ">" and text[i - 1 : i] != "-"):
            depth = max(0, depth - 1)
    return characters


def _last_outside(text: str, wanted: str) -> int:
    return max((i for i, char in _outside(text) if char == wanted), default=-1)


def _arguments(inside: str) -> str:
    """Template arguments; those that are themselves built of others become dots."""
    edges = [i for i, char in _outside(inside) if char == ","]
    pieces = [
        inside[a + 1 : b].strip() for a, b in zip([-1, *edges], [*edges, len(inside)], strict=True)
    ]
    kept: list[str] = []
    for piece in pieces:
        simple = piece.rpartition("::")[2] if not set(piece) & set("<({") else "..."
        if simple != "..." or kept[-1:] != ["..."]:
            kept.append(simple)
    return ", ".join(kept)


NBSP = "\u00a0"


def digits_after_point(value: float) -> int:
    """Decimals that leave about three digits: 0.12, 4.63, 46.3, 463."""
    size = abs(value)
    if size >= 99.95:
        return 0
    return 1 if size >= 9.995 else 2


def fixed(value: float, decimals: int) -> str:
    """The number with these decimals and its thousands apart: 1 234."""
    return f"{value:,.{decimals}f}".replace(",", NBSP)


def number(value: float) -> str:
    """Three digits or so; what is small keeps its first digit instead of becoming 0."""
    if 0 < value < 0.0005:
        return "<0.001"
    if 0 < value < 0.0095:
        return f"{value:.3f}"
    return "0" if value == 0 else fixed(value, digits_after_point(value))


def figure(value: float) -> str:
    """Four digits at most, no zeros to fill them and no exponent: 3, 7.856, 130 812."""
    if 0 < value < 0.0005 or value >= 9999.5:
        return number(value)
    return f"{value:.4g}"


def in_column(value: float, decimals: int) -> str:
    """The number with its column's decimals; `<0.1` where they would make it look like nothing."""
    text = fixed(value, decimals)
    least = 10.0**-decimals
    return f"<{least:.{decimals}f}" if value > 0 and float(text.replace(NBSP, "")) == 0 else text


def signed(value: float, decimals: int) -> str:
    """The number with its sign; what rounds to nothing has none."""
    text = fixed(abs(value), decimals)
    return text if float(text.replace(NBSP, "")) == 0 else f"{'-' if value < 0 else '+'}{text}"


def ms(ns: float) -> str:
    """Nanoseconds as milliseconds: 0.12 ms, 46.3 ms, 1 234 ms."""
    return f"{number(ns / 1e6)}{NBSP}ms"


def short_time(ns: float) -> str:
    """Nanoseconds in the unit that suits a single call: microseconds up to a millisecond."""
    return ms(ns) if ns >= 1e6 else f"{number(ns / 1e3)}{NBSP}us"


def percent(share: float) -> str:
    """0.034 as `3.4 %`, 0.52 as `52 %`."""
    value = share * 100
    if 0 < value < 0.05:
        return f"<0.1{NBSP}%"
    if value == 0:
        return f"0{NBSP}%"
    return f"{value:.{1 if value < 9.95 else 0}f}{NBSP}%"


def per_step(count: int, num_steps: int) -> str:
    """How often a step: a whole number where it is one."""
    value = count / num_steps
    return fixed(value, 0) if value == int(value) or value >= 99.95 else in_column(value, 1)


def megabytes(size: float) -> str:
    return number(size / 1e6)


def gigabytes(size: float) -> str:
    return number(size / 1e9)


def teraflops(flops: float) -> str:
    return f"{number(flops / 1e12)}{NBSP}TFLOP"


def scaled(value: float, units: Sequence[tuple[float, str]], space: str = " ") -> str:
    """Three digits in the largest unit that the value reaches, else in the last."""
    scale, unit = next((each for each in units if value >= each[0]), units[-1])
    return f"{value / scale:.3g}{space}{unit}"


def plural(count: int, noun: str, ending: str = "s") -> str:
    return f"{fixed(count, 0)}{NBSP}{noun}{'' if count == 1 else ending}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
