"""What looks like a secret is not written down: not in a run folder, and not in a report."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence

MASK = "(masked)"

_SECRET_NAME = re.compile(
    r"KEY|TOKEN(?!IZER)|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE", re.IGNORECASE
)
_SECRET_START = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|eyJ)[A-Za-z0-9_\-]{8,}"
)
_SECRET_ASSIGNED = re.compile(
    r"(?:key|token|secret|password|passwd|credential|auth)\w*\s*[=:]", re.IGNORECASE
)
_USER_IN_URL = re.compile(r"://[^/\s]*@")
_DEVICE_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F-]{8,36}")
_PIECE = re.compile(r"[A-Za-z0-9+=_\-]{20,}")
_BASE64 = re.compile(r"(?![/.])[A-Za-z0-9+/=_\-]{32,}")
MAX_BITS = 3.5
"""Bits per character beyond which a long piece is taken for a secret: words and paths have some 3,
random letters over 4."""


def masked_words(command: Sequence[str]) -> list[str]:
    """A command line as it may be written down: without keys, what follows a bare --token, and what
    looks like a secret."""
    masked, follows_secret = [], False
    for word in command:
        name, equals, _ = word.partition("=")
        is_named = word.startswith("-") and _SECRET_NAME.search(name) is not None
        if follows_secret and not word.startswith("-"):
            masked.append(MASK)
        elif is_named and equals:
            masked.append(f"{name}={MASK}")
        else:
            masked.append(word if os.sep in word or is_named or not looks_secret(word) else MASK)
        follows_secret = is_named and not equals
    return masked


def masked(name: str, value: str) -> str:
    """A variable's value as it may be written down."""
    return MASK if _SECRET_NAME.search(name) or looks_secret(value) else value


def looks_secret(value: str) -> bool:
    """Whether a value may be a password, a key or a token. It rather errs by hiding what is
    none."""
    value = _DEVICE_UUID.sub("", value)
    if _USER_IN_URL.search(value) or _SECRET_START.search(value) or _SECRET_ASSIGNED.search(value):
        return True
    if _BASE64.fullmatch(value) and _is_mixed(value) and _bits(value) > MAX_BITS:
        return True
    return any(_is_mixed(piece) and _bits(piece) > MAX_BITS for piece in _PIECE.findall(value))


def _is_mixed(piece: str) -> bool:
    """Digits among letters, in more than a version number's quantity."""
    num_digits = sum(c.isdigit() for c in piece)
    return num_digits >= 4 and any(c.isalpha() for c in piece)


def _bits(piece: str) -> float:
    """Shannon's entropy of its characters, in bits per character."""
    return -sum(n / len(piece) * math.log2(n / len(piece)) for n in Counter(piece).values())
