"""A guard of compiled code that failed: what it looked at, and what was there instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

SIZE, STRIDE, RANK, DTYPE, DEVICE, GRAD, KEYS = (
    "size",
    "stride",
    "rank",
    "dtype",
    "device",
    "requires_grad",
    "dispatch keys",
)
SIZE_BOUND, VALUE, LENGTH, TYPE, IDENTITY, STATE, OTHER = (
    "bound",
    "value",
    "length",
    "type",
    "identity",
    "global state",
    "other",
)
MAX_VALUES = 16
"""Values of one guard that are kept, at most: what they are is seen from a few."""
MAX_SHOWN = 6


class Guard(Struct, frozen=True, kw_only=True):
    """One guard that failed, once."""

    text: str
    """Text as it was printed, without the id of the compiled version that it kept from being
    used."""
    kind: str = OTHER
    subject: str = ""
    """The tensor's or value's name in the user's code."""
    index: int | None = None
    """The dimension, for sizes and strides."""
    expected: str | None = None
    actual: str | None = None
    code: str = ""
    """The user's line that it comes from."""
    location: str = ""
    hint: str = ""
    """What TorchDynamo says to it."""

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Key of the thing it looked at, whatever the value."""
        return (self.kind, self.subject or self.text, self.index)

    @property
    def words(self) -> str:
        """Words for the thing it looked at: `size of tensor x at dimension 1`."""
        if self.kind in (SIZE, STRIDE):
            return f"{self.kind} of tensor {self.subject} at dimension {self.index}"
        if self.kind == SIZE_BOUND:
            return f"bound on the size of tensor {self.subject} at dimension {self.index}"
        if self.kind in (RANK, DTYPE, DEVICE, GRAD, KEYS):
            what = "number of dimensions" if self.kind == RANK else self.kind
            return f"{what} of tensor {self.subject}"
        if self.kind == STATE:
            return f"global state ({self.subject})" if self.subject else "global state"
        return self.text if self.kind == OTHER else f"{self.kind} of {self.subject}"


class GuardCount(Struct, frozen=True, kw_only=True):
    """A guard over all the times that it failed."""

    guard: Guard
    count: int
    values: tuple[str, ...]
    """Values that were expected and that were there, in order, each once."""

    @property
    def words(self) -> str:
        """`size of tensor x at dimension 0: 8, 16, 24, ...`; with the user's line, where it was
        printed."""
        words, guard = self.guard.words, self.guard
        if self.values:
            words += ": " + ", ".join(self.values[:MAX_SHOWN])
        if len(self.values) > MAX_SHOWN:
            words += ", ..."
        if guard.location:
            code = f": {guard.code}" if guard.code else ""
            words += f" ({guard.location}{code})"
        return words


def count_guards(failures: Iterable[tuple[Guard, ...]]) -> tuple[GuardCount, ...]:
    """Each guard once, the most frequent first. Of one compilation a guard counts once, however
    many versions it kept out."""
    first: dict[object, Guard] = {}
    values: dict[object, dict[str, None]] = {}
    counts: Counter[object] = Counter()
    for guards in failures:
        counts.update({guard.key for guard in guards})
        # The oldest version's first: values then stand in the order in which they came.
        for guard in reversed(guards):
            seen = values.setdefault(guard.key, {})
            first.setdefault(guard.key, guard)
            if guard.expected is not None and len(seen) < MAX_VALUES:
                seen.setdefault(guard.expected)
        for guard in guards:
            if guard.actual is not None and len(values[guard.key]) < MAX_VALUES:
                values[guard.key].setdefault(guard.actual)
    order = sorted(first, key=lambda key: -counts[key])
    return tuple(
        GuardCount(guard=first[key], count=counts[key], values=tuple(values[key])) for key in order
    )
