"""What advice shows as code can be written into a program: every call parses, every setting's value
is one that it may have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.run import LoaderKnobs, RankMetadata
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.protocol.settings import SETTINGS, value_of
from stepscope.rules.data.starved_loader import _action
from stepscope.tune.knob_space import Space, parse_knobs
from stepscope.tune.words import winner_words
from tests.scenarios import SCENARIOS
from tests.shared_data import DEMO, ROOT

CALL = re.compile(r"(?<![\w.])\.?[A-Za-z_][\w.]*\(")
PAIR = re.compile(r"(?<![\w.])([a-z_]{2,40})=([^\s,;()]+)")
RULES = sorted((ROOT / "src" / "stepscope" / "rules").glob("*.py"))


def calls(text: str) -> Iterator[str]:
    """Everything that looks like a call, up to its own closing parenthesis; up to the text's end
    where it has none."""
    for match in CALL.finditer(text):
        depth, quote = 0, ""
        for place in range(match.end() - 1, len(text)):
            char = text[place]
            if quote:
                quote = "" if char == quote else quote
            elif char in "\"'":
                quote = char
            else:
                depth += (char == "(") - (char == ")")
            if not depth:
                break
        yield text[match.start() : place + 1]


def faults(text: str) -> list[str]:
    """What of it is no code."""
    found = []
    for call in calls(text):
        try:
            ast.parse(f"x{call}" if call.startswith(".") else call, mode="eval")
        except SyntaxError:
            found.append(call)
    for name, value in PAIR.findall(text):
        if name in SETTINGS:
            try:
                value_of(name, value.rstrip("."))
            except ValueError:
                found.append(f"{name}={value}")
    return found


def written(path: Path) -> Iterator[str]:
    """The texts of a module, with a number for what is filled in; docstrings and regular
    expressions are none of them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield re.sub(r"\{\w*\}", "1", node.value)


def test_what_is_no_code_is_seen() -> None:
    for text in (
        "DataLoader(num_workers=2 times as many, prefetch_factor=4)",
        "DataLoader(num_workers=at least 2)",
        "try num_workers=many",
        "f(q, is_causal=True in place of a mask); more",
        "torch.compile(model",
    ):
        assert faults(text), text
    for text in (
        (
            "DataLoader(num_workers=8, persistent_workers=True, pin_memory=True); at least 2, at "
            "most "
            "the cores per rank"
        ),
        'fetch with .to("cpu", non_blocking=True) (twice) and total += loss.detach()',
        "DistributedDataParallel(..., bucket_cap_mb=25), the default",
    ):
        assert not faults(text), text


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_code_in_what_a_rule_says_parses(path: Path) -> None:
    said = [
        text
        for text in written(path)
        if "\\" not in text and "(?" not in text and "\n\n" not in text
    ]
    assert [fault for text in said for fault in faults(text)] == []


def test_code_in_findings_parses() -> None:
    found = [
        finding
        for name, make in SCENARIOS.items()
        if name != "evil_names"
        for finding in make().findings
    ]
    found += diagnose([str(DEMO)], Options(use_cache=False)).findings
    assert len(found) >= 4
    assert [fault for finding in found for fault in faults(finding.action)] == []


@pytest.mark.parametrize("workers", [None, 0, 1, 2, 12, 64])
@pytest.mark.parametrize("cores", [None, 0.5, 1, 8, 64])
@pytest.mark.parametrize("prefetch", [None, 2, 8])
@pytest.mark.parametrize("busy", [None, 0.1, 1.0])
def test_a_starved_loader_is_never_told_to_have_less(
    workers: int | None, cores: float | None, prefetch: int | None, busy: float | None
) -> None:
    loader = LoaderKnobs(num_workers=workers, prefetch_factor=prefetch)
    known = RankMetadata(
        rank=0, cores=cores, local_ranks=1, loader=loader, busiest_worker_cores=busy
    )
    now = workers or 1
    for given, more in ((None, None), (known, None), (known, now + 1), (known, 3 * now)):
        for times in (2, 4):
            action = _action(given, more if workers else None, times)
            assert faults(action) == []
            told = dict(PAIR.findall(action))
            assert given is None or int(told.get("num_workers", 10**6)) > (workers or 0)
            assert given is None or int(told["prefetch_factor"]) > (prefetch or 2)


def test_what_tune_says_to_write_parses() -> None:
    values = {"bool": ("true", "false"), "text": ("expandable_segments:True",)}
    for setting in SETTINGS.values():
        texts = setting.choices or values.get(setting.kind, ("8", "9"))
        knobs = parse_knobs([f"{setting.name}={','.join(texts)}"], {})
        for text in texts:
            words = winner_words(Space(knobs=knobs), {setting.name: value_of(setting.name, text)})
            assert [fault for line in words for fault in faults(line)] == []
