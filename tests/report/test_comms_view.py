"""The blocks on ranks and collectives."""

from __future__ import annotations

import json

from msgspec import structs

from stepscope.core.comms import Link
from stepscope.report.diagnosis.comms import MAX_ROWS, comms_sections
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.blocks import Table
from stepscope.report.document.terminal import to_text
from tests.scenarios import evil_groups, healthy, lone_rank_with_collectives, meshed_ranks
from tests.wording import mentions


def block(text: str, title: str) -> list[str]:
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(title))
    return lines[at : next((i for i in range(at, len(lines)) if not lines[i]), len(lines))]


def test_many_ranks_take_few_lines_and_the_late_one_is_named() -> None:
    lines = block(to_text(diagnosis_document(meshed_ranks()), width=80), "Ranks")
    assert len(lines) == 5
    assert lines[2].split()[:3] == ["0-76,", "78-511", "alike"]
    assert lines[3].split()[0] == "77"
    assert lines[3].endswith("0 ms  11.0 ms")
    assert mentions(lines[4], "rank 77", "97 %", "11.0 ms")


def test_collectives_are_a_table_with_what_it_adds_up_to() -> None:
    lines = block(to_text(diagnosis_document(meshed_ranks()), width=80), "Collectives")
    text = " ".join(" ".join(lines).split())
    assert len(lines) < MAX_ROWS + 30
    assert " ".join(lines[2].split()) == "all_gather bf16 mesh_tp 64 x 8 64.0 4 21.0 3.00 80 % 28.0"
    assert "28.0*" in lines[3]
    assert mentions(text, "11 kinds more, 84.0 ms")
    assert mentions(text, "* includes waiting")
    assert mentions(text, "tensor parallel", "64 x 8 ranks", "mesh_tp")
    assert mentions(text, "alpha 4.20 us, beta 180 GB/s", "5 sizes, 0.02 to 64.0 MB", "18 %")
    assert mentions(text, "ranks 72-79", "9.00 where the rest have 28.0 GB/s")
    assert mentions(text, "1.70 times the mean")
    assert "9 buckets of 25.0, 25.0, 25.0, 25.0, 25.0, ..., 25.0 MB" in text
    assert mentions(text, "forward", "33 a step", "14 000 MB", "93 % hidden", "2 modules ahead")


def test_groups_within_a_node_have_their_share_of_the_link() -> None:
    """One that crosses nodes, or holds waits, has none: the link is not the one it runs over."""
    comms = meshed_ranks().facts.comms
    assert comms is not None
    row = structs.replace(comms.rows[0], includes_waits=False, busbw_bytes_per_s=90e9)
    link = Link(name="nvlink", bytes_per_s=450e9, source="datasheet")
    rows = [structs.replace(row, crosses_nodes=crosses) for crosses in (False, True, None)]
    facts = structs.replace(comms, rows=tuple(rows), link=link)
    (section,) = comms_sections(facts)
    table = section.blocks[0]
    assert isinstance(table, Table)
    assert table.columns[-1].title == "of link"
    assert [cells[-1] for cells in table.rows] == ["20\u00a0%", "-", "-"]


def test_one_rank_says_that_waiting_is_included() -> None:
    lines = block(
        to_text(diagnosis_document(lone_rank_with_collectives()), width=80), "Collectives"
    )
    text = " ".join(lines)
    assert mentions(text, "include waiting")
    assert "*" not in text
    assert lines[3].split()[-6:] == ["-", "-", "-", "80", "%", "28.0"]


def test_no_collectives_no_block_and_no_key() -> None:
    assert "Collectives" not in to_text(diagnosis_document(healthy()), width=80)
    assert "comms" not in json.loads(to_json(healthy()))


def test_json_has_the_facts_whole() -> None:
    comms = json.loads(to_json(meshed_ranks()))["comms"]
    assert comms["rows"][0]["busbw_bytes_per_s"] == 28e9
    assert comms["ranks"][77]["late_ns"] == 11_000_000
    assert set(comms) == {
        "world_size",
        "rows",
        "num_rows_left_out",
        "fits",
        "ranks",
        "shape",
        "buckets",
        "gathers",
        "link",
        "clock_noise_ns",
    }


def test_hostile_groups_stay_on_their_lines() -> None:
    text = to_text(diagnosis_document(evil_groups()), width=80)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
