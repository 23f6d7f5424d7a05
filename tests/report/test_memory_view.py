"""Device memory, and memory that ran out: in the terminal, as JSON and on the page."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from msgspec.structs import replace

from stepscope.analyses.memory.ways_out import ways_out
from stepscope.core.codec import decode
from stepscope.core.diagnosis import Diagnosis, DiagnosisDocument
from stepscope.core.memory import MemoryHolder, OutOfMemoryReport
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.view import together_words
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.markdown import to_markdown
from stepscope.report.document.terminal import to_text
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of_document
from tests.report.test_html import HOSTILE
from tests.shared_data import ROOT, lab_trace
from tests.wording import mentions

GB = 10**9
FAILED = OutOfMemoryReport(
    source="memory-snapshot",
    label="snapshot.pickle",
    asked_bytes=4 * GB,
    where=HOSTILE,
    phase="forward",
    capacity_bytes=80 * GB,
    held_bytes=77 * GB,
    cache_bytes=GB,
    free_bytes=GB,
    kinds={"activations": 50 * GB, "optimizer": 27 * GB},
    holders=(HOSTILE,),
)


@cache
def diagnosed() -> Diagnosis:
    """With what a stranger's names may be, and memory that ran out."""
    path = lab_trace("memory/small_fp32_sgd")
    made = diagnose([path], Options(use_cache=False, all_findings=True))
    rank = made.facts.ranks[0]
    assert rank.memory is not None
    hostile = MemoryHolder(name=HOSTILE, size_bytes=1, num_tensors=1, kind="activations")
    memory = replace(rank.memory, modules=(hostile,))
    failed = replace(FAILED, ways=ways_out(FAILED))
    facts = replace(made.facts, ranks=(replace(rank, memory=memory),), out_of_memory=(failed,))
    return replace(made, facts=facts)


def test_the_terminal_has_the_peak_and_what_is_for_what() -> None:
    text = to_text(diagnosis_document(diagnosed()), width=160)
    assert "Device memory" in text
    assert mentions(text, "315 MB of 150 GB", "in backward", "step 1")
    for kind in ("activations", "parameters", "temporaries", "not known"):
        assert kind in text
    assert mentions(text, "most that fits")


def test_a_larger_batch_says_its_samples_and_its_memory() -> None:
    finding = next(each for each in diagnosed().findings if each.code == "small-batch")
    assert finding.samples_times > 1
    assert finding.memory is not None
    text = to_text(diagnosis_document(diagnosed()), width=160)
    assert mentions(text, f"{finding.samples_times:.0f} times the samples")
    assert mentions(text, "Memory's peak", "315 MB today")


def test_a_larger_batch_is_another_training_and_not_among_all_fixes_together() -> None:
    made = diagnosed()
    batch = next(each for each in made.findings if each.code == "small-batch")
    other = replace(
        batch,
        code="device-sync",
        samples_times=1.0,
        predicted_speedup=1.5,
        changes_training=False,
    )
    assert batch.changes_training
    third = replace(other, code="gc-pause")
    made = replace(made, findings=(other, third, batch), ladder=(1.5, 2.0, 2.5))
    assert mentions(together_words(made), "together: 2.00x")
    assert "samples" not in together_words(made)
    assert together_words(replace(made, findings=(other, batch), ladder=(1.5, 2.5))) == ""


def test_the_terminal_has_the_ways_out() -> None:
    text = to_text(diagnosis_document(diagnosed()), width=160)
    assert mentions(text, "4.00 GB", "in forward")
    assert "2.00 GB too little" in text
    assert mentions(text, "8 bits")
    assert mentions(text, "cheapest first")


def test_the_json_keeps_to_its_schema_and_opens_again() -> None:
    text = to_json(diagnosed())
    published = json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text(encoding="utf-8"))
    assert list(Draft202012Validator(published).iter_errors(json.loads(text))) == []
    values: dict[str, Any] = json.loads(text)
    (memory,) = values["memory"]
    assert sum(memory["kinds"].values()) == memory["peak_bytes"]
    assert len(values["out_of_memory"][0]["ways"]) == 3
    assert decode(text, DiagnosisDocument, "again").memory


def test_strangers_names_stay_text_on_the_page() -> None:
    page = render_page(page_of_document(decode(to_json(diagnosed()), DiagnosisDocument, "page")))
    assert 'id="memory"' in page
    assert 'id="out-of-memory"' in page
    assert HOSTILE not in page
    assert HOSTILE not in to_markdown(diagnosis_document(diagnosed()))


def test_a_diagnosis_without_memory_has_neither_section() -> None:
    facts = diagnosed().facts
    bare = replace(
        diagnosed(),
        facts=replace(facts, ranks=(replace(facts.ranks[0], memory=None),), out_of_memory=()),
    )
    text = to_text(diagnosis_document(bare), width=160)
    assert "Device memory" not in text
    assert "Out of memory" not in text
    assert not {"memory", "out_of_memory"} & set(json.loads(to_json(bare)))
