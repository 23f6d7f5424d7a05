"""What a run folder's files may say: each value of the kind and in the range that its name
promises, or None.

A run folder may come from anyone, and a job may have been killed while it wrote. What passes here
is what the rest of the program may rely on: a list of loaders is a list of objects, cores are above
0, times are finite and fit 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope.protocol.untrusted import LARGEST_FLOAT, LARGEST_INT, finite, whole

Row = dict[str, int | None]
Range = tuple[float, float]

LISTS_OF_OBJECTS = {
    "compiled", "data_parallel", "ddp", "devices", "fsdp", "fsdp2", "grad_scalers", "loaders",
    "models", "optimizers",
}  # fmt: skip
LISTS_OF_TEXTS = {"command", "throttle_reasons"}
OBJECTS = {
    "batch", "checkpointing", "environment", "flags", "loader_iter", "machine", "options",
    "settings", "verdict", "versions",
}  # fmt: skip
TEXTS = {
    "backend", "bound", "class", "dataset", "host", "kind", "line", "problem", "program", "python",
    "schema", "system", "words",
}  # fmt: skip
WHOLE: Mapping[str, Range] = {
    "batch_size": (1, 2**53),
    "exit_code": (-(2**31), 2**31),
    "local_rank": (0, 10**8),
    "local_world_size": (1, 10**8),
    "num_tensors": (0, 10**9),
    "num_threads": (1, 10**6),
    "num_workers": (0, 10**6),
    "pid": (0, 2**32),
    "prefetch_factor": (0, 10**6),
    "rank": (0, 10**8),
    "step": (0, 2**53),
    "world_size": (1, 10**8),
}
CORES = (1e-3, 1e6)
FINITE: Mapping[str, Range] = {"cpu_affinity": CORES, "cpu_count": CORES, "cpu_quota": CORES}
BY_SUFFIX: tuple[tuple[str, Range], ...] = (
    ("_percent", (0, 100)),
    ("_share", (0, 1)),
    ("_cores", (0, 1e6)),
    ("_s_per_s", (0, 1e6)),
    ("_ns", (0, LARGEST_INT)),
    ("_bytes", (0, LARGEST_INT)),
    ("_bytes_s", (0, LARGEST_FLOAT)),
    ("_mhz", (0, 1e9)),
    ("_w", (0, 1e9)),
)
"""Names end with their units."""
KINDS = {*LISTS_OF_OBJECTS, *LISTS_OF_TEXTS, *OBJECTS, *TEXTS, *WHOLE, *FINITE}
MAX_STEP_NS = 2**53
"""A hundred days, and exact as a float."""
NUM_NAMED = 4


def sound_object(value: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The object with every value that cannot be what its name says as None, and the names of those
    values."""
    wrong: list[str] = []
    return {name: _sound(name, part, name, wrong) for name, part in value.items()}, tuple(wrong)


def sound_row(columns: Sequence[str], values: Sequence[Any]) -> Row:
    """A line of steps or stretches. Its times are what a clock counts, one step's are not longer
    than any run."""
    most = {"from_ns": LARGEST_INT, "to_ns": LARGEST_INT, "end_ns": LARGEST_INT}
    return {
        name: whole(value, 0, most.get(name, MAX_STEP_NS))
        for name, value in zip(columns, values, strict=True)
    }


def wrong_note(where: str, wrong: Sequence[str]) -> str:
    names = ", ".join(dict.fromkeys(wrong[:NUM_NAMED])) + ", ..." * (len(wrong) > NUM_NAMED)
    values = "1 value is" if len(wrong) == 1 else f"{len(wrong)} values are"
    return f"{where}: {values} of a wrong kind or out of range, and not used: {names}"


def _sound(name: str, value: Any, path: str, wrong: list[str]) -> Any:
    if value is None or (isinstance(value, bool) and not _is_promised(name)):
        return value
    kept = _kept(name, value)
    if kept is None:
        wrong.append(path[:100])
    elif isinstance(kept, dict):
        return {
            str(key): _sound(str(key), part, f"{path}.{key}", wrong) for key, part in kept.items()
        }
    elif isinstance(kept, list):
        return [_sound("", part, f"{path}[{index}]", wrong) for index, part in enumerate(kept)]
    return kept


def _is_promised(name: str) -> bool:
    """Whether the name promises a kind of value. True is a 1 to Python, and no exit code."""
    return name in KINDS or any(name.endswith(suffix) for suffix, _ in BY_SUFFIX)


def _kept(name: str, value: Any) -> Any:
    """The value, or of a list the parts of the right kind; None where it is of a wrong one."""
    if name in LISTS_OF_OBJECTS:
        return _of_type(value, dict)
    if name in LISTS_OF_TEXTS:
        return _of_type(value, str)
    if name in OBJECTS:
        return value if isinstance(value, dict) else None
    if name in TEXTS:
        return value if isinstance(value, str) else None
    if name in WHOLE:
        low, high = WHOLE[name]
        return whole(value, round(low), round(high))
    if isinstance(value, int | float):
        return _number(name, value)
    return None if name in FINITE else value


def _of_type(value: Any, kind: type) -> list[Any] | None:
    return [part for part in value if isinstance(part, kind)] if isinstance(value, list) else None


def _number(name: str, value: float) -> float | None:
    low, high = FINITE.get(name) or next(_ranges(name), (-LARGEST_FLOAT, LARGEST_FLOAT))
    return None if finite(value, low, high) is None else value


def _ranges(name: str) -> Iterator[Range]:
    yield from (each for suffix, each in BY_SUFFIX if name.endswith(suffix))
    if name.startswith("num_"):
        yield 0, LARGEST_INT
