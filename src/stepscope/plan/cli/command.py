"""The best layout of a model on a cluster: its time and memory.

MODEL is a built-in name (llama3-70b), a Hugging Face config.json, or a size (10b). CLUSTER is
NODESxDEVICESxNAME (8x8xH100), DEVICESxNAME, or a .toml file. Options such as --tp 8 pin a part of
the layout; what is not pinned is searched. --from RUN starts from a recorded run instead, and says
what its step becomes at other widths. --rows FILE predicts published results, one JSON line each.
--recorded-memory FILE compares the plan's memory with a recording of it. --emit writes the chosen
layout's launch line and configuration; --check reads a configuration and says what is wrong with
it. --collective says what one collective takes by each of NCCL's algorithms.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import printing
from stepscope.errors import UsageError
from stepscope.plan.cli.options import Options, Output

if TYPE_CHECKING:
    from stepscope.plan.contract.plan import RecordedMemory
    from stepscope.plan.report.account import Plan

NOTHING_FITS = 1
"""Exit code where no layout fits: a script that asks before it launches."""


def run(options: Options) -> int:
    output, recorded = options.output, options.questions.recorded_memory
    if output.rows is not None:
        if output.format != "json":
            raise UsageError("--rows prints JSON lines: give --format json")
        if options.model or options.cluster or options.run.paths or recorded:
            raise UsageError(
                "each row has its own model and cluster: leave out --model, --cluster, --from and "
                "--recorded-memory"
            )
        return _run_rows(output.rows, output.out)
    if options.run.paths is not None and options.model is None:
        if recorded is not None:
            raise UsageError(
                "--recorded-memory compares a model's plan with a recording: give --model and "
                "--cluster too"
            )
        from stepscope.plan.cli.from_run import run_from

        return run_from(options, options.run.paths)
    one = options.collective
    if one.kind is not None:
        from stepscope.plan.cli.collective import run_collective

        return run_collective(options, one.kind)
    if one.bytes or one.ranks or one.measured:
        raise UsageError("--bytes, --ranks and --measured are of --collective: name one")
    if options.launched.check is not None:
        from stepscope.plan.cli.emit import run_check

        return run_check(options, options.launched.check)
    if options.launched.emit is not None:
        from stepscope.plan.cli.emit import run_emit

        return run_emit(options, options.launched.emit)
    from stepscope.plan.cli.answer import answer

    memory = None
    if recorded is not None:
        from stepscope.plan.cli.recorded_memory import compared_memory, read_memory

        memory = read_memory(recorded)
    plan = answer(options)
    _print_or_write(plan, None if memory is None else compared_memory(plan, *memory), output)
    return 0 if plan.best is not None else NOTHING_FITS


def _print_or_write(plan: Plan, recorded: RecordedMemory | None, output: Output) -> None:
    """The plan, to the file or to standard output."""
    from stepscope.cli.report import put_document, put_or_write

    if output.format == "json":
        from stepscope.plan.report.account import plan_json

        put_or_write(plan_json(plan, recorded) + "\n", output.out)
    elif output.format == "html":
        from stepscope.plan.report.html import plan_html

        put_or_write(plan_html(plan, recorded), output.out)
    else:
        from stepscope.plan.report.text import plan_document

        put_document(plan_document(plan, recorded), output.out)


def _run_rows(path: Path, out: Path | None) -> int:
    """A line for each row, in the file's order. What was measured is taken out before anything
    looks at a row."""
    from stepscope.cli.report import put_or_write
    from stepscope.core.timings import counted
    from stepscope.plan.rows import predict, read_rows
    from stepscope.protocol.json_text import json_text

    lines = []
    rows = list(read_rows(path))
    for row in counted("rows", rows, len(rows)):
        row.pop("measured", None)
        lines.append(json_text(predict(row)))
        if out is None:
            printing.put(lines.pop() + "\n")
    if out is not None:
        put_or_write("".join(f"{line}\n" for line in lines), out)
    return 0
