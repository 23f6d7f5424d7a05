"""Texts that are known and not read: what each is, and what to record instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cli.main import main
from tests.wording import mentions

ROWS = {
    "max-autotune's log": (
        "AUTOTUNE mm(4096x4096, 4096x4096)\n  triton_mm_11 0.2100 ms 100.0%\n  mm 0.25 ms 83.6%\n",
        ("max-autotune", "stepscope tune --knob compile_mode"),
    ),
    "an older explain": (
        "Dynamo produced 6 graphs covering 48 ops with 5 graph breaks (2 unique)\n",
        ("explain", "TORCH_LOGS=graph_breaks"),
    ),
    "nvidia-smi without a header": (
        "0, 21 %, 70112 MiB, 81920 MiB\n" * 4,
        ("without its header", "noheader"),
    ),
    "memory_stats as a dict": (
        "{'allocated_bytes.all.current': 107374, 'num_ooms': 0}\n",
        ("dict", "json.dump"),
    ),
    "amd-smi monitor": (
        "GPU  POWER  GPU_TEMP  MEM_TEMP  GFX_UTIL  GFX_CLOCK\n  0  180 W     45 C     40 C  14 %\n",
        ("amd-smi monitor", "--csv"),
    ),
    "a line that begins with a rank": (
        "[rank0]: step 3 of 500, 12.1 s\n[rank0]: step 4 of 500, 12.0 s\n",
        ("own output", "stepscope run"),
    ),
    "throughputs": ("world size 1: 812 img/s\nworld size 2: 1500 img/s\n", ("--scaling 1=100",)),
    "a loop's own lines": (
        "epoch 1 step 100 loss 2.31 time/step 0.412s\nepoch 1 step 200 loss 2.11\n",
        ("own output", "stepscope run"),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_known_text_is_named_with_what_to_record(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = ROWS[row]
    path = tmp_path / "given.txt"
    path.write_text(text)
    assert main(["diagnose", str(path)]) == 2
    answer = capsys.readouterr().err
    for word in words:
        assert mentions(answer, word), (word, answer)
