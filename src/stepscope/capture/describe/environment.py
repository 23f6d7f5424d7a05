"""The environment variables that bear on a run's speed,
with whatever looks like a secret left out."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence

PREFIXES = (
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "TORCH", "PYTORCH_", "TRITON_", "KINETO_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "ROCM_", "AMD_", "MIOPEN_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "LOCAL_", "MASTER_", "PYTHON"),
)
NAMES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "TOKENIZERS_PARALLELISM", "LD_PRELOAD", "MALLOC_CONF"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE"),
        *("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_ID", "SLURM_CPU_BIND"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    }
)
MASK = "(masked)"
MOST_CHARS = 200

_SECRET_NAME = re.compile(r"KEY|TOKEN(?!IZER)|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE", re.IGNORECASE)
_SECRET_START = re.compile(r"(?<![A-Za-z0-9])(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|eyJ)[A-Za-z0-9_\-]{8,}")
_SECRET_ASSIGNED = re.compile(r"(?:key|token|secret|password|passwd|credential|auth)\w*\s*[=:]", re.IGNORECASE)
_USER_IN_URL = re.compile(r"://[^/\s]*@")
_DEVICE_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F-]{8,36}")
_PIECE = re.compile(r"[A-Za-z0-9+=_\-]{20,}")
_BASE64 = re.compile(r"(?![/.])[A-Za-z0-9+/=_\-]{32,}")
MOST_BITS = 3.5
"""Bits per character beyond which a long piece is taken for a secret: words and paths have some 3,
random letters over 4."""


def environment_notes(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables worth a note, each at most MOST_CHARS long."""
    return {name: _masked(name, environ[name]) for name in sorted(environ) if _is_of_interest(name)}


def masked_words(command: Sequence[str]) -> list[str]:
    """A command line as it may be written down.

    Without keys, what follows a bare --token, and what looks like a secret.
    """
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


def _is_of_interest(name: str) -> bool:
    return name in NAMES or name.startswith(PREFIXES)


def _masked(name: str, value: str) -> str:
    return MASK if _SECRET_NAME.search(name) or looks_secret(value) else value[:MOST_CHARS]


def looks_secret(value: str) -> bool:
    """Whether a value may be a password, a key or a token.

    It rather errs by hiding what is none.
    """
    value = _DEVICE_UUID.sub("", value)
    if _USER_IN_URL.search(value) or _SECRET_START.search(value) or _SECRET_ASSIGNED.search(value):
        return True
    if _BASE64.fullmatch(value) and _is_mixed(value) and _bits(value) > MOST_BITS:
        return True
    return any(_is_mixed(piece) and _bits(piece) > MOST_BITS for piece in _PIECE.findall(value))


def _is_mixed(piece: str) -> bool:
    """Digits among letters, in more than a version number's quantity."""
    num_digits = sum(c.isdigit() for c in piece)
    return num_digits >= 4 and any(c.isalpha() for c in piece)


def _bits(piece: str) -> float:
    """Shannon's entropy of its characters, in bits per character."""
    return -sum(n / len(piece) * math.log2(n / len(piece)) for n in Counter(piece).values())
