"""Mutated traces end in a Trace that passes its own check, or in one of our errors; never in anything else."""

from __future__ import annotations

import gzip
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepscope.errors import StepscopeError
from stepscope.readers import feed, stream
from stepscope.readers.sniff import read_trace
from tests.builders import source, step_events, trace_text

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
SHARED_NAMES = (
    "public/hta/triton_example.triton_example.json.gz",
    "public/hta/critical_path.cuda_event_sync.event_sync_trace.json.gz",
    "public/hta/amd_trace.mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "lab/formats/nccl_w1_rank0.pt.trace.json.gz",
)
TIMES = int(os.environ.get("STEPSCOPE_FUZZ", "1"))
"""So many times as long as in CI."""
MOST_ROUNDS, MOST_BYTES = 150 * TIMES, 2_500_000 * TIMES
"""What each trace is mutated and read for: a minute in all."""
HANG_S = 120
TOKENS = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"\n",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"null",
    b"true",
    b"-",
]
TOKENS += [
    b'"ph":',
    b'"ts":',
    b'"dur":',
    b'"args":',
    b'"traceEvents":[',
    b"}, {",
    b'{"ph":"X"',
    b'"\\ud800"',
    b"9" * 30,
    b"[" * 2000,
    b"}]",
]

Mutation = Callable[[bytearray, random.Random], None]


def _flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _insert(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = chance.choice(TOKENS)


def _overwrite(data: bytearray, chance: random.Random) -> None:
    at, token = chance.randrange(len(data)), chance.choice(TOKENS)
    data[at : at + len(token)] = token


def _delete(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.choice([1, 2, 10, 500])]


def _cut_off(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def _repeat(data: bytearray, chance: random.Random) -> None:
    at, size = chance.randrange(len(data)), chance.choice([3, 50, 800])
    data[at:at] = data[at : at + size] * chance.choice([1, 2, 40])


def _move(data: bytearray, chance: random.Random) -> None:
    at, size, to = chance.randrange(len(data)), chance.choice([5, 100, 1000]), chance.randrange(len(data))
    data[to:to] = data[at : at + size]


def _change_number(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    while at < len(data) and not data[at : at + 1].isdigit():
        at += 1
    data[at : at + 1] = chance.choice(
        [b"-1", b"1.5e3", b'"7"', b"1e-400", b"null", b"0.0001", b"12345678901234567890", b"[1]", b"{}"]
    )


MUTATIONS: tuple[Mutation, ...] = (_flip, _insert, _overwrite, _delete, _cut_off, _repeat, _move, _change_number)


def _originals() -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {
        "built": trace_text(step_events() * 3, record_shapes=1).encode(),
        "built, indented": trace_text(indent=1).encode(),
    }
    demos = sorted((ROOT / "src" / "stepscope" / "data").glob("*.json.gz"))
    for path in [SHARED / name for name in SHARED_NAMES] + demos:
        found[path.name] = gzip.decompress(path.read_bytes())[:100_000] if path.exists() else None
    return found


ORIGINALS = _originals()


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_mutated_trace_is_read_or_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ORIGINALS[name]
    if original is None:
        pytest.skip("this trace is not here (../shared)")
    chance = random.Random(name)
    path = tmp_path / "t.json"
    num_read = 0
    for number in range(min(MOST_ROUNDS, MOST_BYTES // len(original))):
        data = bytearray(original)
        for _ in range(chance.choice([1, 1, 2, 5])):
            if data:
                chance.choice(MUTATIONS)(data, chance)
        # Every size at which a cut may fall comes by.
        monkeypatch.setattr(feed, "CHUNK_BYTES", chance.choice([200, 5_000, 2 << 20]))
        monkeypatch.setattr(feed, "PIECE_BYTES", chance.choice([100, 32 << 10]))
        monkeypatch.setattr(feed, "MAX_EVENT_BYTES", chance.choice([2_000, 16 << 20]))
        monkeypatch.setattr(stream, "BLOCK_BYTES", chance.choice([333, 1 << 20]))
        path.write_bytes(gzip.compress(data, 1) if number % 5 == 0 else data)
        num_read += _check(path, f"{name}, round {number}")
    assert num_read > 0


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_mutated_compressed_trace_is_read_or_refused(tmp_path: Path, name: str) -> None:
    original = ORIGINALS[name]
    if original is None:
        pytest.skip("this trace is not here (../shared)")
    chance = random.Random(name)
    packed = gzip.compress(original, mtime=0)
    path = tmp_path / "t.json.gz"
    num_refused = 0
    for number in range(100):
        data = bytearray(packed)
        for _ in range(chance.choice([1, 1, 2, 5])):
            chance.choice((_flip, _overwrite, _delete, _repeat))(data, chance)
        path.write_bytes(data)
        num_refused += not _check(path, f"{name}, round {number}")
    assert 0 < num_refused < 100


def _check(path: Path, where: str) -> bool:
    """Whether it was read; a refusal has words."""
    with _no_hang(where):
        try:
            read_trace(source(path), use_cache=False).self_check()
        except StepscopeError as problem:
            assert str(problem), where  # noqa: PT017
            return False
    return True


@contextmanager
def _no_hang(where: str) -> Iterator[None]:
    """A reading that does not end is ended, long after any that does."""

    def stop(*_: object) -> None:
        raise TimeoutError(where)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
