"""`%%stepscope` in IPython's own shell, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.tables.magic import NO_STEP
from stepscope.tables.run import Run
from tests.installed import package

package("torch")
shells = package("IPython.core.interactiveshell", "IPython")

LOOP = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
last = step
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    made = shells.InteractiveShell()
    made.history_manager.enabled = False
    made.run_line_magic("load_ext", "stepscope")
    yield made
    made.history_manager.end_session()


def test_a_cells_loop_is_recorded_and_its_run_shows_itself(shell: Any, tmp_path: Path) -> None:
    made = shell.run_cell_magic("stepscope", "--start-step 8 --out out", LOOP)
    assert isinstance(made, Run)
    assert shell.user_ns["run"] is made
    assert shell.user_ns["last"] == 39, "the cell ran in the notebook's own names"
    assert 'class="stepscope"' in made._repr_html_()
    assert "<iframe" in made.report()._repr_html_()
    assert len(made.steps) >= 1
    assert (tmp_path / "out" / "rank-0" / "window-8.pt.trace.json").exists()


def test_a_second_cell_is_another_run_and_torch_is_as_it_was(shell: Any) -> None:
    import torch

    code = torch.autograd.backward.__code__
    first = shell.run_cell_magic("stepscope", "before --start-step 8", LOOP)
    second = shell.run_cell_magic("stepscope", "after --start-step 8", LOOP)
    assert shell.user_ns["before"] is first
    assert shell.user_ns["after"] is second
    assert len(list(Path("stepscope-runs").iterdir())) == 2
    assert torch.autograd.backward.__code__ is code


def test_what_a_cell_raises_is_shown_and_what_has_no_step_is_said(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run_cell_magic("stepscope", "", "x = 1 / 0") is None
    said = capsys.readouterr().out
    assert "ZeroDivisionError" in said
    assert NO_STEP in said
    assert "run" not in shell.user_ns
    failed = shell.run_cell("%%stepscope --steps 0\npass")
    assert not failed.success
    assert "number of steps" in capsys.readouterr().out
    shell.run_line_magic("unload_ext", "stepscope")
    assert shell.find_cell_magic("stepscope") is None
