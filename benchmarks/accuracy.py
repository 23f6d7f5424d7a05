"""docs/accuracy.md: how far promised gains were from real ones, from what was saved.

    python -m benchmarks.accuracy [--check]

`lab/board/scored.json` has jobs that were looked at while the rules were written. `lab/held`,
`lab/held_second` and so on to `lab/held_seventh`, and `lab/held_ninth`, have what those sets gave
the one time they were scored before anybody looked (of the eighth the figures alone are kept). All
are written by `benchmarks.board --save`; those of the held-out sets are never written again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.board import CLOSE, Pair

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
SETS = {
    "held out, newest set": "lab/held_ninth",
    "held out, seventh set": "lab/held_seventh",
    "held out, sixth set": "lab/held_sixth",
    "held out, fifth set": "lab/held_fifth",
    "held out, fourth set": "lab/held_fourth",
    "held out, third set": "lab/held_third",
    "held out, second set": "lab/held_second",
    "held out, first set": "lab/held",
    "seen": "lab/board",
}
HEAD = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    if parser.parse_args().check:
        is_current = PAGE.read_text(encoding="utf-8") == page()
        print("docs/accuracy.md is current" if is_current else "docs/accuracy.md is out of date")
        return 0 if is_current else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    scored = {
        name: msgspec.json.decode((ROOT / folder / "scored.json").read_bytes())
        for name, folder in SETS.items()
    }
    lines = [
        HEAD,
        "## In all",
        "",
        *_in_all(scored),
        "",
        "## By finding",
        "",
        *_by_rule(scored),
        "",
    ]
    for name, both in scored.items():
        missed = both["step time given"]["missed_gains"]
        named = ", ".join(f"{code} {got:.2f}x ({job})" for job, code, got in missed)
        lines += [f"Missed, {name}: {named}.", ""]
    return "\n".join(lines)


def _in_all(scored: dict[str, Any]) -> list[str]:
    columns = "jobs|gains|median error|p90|within 10 %|within 15 %|in range|false blame"
    lines = [
        f"| {' | '.join(columns.split('|'))} | missed | regret |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, both in scored.items():
        for given, row in both.items():
            num = row["pairs"]
            shares = [f"{row[key]} ({row[key] / num:.0%})" for key in ("within_10", "within_15")]
            lines.append(
                f"| {name}, {given} | {num} | {row['median_error']:.1%} | {row['p90_error']:.1%} "
                f"| {shares[0]} | {shares[1]} | {row['covered']} ({row['covered'] / num:.0%}) "
                f"| {row['false_blame']} | {row['missed']} | {row['regret']:.1%} |"
            )
    return lines


def _by_rule(scored: dict[str, Any]) -> list[str]:
    """With the step time given; the held-out sets together."""
    pairs: dict[str, dict[str, list[Pair]]] = {"held out": {}, "seen": {}}
    for name, both in scored.items():
        of_kind = pairs["seen" if name == "seen" else "held out"]
        for code, found in both["step time given"]["rules"].items():
            of_kind.setdefault(code, []).extend(msgspec.convert(found, list[Pair]))
    lines = [
        "| finding | "
        + " | ".join(f"{name}: gains, median error, within 15 %, in range" for name in pairs)
        + " |",
        "|---|" + "---|" * len(pairs),
    ]
    for code in sorted({code for of_kind in pairs.values() for code in of_kind}):
        cells = [_cell(of_kind.get(code, [])) for of_kind in pairs.values()]
        lines.append(f"| [{code}](rules/{code}.md) | " + " | ".join(cells) + " |")
    return lines


def _cell(pairs: list[Pair]) -> str:
    if not pairs:
        return "-"
    close = sum(pair.error <= CLOSE[1] for pair in pairs)
    covered = sum(pair.is_covered for pair in pairs)
    middle = statistics.median(pair.error for pair in pairs)
    return f"{len(pairs)}, {middle:.0%}, {close}, {covered}"


if __name__ == "__main__":
    sys.exit(main())
