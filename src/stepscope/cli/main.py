"""stepscope: why is this PyTorch training run slow?"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib import import_module

from stepscope import __version__
from stepscope.cli.commands import COMMANDS, Action, Command, overview
from stepscope.cli.options import add_options, options_of
from stepscope.cli.printing import Parser, loops_shown, put, say
from stepscope.core.installed import with_installed
from stepscope.errors import StepscopeError

READS_AT_ONCE = ("compare", "demo", "diagnose", "export", "query", "report")
"""Commands that read recordings first of all, and start no job."""
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
GC_OBJECTS = 100_000
"""New objects between two looks for cycles: a command makes many objects and few cycles."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run one command, and turn a user's mistake into a message and an exit code."""
    _hold_closed_streams()
    gc.set_threshold(GC_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(_leave_cycles)
    words = sys.argv[1:] if argv is None else argv
    if not words:
        put(overview(commands_for("")))
        return 0
    commands = commands_for(words[0])
    words = _with_command(words, commands)
    named = [command for command in commands if command.name == words[0]]
    arguments = build_parser(words, named or commands).parse_args(words)
    if words[0] in READS_AT_ONCE:
        _import_numpy()
    try:
        with loops_shown():
            action: Action = arguments.command_action
            code = int(action.run(options_of(action.options, arguments)))
        sys.stdout.flush()
        return code
    except StepscopeError as problem:
        say(problem)
        return problem.exit_code
    except MemoryError:
        say("out of memory; give fewer files at a time, or --jobs 1")
        return StepscopeError.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing to say.
        _drop_output()
        return 141
    except OSError as problem:
        what = "the report" if problem.filename is None else str(problem.filename)
        why = problem.strerror or problem
        say(f"cannot write {what}: {why}. Make room there, or write somewhere else")
        _drop_output()
        return StepscopeError.exit_code


def _hold_closed_streams() -> None:
    """Where stdin, stdout or stderr was closed (`2>&-`), no file that is opened later may take its
    number, and we can print. A job that is started finds it closed: the number is not inherited."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        held = os.open(os.devnull, os.O_RDWR)
        if held != number:
            os.dup2(held, number, inheritable=False)
            os.close(held)
        setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _drop_output() -> None:
    """What is still buffered must not be tried again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _import_numpy() -> None:
    """Import numpy without threads for matrix products, which are few and small here: starting them
    takes half as much CPU as the rest of numpy. Processes that we start find the environment as it
    was."""
    if "numpy" in sys.modules or BLAS_THREADS in os.environ:
        return
    os.environ[BLAS_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[BLAS_THREADS]


def _leave_cycles() -> None:
    """The interpreter would look for cycles once more among all that it is about to drop. DuckDB
    counts as leaked, on stderr, whatever is left of it then."""
    if "duckdb" not in sys.modules:
        gc.freeze()


def commands_for(word: str) -> tuple[Command, ...]:
    """Ours, and those of installed packages where the first word is none of ours."""
    if any(command.name == word for command in COMMANDS):
        return COMMANDS
    return with_installed(COMMANDS, "command", lambda command: command.name)


def _with_command(words: Sequence[str], commands: Sequence[Command]) -> Sequence[str]:
    """The words with the command that they leave out: `stepscope PATH` diagnoses what lies there,
    `stepscope -- COMMAND` runs it. Ends here with what was probably meant, where they have none."""
    word = words[0]
    names = [command.name for command in commands]
    if word == "--":
        return ["run", *words]
    if word.startswith("-") or word in names:
        return words
    is_job = word.endswith(".py") or shutil.which(word) is not None
    if not is_job and os.path.exists(word):
        return ["diagnose", *words]
    if alike := _alike(word.lower(), names):
        hint = f"Did you mean {' or '.join(f'stepscope {name}' for name in alike)}?"
    elif is_job:
        job = words if shutil.which(word) else ["python", *words]
        hint = f"Did you mean stepscope -- {shlex.join(job)}?"
    else:
        hint = "`stepscope --help` lists the commands"
    say(f"{word} is not a command, nor a file. {hint}")
    sys.exit(StepscopeError.exit_code)


def _alike(word: str, names: Sequence[str]) -> list[str]:
    """The nearest name, and what is about as near."""
    from difflib import SequenceMatcher, get_close_matches

    close = get_close_matches(word, names, n=2)
    nearness = [SequenceMatcher(None, name, word).ratio() for name in close]
    return [name for name, near in zip(close, nearness, strict=True) if near > nearness[0] - 0.1]


class _Version(argparse.Action):
    """Our version, and which scanner reads traces here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from stepscope.core.compiled import in_use

        put(f"stepscope {__version__}\nscanner: {in_use()}\n")
        parser.exit()


class _Overview(Parser):
    """The parser of the first word: its help lists the commands by what they are for."""

    def __init__(self, commands: Sequence[Command]) -> None:
        super().__init__(prog="stepscope")
        self.commands = commands

    def format_help(self) -> str:
        return overview(self.commands)


def build_parser(
    asked: Collection[str] | None = None, commands: Sequence[Command] = COMMANDS
) -> argparse.ArgumentParser:
    """The command line: whole, or with the options of those commands alone that are asked for."""
    parser = _Overview(commands)
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show program's version number and exit"
    )
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for command in commands:
        own = parsers.add_parser(
            command.name,
            help=command.about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if asked is None or command.name in asked:
            action = command.load()
            own.description = action.text
            add_options(own, action.options)
            own.set_defaults(command_action=action)
    return parser
