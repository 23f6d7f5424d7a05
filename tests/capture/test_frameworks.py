"""Real trainers recorded with nothing edited, and through their callbacks.

Not a part of the dev extra: in an environment that has them, `pytest -m frameworks`.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stepscope.readers.run_folder.folder import RankRecord, read_run
from tests.capture.jobs import environment, stepscope
from tests.installed import need
from tests.waiting import LONGEST_S

need("torch", "the frameworks")
pytestmark = pytest.mark.frameworks

WINDOW = ("--start-step", "8", "--steps", "2")

TRANSFORMERS = """
import sys, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
torch.set_num_threads(1)
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        return {"input_ids": torch.arange(16) % 50 + i % 10, "labels": torch.tensor(i % 2)}
config = BertConfig(
    vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32)
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=20,
    eval_strategy="steps", eval_steps=7, save_strategy="no", report_to=[], disable_tqdm=True,
    use_cpu=True, logging_strategy="no")
callbacks = []
if len(sys.argv) > 1:
    import stepscope
    callbacks = [stepscope.TransformersCallback(sys.argv[1], start_step=8, num_steps=2)]
model = BertForSequenceClassification(config)
trainer = Trainer(
    model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=callbacks)
trainer.train()
print("ended at", trainer.state.global_step)
"""
LIGHTNING = """
import logging, sys, torch
import lightning
torch.set_num_threads(1)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def training_step(self, batch, index): return self.layer(batch[0]).square().mean()
    def validation_step(self, batch, index): self.layer(batch[0])
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters())
def rows():
    data = torch.utils.data.TensorDataset(torch.randn(160, 8))
    return torch.utils.data.DataLoader(data, batch_size=2)
callbacks = []
if len(sys.argv) > 1:
    import stepscope
    callbacks = [stepscope.LightningCallback(sys.argv[1], start_step=8, num_steps=2)]
trainer = lightning.Trainer(
    max_steps=20, accelerator="cpu", accumulate_grad_batches=4, val_check_interval=24,
    limit_val_batches=3, logger=False, enable_progress_bar=False, enable_checkpointing=False,
    enable_model_summary=False, callbacks=callbacks)
trainer.fit(Net(), rows(), rows())
print("ended at", trainer.global_step)
"""
ACCELERATE = """
import torch
from accelerate import Accelerator, debug_launcher
torch.set_num_threads(1)
def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(8, 8)
    data = torch.utils.data.TensorDataset(torch.randn(320, 8))
    rows = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, rows = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), rows)
    for (x,) in rows:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).square().mean())
            optimizer.step(); optimizer.zero_grad()
    accelerator.print("ended in", accelerator.num_processes, flush=True)
if __name__ == "__main__":
    debug_launcher(main, num_processes=2)
"""


def job(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def told(folder: Path, words: list[str]) -> str:
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
        cwd=folder,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()[-1]


def check(rank: RankRecord) -> None:
    """20 steps of 4 batches, evaluations between some of them, and a recording."""
    assert rank.problem is None
    assert len(rank.rows) == 19
    assert {row["num_backwards"] for row in rank.rows} == {4}
    nums = [row["num_batches"] for row in rank.rows]
    # Loaders that fetch one ahead take one batch less at an epoch's end, and one more after it.
    assert Counter(nums).most_common(1)[0][0] == 4
    assert sum(num not in (3, 4, 5) for num in nums) <= 3, "steps without an evaluation"
    assert list(rank.windows) == [8]


@pytest.mark.parametrize("text", [TRANSFORMERS, LIGHTNING], ids=["transformers", "lightning"])
def test_a_trainers_steps_are_counted_through_accumulation_and_evaluation(
    tmp_path: Path, text: str
) -> None:
    path = job(tmp_path, text)
    words = stepscope("run", "--out", "kept", *WINDOW, "--", sys.executable, str(path))
    assert told(tmp_path, words) == "ended at 20"
    (rank,) = read_run(tmp_path / "kept").ranks
    check(rank)
    assert (tmp_path / "kept" / "diagnosis.json").is_file()


@pytest.mark.parametrize("text", [TRANSFORMERS, LIGHTNING], ids=["transformers", "lightning"])
def test_a_callback_records_the_same_steps(tmp_path: Path, text: str) -> None:
    path = job(tmp_path, text)
    assert told(tmp_path, [sys.executable, str(path), str(tmp_path / "kept")]) == "ended at 20"
    (rank,) = read_run(tmp_path / "kept").ranks
    check(rank)


def test_evaluations_of_models_are_seen(tmp_path: Path) -> None:
    path = job(tmp_path, TRANSFORMERS)
    words = stepscope("run", "--no-diagnose", "--out", "kept", "--", sys.executable, str(path))
    told(tmp_path, words)
    (rank,) = read_run(tmp_path / "kept").ranks
    assert [row["step"] for row in rank.rows if row["num_evals"]] == [7, 14]


def test_two_processes_of_accelerate(tmp_path: Path) -> None:
    path = job(tmp_path, ACCELERATE)
    words = stepscope(
        "run", "--no-diagnose", "--out", "kept", *WINDOW, "--", sys.executable, str(path)
    )
    assert told(tmp_path, words) == "ended in 2"
    ranks = read_run(tmp_path / "kept").ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        check(rank)
