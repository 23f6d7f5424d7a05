"""What the Hugging Face Trainer and Lightning tell. The texts are as transformers 5.22 and
Lightning 2.6 wrote them here."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.recordings.training_log import CLOCK, RATE, SUM
from stepscope.readers.text_lines import bars
from tests.recordings.frameworks.test_log import only
from tests.wording import mentions

BAR = "\r {percent}%|\u2588\u258b        | {at}/{of} [{gone}<00:00, {rate}it/s]"
WIPE = "\r                                                \r"
SUMMARY = (
    "{'train_runtime': '0.2051', 'train_samples_per_second': '2341', 'train_steps_per_second': "
    "'292.6', "
    "'train_loss': '1.34', 'epoch': '0.6'}\n"
)
TRAINER = (
    "\r  0%|          | 0/60 [00:00<?, ?it/s]" + WIPE
    + "{'loss': '1.334', 'grad_norm': '0.8928', 'learning_rate': '4.25e-05', 'epoch': '0.1'}\n"
    + BAR.format(percent=17, at=10, of=60, gone="00:00", rate=248.85) + WIPE
    + "{'loss': '1.366', 'grad_norm': '0.8636', 'learning_rate': '8.333e-07', 'epoch': '0.6'}\n"
    + BAR.format(percent=100, at=60, of=60, gone="00:00", rate=295.40) + WIPE + SUMMARY
    + BAR.format(percent=100, at=60, of=60, gone="00:00", rate=293.18) + "\n"
)  # fmt: skip


def test_the_trainer_s_mean_is_its_run_time_by_the_bar_s_steps(tmp_path: Path) -> None:
    log = only(tmp_path, TRAINER)
    assert (log.framework, log.step_source, log.num_steps) == ("Hugging Face Trainer", RATE, 60)
    assert log.step_ns == round(0.2051 / 60 * 1e9)
    assert (log.first_loss, log.last_loss, log.num_lines) == (1.334, 1.366, 2)
    assert log.samples_per_s is not None
    assert log.samples_per_s.value == 2341


def test_the_trainer_s_rate_alone_is_enough_where_it_has_digits(tmp_path: Path) -> None:
    old = (
        "{'train_runtime': 120.0, 'train_samples_per_second': 64.0, 'train_steps_per_second': "
        "2.0, 'epoch': 1.0}"
    )
    log = only(tmp_path, old)
    assert (log.step_ns, log.num_steps, log.step_source) == (500_000_000, 240, RATE)
    coarse = old.replace("'train_runtime': 120.0", "'train_runtime': 120000.0").replace(
        "_second': 2.0", "_second': 0.002"
    )
    assert only(tmp_path, coarse).step_ns is None
    few = old.replace("'train_runtime': 120.0", "'train_runtime': 12.0")
    assert only(tmp_path, few).step_ns is None  # 24 steps: the first of them weighs too much


def test_evaluations_are_no_part_of_the_mean(tmp_path: Path) -> None:
    text = (
        "{'eval_loss': 1.2, 'eval_runtime': 20.0, 'eval_samples_per_second': 9.0, 'epoch': 1.0}\n"
    )
    text += (
        "{'train_runtime': 120.0, 'train_samples_per_second': 64.0, 'train_steps_per_second': "
        "2.0, 'epoch': 1.0}\n"
    )
    assert only(tmp_path, text).step_ns == round(100 / 240 * 1e9)


def run_of_bars(first: int, last: int, of: int, seconds: float) -> str:
    lines = []
    for at in range(first, last + 1):
        gone = int((at - first) * seconds)
        lines.append(
            BAR.format(
                percent=at * 100 // of,
                at=at,
                of=of,
                gone=f"{gone // 60:02d}:{gone % 60:02d}",
                rate=f"{1 / seconds:.2f}",
            )
        )
        if at % 100 == 0:
            lines.append(
                WIPE + "{'loss': 1.3, 'grad_norm': 0.8, 'learning_rate': 4e-05, 'epoch': 0.1}\n"
            )
    return "".join(lines)


def test_a_long_bar_tells_the_pace_to_a_twentieth(tmp_path: Path) -> None:
    log = only(tmp_path, run_of_bars(1, 600, 600, 0.7))
    assert log.step_source == CLOCK
    assert log.step_ns == pytest.approx(0.7e9, rel=0.05)
    assert log.last_step == 600


def test_a_resumed_run_s_mean_is_not_taken(tmp_path: Path) -> None:
    text = run_of_bars(500, 510, 600, 0.7) + "\n{'loss': 1.3, 'epoch': 0.1}\n" + SUMMARY
    log = only(tmp_path, text)
    assert log.step_ns is None
    assert any("resumed" in note for note in log.notes)


def test_an_evaluation_s_bar_and_named_bars_are_not_the_training_s(tmp_path: Path) -> None:
    text = run_of_bars(1, 600, 600, 0.7)
    text += "\rLoading checkpoint shards: 100%|####| 4/4 [59:59<00:00,  1.20s/it]"
    text += "".join(f"\r {at}%|## | {at}/77 [00:{at:02d}<00:00,  1.00it/s]" for at in range(1, 50))
    log = only(tmp_path, text)
    assert log.last_step == 600
    assert log.step_ns == pytest.approx(0.7e9, rel=0.05)


def test_bars_are_found_wherever_they_stand() -> None:
    line = (
        "Epoch 0:   0%|          | 0/743 [00:00<?, ?it/s][Rank 0] x  5%|\u258b | 12/240 "
        "[1:02:03<00:23,  2.90s/it, loss=3]"
    )
    assert list(bars(line)) == [("Epoch 0:", 0, 743, 0), ("[Rank 0] x", 12, 240, 3723)]


def table(*rows: tuple[str, float, int, float]) -> str:
    """lightning/pytorch/profilers/simple.py, extended."""

    def drawn(action: str, mean: str, num: str, total: str, share: str) -> str:
        return f"|  {action:<50s}\t|  {mean:<15}\t|  {num:<15}\t|  {total:<15}\t|  {share:<15}\t|\n"

    rule = "-" * 150 + "\n"
    text = (
        "FIT Profiler Report\n\n"
        + rule
        + drawn("Action", "Mean duration (s)", "Num calls", "Total time (s)", "Percentage %")
        + rule
    )
    text += drawn("Total", "-", "4836", "0.64269", "100 %") + rule
    return (
        text
        + "".join(
            drawn(name, f"{mean:.5}", f"{num}", f"{total:.5}", "1.0")
            for name, mean, num, total in rows
        )
        + rule
    )


ROWS = (
    ("run_training_epoch", 0.29219, 2, 0.58439),
    ("run_training_batch", 0.0026471, 160, 0.42354),
    ("[Strategy]SingleDeviceStrategy.training_step", 0.0015215, 160, 0.24343),
    ("[LightningModule]M.optimizer_step", 0.0023935, 80, 0.19148),
    ("[Strategy]SingleDeviceStrategy.backward", 0.00061592, 160, 0.098547),
    ("[_TrainingEpochLoop].train_dataloader_next", 0.00030091, 160, 0.048146),
)


def test_lightning_s_table_tells_an_optimizer_step_not_a_batch(tmp_path: Path) -> None:
    log = only(tmp_path, table(*ROWS))
    # Two batches are accumulated: 80 steps, of 160 batches.
    assert (log.framework, log.step_ns, log.step_source, log.num_steps) == (
        "Lightning",
        round(0.58439 / 80 * 1e9),
        RATE,
        80,
    )
    assert [action.name for action in log.actions][:2] == [
        "run_training_epoch",
        "run_training_batch",
    ]
    assert log.actions[1].num_calls == 160
    assert log.actions[1].mean_ns == 2_647_100
    loading_ns = {phase.name: phase.ns for phase in log.phases}[
        "[_TrainingEpochLoop].train_dataloader_next"
    ]
    assert loading_ns == round(0.048146 / 80 * 1e9)


def test_lightning_with_a_validation_counts_batches_and_the_loader_alone(tmp_path: Path) -> None:
    log = only(
        tmp_path, table(*ROWS, ("[Strategy]SingleDeviceStrategy.validation_step", 0.1, 4, 0.4))
    )
    assert (log.step_ns, log.step_source) == (round((0.42354 + 0.048146) / 80 * 1e9), SUM)


def test_lightning_with_two_optimizers_or_few_steps_tells_none(tmp_path: Path) -> None:
    assert (
        only(tmp_path, table(*ROWS, ("[LightningModule]N.optimizer_step", 0.1, 80, 0.4))).step_ns
        is None
    )
    few = [(name, mean, num // 10, total / 10) for name, mean, num, total in ROWS]
    assert only(tmp_path, table(*few)).step_ns is None


def test_lightning_s_plain_table_has_no_calls(tmp_path: Path) -> None:
    """extended=False."""
    rule = "-" * 80 + "\n"
    text = (
        "Profiler Report\n\n"
        + rule
        + f"|  {'Action':<20s}\t|  {'Mean duration (s)':<15}\t|  {'Total time (s)':<15}\t|\n"
        + rule
    )
    text += f"|  {'run_training_batch':<20s}\t|  {'0.0026':<15}\t|  {'0.42':<15}\t|\n" + rule
    log = only(tmp_path, text)
    (action,) = log.actions
    assert (action.name, action.num_calls, action.mean_ns, action.total_ns) == (
        "run_training_batch",
        None,
        2_600_000,
        420_000_000,
    )
    assert log.step_ns is None


ADVANCED = """FIT Profiler Report
Profile stats for: run_training_batch
         11200 function calls (10880 primitive calls) in 0.015 seconds

   Ordered by: cumulative time

   ncalls  tottime  percall  cumtime  percall filename:lineno(function)
        1    0.000    0.000    0.000    0.000 contextlib.py:141(__exit__)



Profile stats for: [Strategy]SingleDeviceStrategy.training_step
         331048 function calls (301157 primitive calls) in 0.435 seconds
"""


def test_lightning_s_advanced_profiler_gives_totals(tmp_path: Path) -> None:
    log = only(tmp_path, ADVANCED)
    assert [(action.name, action.total_ns, action.num_calls) for action in log.actions] == [
        ("[Strategy]SingleDeviceStrategy.training_step", 435_000_000, None),
        ("run_training_batch", 15_000_000, None),
    ]
    assert log.step_ns is None


def test_lightning_s_bar_tells_batches_not_steps(tmp_path: Path) -> None:
    clocks = [f"{at // 4 // 60:02d}:{at // 4 % 60:02d}" for at in range(400)]
    text = "".join(
        f"\rEpoch 0:  {at // 4}%|# | {at}/400 [{clock}<00:01,  4.00it/s, v_num=0, train_loss=1.2]"
        for at, clock in enumerate(clocks)
    )
    log = only(tmp_path, text)
    assert (log.framework, log.step_ns) == ("Lightning", None)
    assert dict(log.remarks)["batch"].startswith("250 ms")
    plain = only(tmp_path, text.replace("v_num=0, ", ""))
    assert mentions(plain.framework, "progress bar", "Lightning")
