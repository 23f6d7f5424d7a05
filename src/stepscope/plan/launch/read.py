"""A framework's configuration file, told by what is in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from stepscope.core.toml_text import parse_toml
from stepscope.errors import InputError
from stepscope.plan.launch.deepspeed import is_deepspeed, read_deepspeed
from stepscope.plan.launch.flags import flags_of
from stepscope.plan.launch.megatron import READ, read_megatron
from stepscope.plan.launch.read_layout import is_layout, read_layout
from stepscope.plan.launch.settings import Settings
from stepscope.plan.launch.torchtitan import is_torchtitan, read_torchtitan, tables_of_flags
from stepscope.plan.launch.transformers import READ as TRAINER_READ
from stepscope.plan.launch.transformers import is_trainer, read_transformers
from stepscope.protocol.untrusted import parse_json, read_regular

MAX_BYTES = 1 << 20
MAX_NAME = 1000
MAX_SCRIPT_BYTES = 1 << 17
"""A shell script's words are split by a parser whose time grows with the square of a word."""
KNOWN = (
    "a DeepSpeed configuration, arguments of transformers' Trainer or a layout that --emit wrote "
    "(.json), a torchtitan file (.toml), or flags of Megatron-LM or the Trainer (.sh)"
)


def read_settings(path: Path) -> Settings:
    """What the file says. Nothing of it is run."""
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; --check reads {KNOWN}") from None
    except OSError as problem:
        raise InputError(f"{path}: cannot be read: {problem.strerror or problem}") from None
    where = path.name
    if path.suffix.casefold() == ".toml":
        return _read_toml(data, where)
    text = data.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        return _read_json(data, where, path.parent)
    if len(data) > MAX_SCRIPT_BYTES:
        raise InputError(f"{where}: more than {MAX_SCRIPT_BYTES} bytes are no launch script")
    flags, notes = flags_of(text, where, READ | TRAINER_READ)
    tables = tables_of_flags(flags)
    if is_torchtitan(tables):
        config = flags.get("config")
        if isinstance(config, str):
            tables["model"] = {"config": config}
        mode = next(
            (mode for mode in ("full", "none") if f"activation-checkpoint:{mode}" in text),
            "selective",
        )
        tables["activation_checkpoint"] = {"mode": mode}
        return read_torchtitan(tables, where)
    if is_trainer(flags):
        return read_transformers(flags, where, partial(_beside, path.parent), notes)
    if "tensor-model-parallel-size" not in flags and "micro-batch-size" not in flags:
        raise InputError(
            f"{where}: no flags of Megatron-LM, torchtitan or the Trainer are in it; it must be "
            f"{KNOWN}"
        )
    return read_megatron(flags, where, notes)


def _read_toml(data: bytes, where: str) -> Settings:
    try:
        tables = parse_toml(data)
    except ValueError as problem:
        raise InputError(f"{where}: not TOML: {ascii(str(problem))[1:-1][:200]}") from None
    if not is_torchtitan(tables):
        raise InputError(
            f"{where}: it has neither [parallelism] nor [training]; it must be {KNOWN}"
        )
    return read_torchtitan(tables, where)


def _beside(folder: Path, name: str) -> Any:
    """The JSON that a file names: in its own folder or below it, or in the text itself."""
    try:
        if name.lstrip().startswith("{"):
            return parse_json(name.encode())
        parts = Path(name).parts
        if len(name) > MAX_NAME or Path(name).is_absolute() or ".." in parts:
            return None
        return parse_json(read_regular(folder / name, MAX_BYTES))
    except (OSError, ValueError):
        return None


def _read_json(data: bytes, where: str, folder: Path) -> Settings:
    try:
        config: Any = parse_json(data)
    except ValueError as problem:
        raise InputError(f"{where}: not JSON: {ascii(str(problem))[1:-1][:200]}") from None
    if isinstance(config, dict) and is_layout(config):
        return read_layout(config, where)
    if isinstance(config, dict) and is_trainer(config):
        return read_transformers(config, where, partial(_beside, folder))
    if not isinstance(config, dict) or not is_deepspeed(config):
        raise InputError(f"{where}: no DeepSpeed configuration; it must be {KNOWN}")
    return read_deepspeed(config, where)
