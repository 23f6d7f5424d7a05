"""Tools for an agent, over the Model Context Protocol.

The tools are diagnose, explain, compare, query and plan: they read the folders given with --root
(default: this one) and nothing else, and run nothing. With --allow-verify and a command there is
verify too, which runs that command, and no other, with and without a fix. No model is inside:
the same question about the same files has the same answer, of at most 4 kB.

    stepscope mcp --root runs/ --root traces/
    stepscope mcp --allow-verify -- python train.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli import options as declare

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.doors.mcp.tools import Tools

INSTRUCTIONS = (
    "stepscope says why a PyTorch training run is slow. Start with diagnose on a recorded run; "
    "change one thing, the first finding's `do`; record again, and compare. Gains are predicted by "
    "replaying the recorded steps until verify has measured them. null means not measured."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    roots: list[Path] = declare.option(
        "--root DIR",
        "a folder that may be read; may be given several times (default: this one)",
        Path,
        [],
    )
    allow_verify: bool = declare.option(
        "--allow-verify",
        "there is a tool that runs COMMAND: consent that stands until the server ends",
    )
    command: tuple[str, ...] = declare.command(
        "what starts the job, for --allow-verify", keeps_dashes=True
    )


def run(options: Options) -> int:
    from stepscope.doors.mcp.roots import Roots
    from stepscope.doors.mcp.tools import Tools

    tools = Tools(Roots.of(options.roots or [Path()]), _command(options))
    server(tools).run("stdio")
    return 0


def _command(options: Options) -> tuple[str, ...]:
    """What verify may run; nothing without the user's word."""
    from stepscope.cli.run import command_of
    from stepscope.errors import UsageError

    if options.allow_verify:
        command = declare.after_dashes(options.command)
        return command_of(command, "stepscope mcp --allow-verify -- python train.py")
    if options.command:
        raise UsageError(
            f"{' '.join(options.command)}: a command is for --allow-verify; folders are given "
            "with --root"
        )
    return ()


def server(tools: Tools) -> Any:
    """The SDK's server with our tools."""
    from stepscope import __version__
    from stepscope.core.extras import need

    sdk = need("mcp.server", "mcp", "`stepscope mcp`")
    made = sdk.MCPServer(
        name="stepscope", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR"
    )
    for tool in tools.offered():
        made.add_tool(
            answering(tool),
            name=tool.__name__,
            description=" ".join((tool.__doc__ or "").split()),
            structured_output=False,
        )
    return made


def answering(tool: Callable[..., str]) -> Callable[..., str]:
    """The tool with our sentence in place of our exception, which is what the agent then reads."""
    import functools

    from stepscope.core.extras import need
    from stepscope.doors.mcp import answers
    from stepscope.errors import StepscopeError

    refused = need("mcp.server.mcpserver.exceptions", "mcp", "`stepscope mcp`").ToolError

    @functools.wraps(tool)
    def answer(**given: Any) -> str:
        try:
            return tool(**given)
        except StepscopeError as problem:
            raise refused(answers.cut(str(problem))) from None

    return answer
