"""The block on NCCL in the reports: short, no wider than asked, harmless; nothing of it without a
log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recordings.nccl import NcclLog, NcclWarning
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.terminal import to_text
from tests.nccl_logs import info, read_text, two_nodes
from tests.scenarios import SCENARIOS
from tests.wording import mentions


def with_log(log: NcclLog) -> Diagnosis:
    diagnosis = SCENARIOS["healthy"]()
    return replace(diagnosis, facts=replace(diagnosis.facts, nccl=log))


def test_the_block_tells_links_and_what_is_wrong(tmp_path: Path) -> None:
    text = to_text(diagnosis_document(with_log(read_text(tmp_path, two_nodes()))), width=80)
    block = " ".join(text[text.index("\nNCCL") :].split())
    assert "2.20.5+cuda12.4, 2 hosts" in block
    assert mentions(block, "4 ranks", "2 nodes", "2 channels", "ring 0 1 2 3")
    assert (
        "P2P/CUMEM/read 4, NET/IB/GDRDMA/Shared 3, NET/IB/Shared 1; the slowest is NET/IB" in block
    )
    assert mentions(block, "- 2 of 4 network connections")


@pytest.mark.parametrize("width", [40, 80, 100])
def test_hostile_words_neither_escape_nor_widen(tmp_path: Path, width: int) -> None:
    evil = "\x1b[31m\u202e" + "x" * 500
    text = (
        two_nodes()
        + info(f"Using network {evil}")
        + info(f"NCCL_{'A' * 70} set by environment to {evil}")
    )
    log = read_text(tmp_path, text)
    log = replace(
        log,
        warnings=tuple(NcclWarning(text=f"{evil}{i}", count=i) for i in range(1, 9)),
        hosts=(evil,) * 3,
    )
    drawn = to_text(diagnosis_document(with_log(log)), width=width)
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn
    assert max(cell_len(line) for line in drawn.splitlines()) <= width
    assert "and 3 warnings more" in drawn


def test_json_has_the_key_only_with_a_log(tmp_path: Path) -> None:
    log = read_text(tmp_path, two_nodes())
    nccl = json.loads(to_json(with_log(log)))["nccl"]
    assert nccl["transports"] == {"P2P": 4, "NET/IB": 4}
    assert nccl["connections"][0] == {
        "communicator": "0xabc",
        "rank": 0,
        "peer": 1,
        "via": "P2P/CUMEM/read",
        "received_via": None,
        "channels": 1,
    }
    assert nccl["communicators"][0]["rings"][0]["ranks"] == [0, 1, 2, 3]
    assert "nccl" not in json.loads(to_json(SCENARIOS["healthy"]()))
