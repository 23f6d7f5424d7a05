"""What logs of Megatron, torchtitan and nanotron tell of a step, in the frameworks' own formats;
and which logs are ours."""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stepscope.core.recordings.training_log import CLOCK, RATE, STATED, FrameworkLog, TrainingLog
from stepscope.errors import FormatError
from stepscope.readers.detect import format_of, head_of
from stepscope.readers.format import Source
from stepscope.recordings.frameworks.log import is_mine, read
from tests.recording_texts import texts_of, training_log
from tests.shared_data import SAMPLES
from tests.wording import any_mentions, mentions

FORMATS = SAMPLES / "formats"
START = datetime(2026, 1, 1, 12, 0, 0, 123000, tzinfo=timezone.utc)


def read_texts(tmp_path: Path, *texts: str) -> TrainingLog:
    sources = []
    for at, text in enumerate(texts):
        path = tmp_path / f"job{at}.log"
        path.write_bytes(text.encode())
        sources.append(Source(path=path, label=path.name))
    return read(sources)


def only(tmp_path: Path, text: str) -> FrameworkLog:
    assert is_mine(text.encode()[: 64 << 10], "job.log")
    (log,) = read_texts(tmp_path, text).logs
    return log


def megatron(
    step: int, ms: float, loss: float = 8.0, total: int = 1000, batch: int = 256, prefix: str = ""
) -> str:
    """megatron/training/training.py, training_log()."""
    line = (
        f"{prefix} [2026-04-27 00:00:01.123456] iteration {step:8d}/{total:8d} | consumed "
        f"samples: {step * batch:12d} |"
    )
    line += (
        f" elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): "
        f"{240.4:.1f} |"
    )
    line += (
        f" learning rate: {1.5e-4:.6E} | global batch size: {batch:5d} | lm loss: {loss:.6E} | "
        "loss scale: 1.0 |"
    )
    return (
        line
        + " grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def timer(name: str, least: float, most: float) -> str:
    return "    {}: ({:.2f}, {:.2f})".format((name + " ").ljust(48, "."), least, most)


MEGATRON = [
    (
        "using world size: 64, data-parallel size: 16, context-parallel size: 1, hierarchical "
        "context-parallel sizes: None, "
        "tensor-model-parallel size: 4, pipeline-model-parallel size: 1"
    ),
    "------------------------ arguments ------------------------",
    "  seq_length ...................................... 4096",
    "(min, max) time across ranks (ms):",
    timer("model-and-optimizer-setup", 63763.34, 63857.25),
    megatron(1, 91234.5, 11.9),
    megatron(10, 9500.0, 9.0),
    *(
        line
        for step in range(20, 110, 10)
        for line in (
            megatron(step, 450.0 + (step // 10) % 3, 8.0 - step / 100),
            "(min, max) time across ranks (ms):",
            timer("forward-backward", 300.0, 310.0 + (step // 10) % 3),
            timer("optimizer", 20.5, 21.5),
        )
    ),
    (
        "[Rank 0] (after 100 iterations) memory (MB) | allocated: 13182.67 | max allocated: "
        "33742.08 | reserved: 37658.00 | "
        "max reserved: 40960.00"
    ),
]


def test_megatron_step_is_the_median_of_its_steady_lines(tmp_path: Path) -> None:
    log = only(tmp_path, "\n".join(MEGATRON))
    # Lines 20..100 tell 452, 450, 451, 452, 450, 451, 452, 450, 451; those of 1 and 10 have the
    # first iteration in them.
    assert (log.framework, log.step_ns, log.step_source, log.num_steps) == (
        "Megatron",
        451_000_000,
        STATED,
        90,
    )
    assert (log.first_step, log.last_step, log.num_lines) == (1, 100, 11)
    assert (log.global_batch, log.world_size) == (256, 64)
    assert (log.first_loss, log.last_loss) == (11.9, 7.0)
    assert log.tflops is not None
    assert log.tflops.value == 240.4
    assert "one GPU" in log.tflops.convention
    assert log.samples_per_s is not None
    assert log.samples_per_s.value == pytest.approx(256 / 0.451)
    assert log.tokens_per_s is not None
    assert log.tokens_per_s.value == pytest.approx(256 * 4096 / 0.451)
    assert log.memory_bytes is not None
    assert log.memory_bytes.value == 40960 * 2**20


def test_megatron_timers_are_phases_of_a_step_and_a_setup_is_none(tmp_path: Path) -> None:
    log = only(tmp_path, "\n".join(MEGATRON))
    assert {phase.name: phase.ns for phase in log.phases} == {
        "forward-backward": 311_000_000,
        "optimizer": 21_500_000,
    }
    assert log.phases[0].least_ns == 300_000_000


def test_megatron_timers_of_all_ranks_give_the_slowest_and_the_fastest(tmp_path: Path) -> None:
    """megatron/core/timers.py, --timing-log-option all."""
    block = ["times across ranks (ms):", "  forward-backward:"]
    block += [f"     rank {rank:2d}: {300 + rank:.2f}" for rank in range(3)]
    block += ["  optimizer:", "     rank  0: 9.00", "     rank  1: 11.00", megatron(20, 450)]
    log = only(tmp_path, "\n".join([megatron(10, 450), *block]))
    assert [(phase.name, phase.ns, phase.least_ns) for phase in log.phases] == [
        ("forward-backward", 302_000_000, 300_000_000),
        ("optimizer", 11_000_000, 9_000_000),
    ]


def test_megatron_old_timers_and_max_alone_are_read(tmp_path: Path) -> None:
    line = "    {}: {:.2f}".format("forward-backward ".ljust(48, "."), 12.5)
    old = "time (ms) | forward-compute: 100.25 | backward-compute: 200.50 | optimizer: 3.00"
    log = only(
        tmp_path,
        "\n".join([megatron(10, 450), "max time across ranks (ms):", line, old, megatron(20, 450)]),
    )
    assert {phase.name: phase.ns for phase in log.phases} == {
        "backward-compute": 200_500_000,
        "forward-compute": 100_250_000,
        "forward-backward": 12_500_000,
        "optimizer": 3_000_000,
    }


def test_megatron_bridge_writes_a_mean_beside_the_time(tmp_path: Path) -> None:
    lines = [
        megatron(step, 450).replace("(ms): 450.0 |", "(ms): 450.0/9999.9 |")
        for step in range(10, 60, 10)
    ]
    assert only(tmp_path, "\n".join(lines)).step_ns == 450_000_000


def test_one_first_line_tells_no_steady_step(tmp_path: Path) -> None:
    log = only(tmp_path, megatron(1, 91234.5))
    assert (log.step_ns, log.step_source, log.num_steps) == (None, None, 0)


def test_prefixes_other_output_and_a_repeated_line_do_not_count(tmp_path: Path) -> None:
    lines: list[str] = []
    for step in range(10, 60, 10):
        lines += [
            "[default0]:some warning: step: 3 is great",
            megatron(step, 450 + step, prefix="[default7]:"),
            "Traceback ...",
            "",
        ]
        lines += [megatron(step, 450 + step, prefix="[default6]:")]
    log = only(tmp_path, "\n".join(lines))
    assert (log.num_lines, log.ranks) == (5, (6, 7))
    assert log.step_ns == 485_000_000  # 20, 30, 40, 50: the median of 470, 480, 490, 500


def test_ranks_that_write_about_the_same_steps_count_them_once(tmp_path: Path) -> None:
    lines = [
        megatron(step, 400 + rank, prefix=f"[rank{rank}]:")
        for step in range(10, 201, 10)
        for rank in (1, 0, 2)
    ]
    log = only(tmp_path, "\n".join(lines))
    assert log.step_ns == 402_000_000, "the slowest rank's: the others wait for it"
    assert (log.num_lines, log.num_steps, log.ranks) == (20, 180, (0, 1, 2))


def test_of_a_log_with_two_runs_the_last_one_tells_the_step(tmp_path: Path) -> None:
    first = [megatron(step, 400.0) for step in range(10, 601, 10)]
    log = only(tmp_path, "\n".join(first + [megatron(step, 800.0) for step in range(300, 401, 10)]))
    assert (log.step_ns, log.num_steps) == (800_000_000, 100)
    assert any_mentions(log.notes, "anew", "step 300")
    # One that has only just begun says too little: the one before it does.
    log = only(tmp_path, "\n".join([*first, megatron(300, 900.0), megatron(310, 800.0)]))
    assert log.step_ns == 400_000_000
    assert not any("begin anew" in note for note in log.notes)


def test_a_slow_step_is_named_and_the_first_is_not(tmp_path: Path) -> None:
    lines = [
        megatron(1, 91234.5),
        *(megatron(step, 900.0 if step == 40 else 450.0) for step in range(10, 110, 10)),
    ]
    (recording,) = texts_of(read_texts(tmp_path, "\n".join(lines)))
    assert mentions(dict(recording.pairs)["slowest"], "900 ms", "step 40", "2.0 times")
    (recording,) = texts_of(read_texts(tmp_path, "\n".join([*lines[:4], *lines[5:]])))
    assert "slowest" not in dict(recording.pairs)


def test_skipped_and_nan_iterations_are_said(tmp_path: Path) -> None:
    lines = [
        megatron(step, 450).replace("skipped iterations:   0", "skipped iterations:   2")
        for step in range(10, 60, 10)
    ]
    (recording,) = texts_of(read_texts(tmp_path, "\n".join(lines)))
    assert any_mentions(recording.notes, "10 iteration", "skipped")


def titan(
    step: int,
    seconds: float,
    tps: int = 5123,
    rank: int | None = 0,
    colors: bool = True,
    stamp: bool = True,
) -> str:
    """torchtitan/components/metrics.py, MetricsProcessor.log()."""
    red, green, orange, blue, reset = (
        ("\x1b[31m", "\x1b[32m", "\x1b[38;2;180;60;0m", "\x1b[34m", "\x1b[39m")
        if colors
        else ("",) * 5
    )
    when = (START + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    head = f"[titan] {when} - root - INFO - " if stamp else ""
    return (
        ("" if rank is None else f"[rank{rank}]:")
        + head
        + (
            f"{red}step: {step:2}  {green}loss: {8.0 - step / 100:8.5f}  {orange}grad_norm: "
            f"{1.2345:7.4f}  "
        )
        + (
            f"memory: {38.42:5.2f}GiB({48.52:.2f}%)  {blue}tps: {tps:,}  tflops: {1250.31:,.2f}  "
            f"mfu: {25.3:.2f}%{reset}"
        )
    )


def test_torchtitan_step_is_told_by_the_times_of_its_lines(tmp_path: Path) -> None:
    lines = [
        titan(1, 30.0),
        *(titan(step, 30 + 2.5 * step + (60 if step >= 50 else 0)) for step in range(10, 110, 10)),
    ]
    lines.insert(
        4,
        "[rank0]:[titan] 2026-01-01 12:01:00,000 - root - INFO - validate step: 30  loss: 7.1  "
        "memory: 38.42GiB(48.52%)  tps: 9",
    )
    log = only(tmp_path, "\n".join(lines))
    # 2.5 s a step throughout, and a minute of evaluation before step 50.
    assert (log.framework, log.step_ns, log.step_source) == ("torchtitan", 2_500_000_000, CLOCK)
    assert log.num_steps == 90
    assert log.tokens_per_s is not None
    assert log.tokens_per_s.value == 5123
    assert log.mfu is not None
    assert log.mfu.value == pytest.approx(0.253)
    assert log.tflops is not None
    assert log.tflops.value == 1250.31
    assert log.memory_bytes is not None
    assert log.memory_bytes.value == 38.42 * 2**30
    assert (log.first_loss, log.last_loss, log.ranks) == (7.99, 7.0, (0,))


def test_torchtitan_ranks_between_one_another_keep_their_own_clocks(tmp_path: Path) -> None:
    lines = [
        titan(step, 2.5 * step + 0.01 * rank, rank=rank)
        for step in range(10, 110, 10)
        for rank in (1, 0, 2)
    ]
    log = only(tmp_path, "\n".join(lines))
    assert (log.step_ns, log.ranks, log.num_lines) == (2_500_000_000, (0, 1, 2), 10)


def test_torchtitan_without_times_needs_tokens_and_devices(tmp_path: Path) -> None:
    lines = [
        titan(step, 0, tps=4096, rank=None, colors=False, stamp=False) for step in range(10, 60, 10)
    ]
    assert only(tmp_path, "\n".join(lines)).step_ns is None
    batch = (
        "Trainer is initialized with local batch size 8, global batch size 64, gradient "
        "accumulation steps 1, "
    )
    batch += "sequence length 8192, total steps 1000 (warmup 200)"
    assert only(tmp_path, "\n".join([batch, *lines])).step_ns is None
    mesh = (
        "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1"
    )
    log = only(tmp_path, "\n".join([mesh, batch, *lines]))
    assert (log.world_size, log.global_batch, log.step_source) == (16, 64, RATE)
    assert log.step_ns == 64 * 8192 * 10**9 // (4096 * 16)
    now = (
        "Trainer is initialized with 65536 tokens per DP rank, 524288 tokens per train step, "
        "gradient accumulation steps 1, ..."
    )
    assert only(tmp_path, "\n".join([mesh, now, *lines])).step_ns == log.step_ns


def nanotron(step: int, time: str) -> str:
    return (
        f"\x1b[2;3m08/31 14:37:31 [INFO|DP=0|PP=0|TP=0]\x1b[0m: iteration: {step} / 15 | "
        "consumed_tokens: 1.02K | "
        f"elapsed_time_per_iteration_ms: {time} | tokens_per_sec: 43.2K | tokens_per_sec_per_gpu: "
        "43.2K | global_batch_size: 2 | "
        "lm_loss: 5.29 | lr: 0.0003 | model_tflops_per_gpu: 0.00744 | grad_norm: 3.29 | "
        "cuda_max_memory_reserved: 520M"
    )


def test_nanotron_numbers_have_letters(tmp_path: Path) -> None:
    log = only(
        tmp_path,
        "\n".join(
            nanotron(at + 1, time)
            for at, time in enumerate(("14.7K", "1.18K", "1.2K", "1.22K", "673"))
        ),
    )
    assert (log.framework, log.step_ns, log.step_source) == ("nanotron", 1_190_000_000, STATED)
    assert log.tokens_per_s is not None
    assert log.tokens_per_s.value == 43_200
    assert log.memory_bytes is not None
    assert log.memory_bytes.value == 520e6
    new = nanotron(1, "9").replace("elapsed_time", "time")
    assert (
        only(
            tmp_path,
            "\n".join(
                [new, *(nanotron(at, "9.5").replace("elapsed_time", "time") for at in range(2, 9))]
            ),
        ).step_ns
        == 9_500_000
    )


def test_several_logs_of_one_run_are_one_and_of_two_runs_are_none(tmp_path: Path) -> None:
    same = read_texts(
        tmp_path,
        *("\n".join(megatron(step, ms) for step in range(10, 90, 10)) for ms in (450, 452)),
    )
    assert (same.step_ns, same.num_steps, len(same.logs)) == (451_000_000, 70, 2)
    assert texts_of(same)[0].tables[0].rows == (
        ("job0.log", "450", "70"),
        ("job1.log", "452", "70"),
    )
    other = read_texts(
        tmp_path,
        *("\n".join(megatron(step, ms) for step in range(10, 90, 10)) for ms in (450, 900)),
    )
    assert (other.step_ns, other.num_steps) == (None, 0)
    assert any("different step times" in note for note in other.recordings[0].notes)


def test_the_surest_word_on_a_step_is_taken() -> None:
    told = FrameworkLog(framework="a", path="a", step_ns=100, step_source=STATED, num_steps=7)
    reckoned = FrameworkLog(framework="b", path="b", step_ns=900, step_source=RATE, num_steps=70)
    log = training_log(logs=(reckoned, told))
    assert (log.step_ns, log.num_steps) == (100, 7)
    assert (training_log(logs=(reckoned,)).step_ns, TrainingLog().step_ns) == (900, None)


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress("\n".join(MEGATRON).encode()))
    assert read([Source(path=path, label="job")]).step_ns == 451_000_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Training started\nstep 1 loss 3.0\nepoch 1 done in 12 s\n",
        "100%|##########| 4/4 [00:05<00:00,  1.20s/it]\n",
        "Map: 100%|##########| 10000/10000 [00:01<00:00, 5374.47 examples/s]\n",
        "node0:410:432 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0\n",
        (
            "V1116 07:46:14.629000 19046 torch/_dynamo/guards.py:1234] [0/1] [__recompiles] "
            "Recompiling function f in a.py:3\n"
        ),
        '{"schemaVersion": 1, "traceEvents": [{"name": "time (ms) | fwd: 1.0"}]}',
        "{'loss': 'the loss of the model'}\n",
        "iteration 10/1000 | loss 3.0\n",
    ],
)
def test_other_texts_are_not_claimed(text: str) -> None:
    assert not is_mine(text.encode(), "job.log")


def test_words_about_logs_are_not_claimed() -> None:
    assert not is_mine("\n".join(MEGATRON).encode(), "README.md")
    assert is_mine("\n".join(MEGATRON).encode(), "README")


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FORMATS.iterdir()) if FORMATS.is_dir() else []
)
def test_no_file_of_another_tool_is_claimed(name: str) -> None:
    path = FORMATS / name
    assert not is_mine(head_of(Source(path=path, label=name)), name)


def test_the_list_of_formats_finds_it() -> None:
    found = format_of("\n".join(MEGATRON).encode(), "job.log")
    assert found is not None
    assert found.name == "training-log"


def test_a_log_that_never_reaches_a_step_says_so(tmp_path: Path) -> None:
    text = "[rank0]:[titan] 2026-01-01 12:00:00,123 - root - INFO - Starting job: Llama 3\n"
    assert is_mine(text.encode(), "job.log")
    with pytest.raises(FormatError, match="none of them"):
        read_texts(tmp_path, text)
