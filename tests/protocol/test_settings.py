"""The table of settings, and what each finding is met with."""

from __future__ import annotations

import re

import pytest

from stepscope.experiments.fix_values import fixes
from stepscope.protocol.settings import SETTINGS, checked, environment_of, value_of
from stepscope.rules.registry import every_rule
from tests.shared_data import ROOT

CODES = {rule.code for rule in every_rule()}


def test_settings_fix_findings_that_there_are() -> None:
    named = {code for setting in SETTINGS.values() for code in setting.fixes}
    assert named <= CODES
    # The two directions agree: what a finding is met with says that it fixes it, and the other way
    # about.
    for code in CODES:
        tried = fixes(code)
        assert set(tried or ()) == {
            setting.name for setting in SETTINGS.values() if code in setting.fixes
        }, code
        if tried is not None:
            assert checked(tried) == tried


def test_cores_are_shared_among_ranks() -> None:
    alone, shared = (
        fixes("thread-oversubscription"),
        fixes("thread-oversubscription", num_ranks=10_000),
    )
    assert alone is not None
    assert int(alone["num_threads"]) >= 1
    assert shared == {"num_threads": 1}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("workers", 1, "workers is not"),
        ("num_workers", -1, "num_workers cannot be -1"),
        ("num_workers", True, "cannot be True"),
        ("num_workers", 1.5, "cannot be 1.5"),
        ("pin_memory", 1, "true, false"),
        ("compile_mode", "fast", "reduce-overhead"),
        ("allocator", "a\nb", "cannot be"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        checked({name: value})


def test_texts_become_values_of_the_settings_kind() -> None:
    assert value_of("num_workers", "4") == 4
    assert value_of("pin_memory", "TRUE") is True
    assert value_of("bucket_cap_mb", "50") == 50.0
    assert value_of("gc", "off") == "off"
    with pytest.raises(ValueError, match="num_workers cannot be 'many'"):
        value_of("num_workers", "many")


def test_settings_that_must_be_there_before_the_start_are_variables() -> None:
    knobs = {
        "num_threads": 2,
        "allocator": "expandable_segments:True",
        "launch_blocking": False,
        "num_workers": 3,
    }
    assert environment_of(knobs) == {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "CUDA_LAUNCH_BLOCKING": "0",
    }


def test_the_page_has_the_table() -> None:
    lines = ["| setting | values | what it sets | numbers | fixes |", "|---|---|---|---|---|"]
    for setting in SETTINGS.values():
        codes = ", ".join(f"`{code}`" for code in setting.fixes)
        lines.append(
            f"| `{setting.name}` | {setting.values} | {setting.words} | {setting.numerics} | "
            f"{codes} |"
        )
    assert "\n".join(lines) in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
