"""What numbers and words of our documents may be, said where a field is declared.

A number out of its range is refused when a document is read. Words are only published, in the JSON
Schema: a later version may know more of them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
AtLeastZero = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Gain = Annotated[float, Meta(ge=1)]
"""A speedup that is never a loss."""


def one_of(*words: str) -> Meta:
    """Of a text: one of these."""
    return Meta(extra_json_schema={"enum": list(words)})


def like(pattern: str) -> Meta:
    """Of a text: what the regular expression matches."""
    return Meta(extra_json_schema={"pattern": pattern})


def keys_of(*words: str) -> Meta:
    """Of a mapping: its keys are among these."""
    return Meta(extra_json_schema={"propertyNames": {"enum": list(words)}})
