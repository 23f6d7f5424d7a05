"""A job that dies of memory that ran out leaves behind who asked, and what was held."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from stepscope.analyses.run.metadata import run_facts
from stepscope.capture.out_of_memory import note_first_passes
from tests.capture.jobs import record
from tests.installed import need

need("torch")

DIES = """
def ask():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
def fail(step):
    if step == 3:
        try:
            ask()
        except RuntimeError as error:
            raise ValueError("a framework's own") from error
train(9, fail)
"""


def test_a_job_that_runs_out_of_memory_says_where(tmp_path: Path) -> None:
    ended = record(tmp_path, DIES)
    assert ended.code == 1
    assert "a framework's own" in ended.err, "the job's own words come through"
    (failure,) = run_facts(ended.run).failures
    assert failure.where is not None
    assert failure.where.startswith("ask (")
    assert (failure.step, failure.rank) == (3, 0)
    assert "2.00 GiB" in failure.message
    assert failure.held_bytes is None, "no device was used"


def test_a_job_that_dies_of_something_else_leaves_nothing(tmp_path: Path) -> None:
    ended = record(tmp_path, "train(3)\nraise ValueError('no')")
    assert ended.code == 1
    assert run_facts(ended.run).failures == ()


ASKS_IN_BACKWARD = """
class Asks(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x
    @staticmethod
    def backward(context, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
def fail(step):
    x = torch.ones(1, requires_grad=True)
    Asks.apply(x).sum().backward()
train(9, fail)
"""


def test_the_line_is_never_one_of_the_capture(tmp_path: Path) -> None:
    ended = record(tmp_path, ASKS_IN_BACKWARD)
    (failure,) = run_facts(ended.run).failures
    assert failure.where is not None
    assert "step.py" not in failure.where
    assert failure.phase == "backward"


ASKS_IN_A_BLOCK = """
class Block(torch.nn.Module):
    def __init__(self, fails):
        super().__init__()
        self.linear, self.fails = torch.nn.Linear(4, 4), fails
    def forward(self, x):
        if self.fails:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.linear(x)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.blocks = torch.nn.ModuleList(Block(at == 2) for at in range(6))
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x
failing = Model()
def fail(step):
    if step == 2:
        failing(torch.ones(5, 3, 4))
train(9, fail)
"""


def test_the_block_that_forward_was_in_is_written_down(tmp_path: Path) -> None:
    ended = record(tmp_path, ASKS_IN_A_BLOCK)
    (failure,) = run_facts(ended.run).failures
    assert (failure.phase, failure.block, failure.num_blocks) == ("forward", 2, 6)
    assert failure.optimizer is not None
    assert (failure.num_rows, failure.element_bytes) == (15, 4)
    assert failure.head_features == 4, "of the layers of this model that are no blocks"


ASKS_ELSEWHERE = """
class Block(torch.nn.Module):
    def __init__(self, fails):
        super().__init__()
        self.conv, self.fails = torch.nn.Conv2d(4, 4, 1), fails
    def forward(self, x):
        if self.fails:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.conv(x)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(at == 2) for at in range(3))
        self.head = torch.nn.Linear(4, 10)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))
failing = Model()
def fail(step):
    if step == 2:
        failing(torch.ones(5, 4, 8, 8))
train(9, fail)
"""


def test_a_layer_after_a_mean_gets_a_row_of_each_sample(tmp_path: Path) -> None:
    ended = record(tmp_path, ASKS_ELSEWHERE)
    (failure,) = run_facts(ended.run).failures
    assert (failure.block, failure.head_features, failure.num_rows) == (2, 10, 5)


ASKS_IN_THE_LOSS = """
def ask(*args, **more):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
torch._C._nn.cross_entropy_loss = ask
def fail(step):
    if step == 2:
        torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.ones(2, dtype=torch.long))
train(9, fail)
"""


def test_the_function_of_torch_that_asked_is_written_down(tmp_path: Path) -> None:
    ended = record(tmp_path, ASKS_IN_THE_LOSS)
    (failure,) = run_facts(ended.run).failures
    assert failure.operator == "cross_entropy"


ASKS_IN_THE_UPDATE = """
import sys
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
def ask(*args, **more):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
sys.modules["torch.optim.sgd"].sgd = ask
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
"""


def test_an_update_that_failed_is_no_step(tmp_path: Path) -> None:
    ended = record(tmp_path, ASKS_IN_THE_UPDATE)
    (failure,) = run_facts(ended.run).failures
    assert (failure.phase, failure.step) == ("optimizer", 1)


def test_what_the_first_passes_held_is_noted_where_a_device_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = SimpleNamespace(passed_bytes=None)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 7)
    note_first_passes(session)
    assert session.passed_bytes is None
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    note_first_passes(session)
    assert session.passed_bytes == 7
