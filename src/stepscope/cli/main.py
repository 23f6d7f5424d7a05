"""stepscope: why is this PyTorch training run slow?"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from stepscope import __version__
from stepscope.cli import (
    attach,
    calibrate,
    compare,
    demo,
    diagnose,
    explain,
    export,
    fix,
    formats,
    health,
    report,
    run,
)
from stepscope.cli.plan import command as plan
from stepscope.cli.printing import Parser, say
from stepscope.cli.query import command as query
from stepscope.cli.tune import command as tune
from stepscope.cli.verify import command as verify
from stepscope.cli.watch import command as watch
from stepscope.errors import StepscopeError

COMMANDS = (
    run,
    diagnose,
    report,
    explain,
    demo,
    query,
    export,
    compare,
    verify,
    tune,
    fix,
    formats,
    watch,
    health,
    attach,
    calibrate,
    plan,
)
"""One module per subcommand: its docstring is its help, `add_arguments` its options, `run` its
work."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run one command, and turn a user's mistake into a message and an exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments))
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
        # The reader of our output went away (`| head`): nothing to say. What is still buffered must
        # not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as problem:
        say(f"cannot write the report: {problem.strerror or problem}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return StepscopeError.exit_code


def name_of(command: ModuleType) -> str:
    """What a user writes: the name of its file, or of its folder."""
    return command.__name__.removeprefix("stepscope.cli.").split(".")[0]


class _Version(argparse.Action):
    """Our version, and which scanner reads traces here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from stepscope.readers.kineto.native import in_use

        print(f"stepscope {__version__}\nscanner: {in_use()}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The command line, whole."""
    parser = Parser(prog="stepscope", description=__doc__)
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show program's version number and exit"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in COMMANDS:
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name_of(module),
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
