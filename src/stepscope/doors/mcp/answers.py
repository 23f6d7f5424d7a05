"""Our JSON documents cut down to what an agent reads: at most ANSWER_BYTES, the same bytes for the
same document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepscope.protocol.json_text import json_text

ANSWER_BYTES = 4000
MAX_TEXT = 400
MAX_CELL = 120


def fitted(make: Callable[[int], dict[str, Any]], most: int) -> str:
    """The answer with as many of its `most` entries as fit; at least none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if len(_text(make(middle)).encode("utf-8", "replace")) <= ANSWER_BYTES:
            low = middle
        else:
            high = middle - 1
    return cut(_text(make(low)))


def cut(text: str) -> str:
    """Text of at most ANSWER_BYTES; what is cut says so."""
    data = text.encode("utf-8", "replace")
    if len(data) <= ANSWER_BYTES:
        return data.decode("utf-8")
    tail = "\n... (cut)"
    return data[: ANSWER_BYTES - len(tail)].decode("utf-8", "ignore") + tail


def diagnosis_answer(document: Mapping[str, Any]) -> str:
    """Verdict, step and findings; notes as far as there is room."""
    findings, notes = document["findings"], document["notes"]

    def make(num: int) -> dict[str, Any]:
        num_findings = min(num, len(findings))
        num_notes = num - num_findings
        answer = {
            "verdict": short(document["verdict"]["summary"]),
            "bound": document["verdict"]["bound"],
            "step_ms": _rounded(document["step"]["ms"]),
            "step_source": document["step"]["source"],
            "ranks": len(document["ranks"]),
            "findings": [_finding(finding) for finding in findings[:num_findings]],
            "speedup_of_all": _rounded(document["ladder"][-1]) if document["ladder"] else None,
            "notes": [short(note) for note in notes[:num_notes]],
        }
        left = {
            "findings": len(findings) - num_findings,
            "notes": len(notes) - num_notes,
        }
        return answer | ({"left_out": left} if any(left.values()) else {})

    return fitted(make, len(findings) + len(notes))


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    place = next(iter(finding["places"]), None)
    return {
        "code": finding["code"],
        "what": short(finding["summary"]),
        "do": short(finding["action"]),
        "where": None if place is None else short(place.get("line") or place.get("module") or ""),
        "speedup": _rounded(finding["predicted_speedup"]),
        "speedup_range": [
            _rounded(finding["predicted_low"]),
            _rounded(finding["predicted_high"]),
        ],
        "changes_numerics": finding["changes_numerics"],
        "not_together_with": list(finding["excludes"]),
    }


def comparison_answer(document: Mapping[str, Any]) -> str:
    """The speedup and its interval, then the parts that changed, the largest change first."""
    accounts = [
        row | {"by": name}
        for name, account in sorted((document.get("accounts") or {}).items())
        if isinstance(account, Mapping)
        for row in account.get("rows", ())
    ]
    accounts.sort(key=lambda row: (-abs(row.get("change_ns") or 0), str(row.get("name"))))
    notes = [*document["unequal"], *document["notes"]]

    def make(num: int) -> dict[str, Any]:
        num_rows = min(num, len(accounts))
        return {
            "speedup": {
                key: _rounded(value) if isinstance(value, float) else value
                for key in SPEEDUP_KEYS
                for value in (document["speedup"][key],)
            },
            "same_work": document["same_work"],
            "before": _side(document["before"]),
            "after": _side(document["after"]),
            "changes": [
                {
                    "by": row["by"],
                    "name": short(str(row.get("name"))),
                    "change_ms": _rounded((row.get("change_ns") or 0) / 1e6),
                }
                for row in accounts[:num_rows]
            ],
            "notes": [short(_words(note)) for note in notes[: num - num_rows]],
        }

    return fitted(make, len(accounts) + len(notes))


SPEEDUP_KEYS = ("value", "low", "high", "verdict", "why")


def _side(side: Mapping[str, Any]) -> dict[str, Any]:
    return {"step_ms": _rounded(side["step_ms"]), "bound": side["bound"]}


def plan_answer(document: Mapping[str, Any]) -> str:
    """The best layouts: step, MFU, memory, and whether each fits."""
    layouts = document["layouts"]

    def make(num: int) -> dict[str, Any]:
        return {
            "model": document["job"]["model"]["name"],
            "cluster": document["job"]["cluster"]["device"],
            "devices": document["job"]["cluster"]["num_devices"],
            "layouts": [_layout(layout) for layout in layouts[:num]],
            "left_out": len(layouts) - num,
        }

    return fitted(make, len(layouts))


def _layout(layout: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": layout["name"],
        "step_s": _rounded(layout["step_s"]),
        "tokens_per_s": _rounded(layout["tokens_per_s"]),
        "mfu": _rounded(layout["mfu"]),
        "memory_gb": _rounded(layout["memory_bytes"] / 1e9),
        "fits": layout["fits"],
        "why": short(layout["why"] or ""),
    }


def rows_answer(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table's rows, as many as there is room for."""
    names = [short(name) for name in columns]

    def make(num: int) -> dict[str, Any]:
        shown = [[_cell(value) for value in row] for row in rows[:num]]
        return {"columns": names, "rows": shown, "rows_left_out": len(rows) - num}

    return fitted(make, len(rows))


def verification_answer(document: Mapping[str, Any]) -> str:
    """What was proven, and why not where it was not."""
    reasons = [*document["refusals"], *document["notes"]]

    def make(num: int) -> dict[str, Any]:
        return {
            "verdict": document["verdict"],
            "because": short(document["because"]),
            "speedup": document["speedup"],
            "rounds": document["rounds"],
            "prediction": document["prediction"],
            "tail": short(document["tail"]),
            "notes": [short(_words(reason)) for reason in reasons[:num]],
        }

    return fitted(make, len(reasons))


def short(text: str) -> str:
    """Shorten to one line, at most MAX_TEXT letters."""
    words = " ".join(text.split())
    return words if len(words) <= MAX_TEXT else f"{words[: MAX_TEXT - 3]}..."


def _words(value: Any) -> str:
    return value if isinstance(value, str) else _text(value)


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_CELL else f"{value[: MAX_CELL - 3]}..."
    return value


def _rounded(value: float | None) -> float | None:
    """Four digits: more of them are noise, and cost an agent its room."""
    return None if value is None else float(f"{value:.4g}")


def _text(answer: Any) -> str:
    return json_text(answer, separators=(",", ":"), ensure_ascii=False)
