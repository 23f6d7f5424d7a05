from __future__ import annotations

import pytest

from stepscope.core.action_code import action_code


@pytest.mark.parametrize(
    ("action", "code", "rest"),
    [
        (
            "DataLoader(num_workers=8, pin_memory=True); at least 2, at most the cores",
            "DataLoader(num_workers=8, pin_memory=True)",
            "at least 2, at most the cores",
        ),
        (
            "DataLoader(pin_memory=True) and batch.to(device, non_blocking=True); reuse buffers",
            "DataLoader(pin_memory=True)\nbatch.to(device, non_blocking=True)",
            "reuse buffers",
        ),
        ("model = torch.compile(model), or a part", "model = torch.compile(model)", "or a part"),
        ("OMP_NUM_THREADS=4, or fewer", "OMP_NUM_THREADS=4", "or fewer"),
        (
            "ALLOC_CONF=expandable_segments:True, or a lower peak",
            "ALLOC_CONF=expandable_segments:True",
            "or a lower peak",
        ),
        ("f(x)", "f(x)", ""),
        ("Look at rank 3: its input", "", "Look at rank 3: its input"),
        ("No gc.collect() in the step", "", "No gc.collect() in the step"),
        ("(" * 200, "", "(" * 200),
        ("x" * 400, "", "x" * 400),
        ("", "", ""),
    ],
)
def test_code_is_parted_from_the_words_after_it(action: str, code: str, rest: str) -> None:
    assert action_code(action) == (code, rest)
