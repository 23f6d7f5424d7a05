"""What an agent may ask. Each tool is a command of ours, asked as a person would, with its answer
cut to what fits."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from stepscope.doors.mcp import answers
from stepscope.doors.mcp.roots import Roots
from stepscope.errors import UsageError
from stepscope.process.isolation import isolated_python

QUERY_S = 60.0
"""An agent's SQL may go on for ever, and the other tools wait for it."""
MAX_ROWS_BYTES = 64 << 20
"""Bytes of an answer, of which 4 kB are told."""
NOT_COMPARED = 1
NOTHING_FITS = 1
VERIFY_EXIT_CODES = (0, 1, 3)
"""Exit codes of a proof that came to an end, whatever it is."""


class Tools:
    """The tools of one server. They answer one at a time: commands print to one standard output,
    and a diagnosis may need most of the memory."""

    def __init__(self, roots: Roots, command: Sequence[str] = ()) -> None:
        self._roots, self._command = roots, tuple(command)
        self._lock = threading.Lock()

    def diagnose(self, path: str, step_ms: float | None = None) -> str:
        """What limits the recorded training run at `path` (a trace, a folder of rank traces, a run
        folder, a TensorBoard log_dir, or the name of a run such as `last`), and what to change:
        findings, the largest predicted speedup first. `step_ms` is the step time without a
        profiler, if you know it."""
        given = [] if step_ms is None else [f"--step-ms={step_ms!r}"]
        with self._lock:
            text = _printed(["diagnose", self._roots.path(path), "--format", "json", "--jobs", "1",
                             *given])  # fmt: skip
        return answers.diagnosis_answer(json.loads(text))

    def explain(self, code: str) -> str:
        """What a finding's code (such as serial-loader) means, why it costs, and how to fix it."""
        from stepscope.rules.explanation import explain

        return answers.cut(explain(code))

    def compare(self, before: str, after: str) -> str:
        """How much faster the second recorded run is than the first, how sure that is, and where
        the difference lies."""
        with self._lock:
            paths = [self._roots.path(before), self._roots.path(after)]
            text = _printed(
                ["compare", *paths, "--format", "json", "--jobs", "1"], also=(NOT_COMPARED,)
            )
        return answers.comparison_answer(json.loads(text))

    def query(self, path: str, sql: str) -> str:
        """SQL (DuckDB's) over a recorded run's tables: events, kernels, launches, copies,
        collectives, steps, ranks, findings. Times are integer nanoseconds. Ask
        `select table_name, column_name from information_schema.columns` for the columns."""
        from stepscope import load

        with self._lock:
            run = load(self._roots.path(path), jobs=1)
            try:
                answer = run.query(sql, most_s=QUERY_S)
                num_bytes = answer.to_arrow().nbytes
                if num_bytes > MAX_ROWS_BYTES:
                    raise UsageError(
                        f"the answer has {num_bytes >> 20} MiB; ask for less: a limit, a sum, "
                        "one step or one rank"
                    )
                table = json.loads(answer.to_json())
            finally:
                run.close()
        return answers.rows_answer(table["columns"], table["rows"])

    def plan(self, model: str, cluster: str, seq: int, global_batch: int) -> str:
        """The best ways to cut a model over a cluster, before anything is paid for: step time,
        MFU, memory. `model` is a name (llama3-70b) or a size (10b), `cluster` 8x8xH100."""
        for text in (model, cluster):
            if "/" in text or "\\" in text or text.endswith((".json", ".toml")):
                raise UsageError(
                    f"{text}: the planner takes names here (llama3-70b, 10b, 8x8xH100), no files"
                )
        words = ["plan", f"--model={model}", f"--cluster={cluster}", f"--seq={seq}",
                 f"--global-batch={global_batch}", "--format", "json"]  # fmt: skip
        with self._lock:
            return answers.plan_answer(json.loads(_printed(words, also=(NOTHING_FITS,))))

    def verify(self, apply: str) -> str:
        """Prove a fix: run the user's own training command with and without it, in turn, until the
        difference is settled. `apply` is a finding's code (serial-loader) or a setting
        (num_workers=8). It starts real jobs and takes minutes."""
        words = isolated_python(
            "stepscope", "verify", f"--apply={apply}", "--format", "json", "--", *self._command
        )
        with self._lock:
            # Its own process: what the job prints must not get between the protocol's lines.
            ended = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
        if ended.returncode not in VERIFY_EXIT_CODES or not ended.stdout.lstrip().startswith("{"):
            raise UsageError(_last_sentence(ended.stderr))
        return answers.verification_answer(json.loads(ended.stdout))

    def offered(self) -> list[Callable[..., str]]:
        """`verify` starts jobs: it is there only where the user gave a command for it."""
        tools: list[Callable[..., str]] = [
            self.diagnose,
            self.explain,
            self.compare,
            self.query,
            self.plan,
        ]
        return [*tools, self.verify] if self._command else tools


def _printed(words: Sequence[str], also: Sequence[int] = ()) -> str:
    """What a command prints. UsageError with its own sentence where it refuses."""
    from stepscope.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    except SystemExit as stopped:
        code = 2 if stopped.code is None else int(stopped.code)
    if code != 0 and (code not in also or not out.getvalue()):
        raise UsageError(_last_sentence(err.getvalue()))
    return out.getvalue()


def _last_sentence(text: str) -> str:
    """The refusal, without the usage that argparse puts before it."""
    start = max(text.rfind("stepscope: "), text.rfind(": error: "))
    words: Any = text[start:] if start >= 0 else text
    return answers.cut(words.removeprefix(": error: ").removeprefix("stepscope: ").strip())
