"""The table of `perf report --stdio`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.system import SystemReport
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.host.perf_text import is_mine, read_file

TEXT = """\
# To display the perf.data header info, please use --header/--header-only options.
#
# Samples: 4K of event 'cycles'
# Event count (approx.): 3456789012
#
# Overhead  Command          Shared Object           Symbol
# ........  ...............  ......................  .............................
#
    31.02%  python           libpython3.11.so.1.0    [.] _PyEval_EvalFrameDefault
    12.50%  pt_data_worker   [kernel.kallsyms]       [k] copy_user_generic_string
     0.80%  python           libc.so.6               [.] operator new(unsigned long)
"""
CHILDREN = TEXT.replace("# Overhead", "# Children      Self").replace(
    "    31.02%", "    80.00%    31.02%"
)


COUNTED = (
    CHILDREN.replace("Self  Command", "Self       Samples  Command")
    .replace("%  python", "%          1312  python")
    .replace("%  pt_data", "%           512  pt_data")
)
"""With -n."""


@pytest.mark.parametrize(("text", "total"), [(TEXT, 0.3102), (CHILDREN, 0.8), (COUNTED, 0.8)])
def test_functions_have_their_shares(tmp_path: Path, text: str, total: float) -> None:
    assert is_mine(text.encode(), "x")
    path = tmp_path / "report.txt"
    path.write_text(text)
    (stacks,) = SystemReport(recordings=(read_file(Source(path=path, label="report.txt")),)).stacks
    assert (stacks.tool, stacks.amount, stacks.kernel_share) == ("perf report", 4000.0, 0.125)
    first, second, third = stacks.functions
    assert first.name == "_PyEval_EvalFrameDefault"
    assert first.self_share == pytest.approx(0.3102)
    assert first.total_share == pytest.approx(total)
    assert second.file == "[kernel.kallsyms]"
    assert third.name == "operator new(unsigned long)"
    shares = {thread.name: thread.share for thread in stacks.threads}
    assert shares == pytest.approx({"python": 0.3182, "pt_data_worker": 0.125})
    assert stacks.interpreter_share == pytest.approx(0.3102)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    path.write_text(TEXT.partition("    31")[0])
    with pytest.raises(FormatError, match="perf report --stdio"):
        read_file(Source(path=path, label="report.txt"))


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "perf", "report.txt", TEXT.encode()
