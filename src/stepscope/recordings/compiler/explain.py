"""What `print(torch._dynamo.explain(model)(inputs))` writes: how many graphs a function became, and
where it broke off and why.

    Graph Count: 3
    Graph Break Count: 2
    Op Count: 14
    Break Reasons:
      Break Reason 1:
        Reason: Unsupported Tensor.item() call with capture_scalar_outputs=False
      Explanation: ...
        User Stack:
          <FrameSummary file train.py, line 11 in forward>

A data-dependent branch is no break by its count, and stands among the reasons all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from stepscope.api import FormatError, Reader, Source, TextLines
from stepscope.core.recordings.compiler import Break, CompilerRecording, Counted
from stepscope.recordings.compiler.breaks import MAX_LINES, counted_break

FORMAT = "dynamo-explain"
START = re.compile(rb"(?:^|\n)Graph Count: \d{1,9}\s*\nGraph Break Count: \d{1,9}\s*\n")
COUNT = re.compile(r"Graph Count: (\d{1,9})\s*")
REASON = re.compile(r"\s{1,8}Break Reason \d{1,9}:\s*")
FIRST = re.compile(r"\s{1,8}Reason: (.{0,2000})")
STACK = re.compile(r"\s{1,8}User Stack:\s*")
FRAME = re.compile(r"\s{1,12}<FrameSummary file (.{1,400}?), line (\d{1,9}) in (.{1,200})>\s*")
END = re.compile(r"Ops per Graph:|Out Guards:|Compile Times:")
MAX_BREAKS = 10_000


def is_mine(head: bytes, _name: str) -> bool:
    return START.search(head) is not None


def read_file(source: Source) -> CompilerRecording:
    lines = TextLines(source)
    graphs, breaks = None, list[Break]()
    text, stack, is_stack, is_reason = list[str](), list[str](), False, False
    for line in lines:
        count = COUNT.fullmatch(line)
        if REASON.fullmatch(line) or END.match(line) or count is not None:
            breaks += _break(text, stack, len(breaks))
            text, stack, is_stack, is_reason = [], [], False, REASON.fullmatch(line) is not None
            graphs = (graphs or 0) + int(count[1]) if count is not None else graphs
        elif STACK.fullmatch(line):
            is_stack = True
        elif is_stack and (frame := FRAME.fullmatch(line)):
            stack.append(f"{frame[1]}:{frame[2]}")
        elif is_reason and not is_stack and len(text) < MAX_LINES:
            first = FIRST.fullmatch(line)
            text.append(line if first is None else first[1])
    breaks += _break(text, stack, len(breaks))
    if graphs is None:
        raise FormatError(
            f"{source.label}: no count of graphs in it. Write it with: "
            "print(torch._dynamo.explain(model)(inputs))"
        )
    return CompilerRecording(
        format=FORMAT,
        paths=(source.label,),
        notes=tuple(lines.notes),
        breaks=tuple(breaks),
        counted=(Counted(path=source.label, graphs=graphs),),
    )


def _break(text: list[str], stack: list[str], number: int) -> Iterator[Break]:
    if (text or stack) and number < MAX_BREAKS:
        counted = counted_break("\n".join(text))
        yield replace(counted, id=f"?{number}", location=stack[-1] if stack else "")


READER = Reader(is_mine=is_mine, read_file=read_file)
