"""kernel_information.json of Inductor (AOTInductor packages, with provenance tracking on): which
lines each compiled kernel is of.

    {"triton_poi_fused_relu_0:2": {
        "stack_traces": ["File \\"model.py\\", line 9, in forward\\n ..."],
        "post_grad_nodes": ["relu"], "pre_grad_nodes": ["relu"]}}

A kernel is named as in a trace, with a number behind it that tells calls of one kernel apart.
"""

from __future__ import annotations

import re
from typing import Any

from stepscope.api import Reader, Source
from stepscope.core.recordings.compiler import CompilerRecording, KernelOrigin
from stepscope.readers.whole_file import whole_json

MAX_BYTES = 64 << 20
MAX_KERNELS = 20_000
MAX_LINES = 8
MAX_NODES = 16
MAX_NAME = 300
MINE = re.compile(
    rb'[\s\xef\xbb\xbf]*\{\s*"[^"]{1,400}"\s*:\s*\{\s*'
    rb'"(?:stack_traces|post_grad_nodes|pre_grad_nodes)"\s*:\s*\['
)
HANDLE = re.compile(r":\d{1,9}\Z")
FRAME = re.compile(r'File "([^"\n]{1,500})", line (\d{1,9}), in ([^\n]{1,200})')


def is_mine(head: bytes, _name: str) -> bool:
    return MINE.match(head) is not None


def read_file(source: Source) -> CompilerRecording:
    kernels, _ = whole_json(source, MAX_BYTES, "unpack it from the .pt2 again")
    origins: dict[str, KernelOrigin] = {}
    odd = 0
    for name, about in list(kernels.items())[:MAX_KERNELS] if isinstance(kernels, dict) else ():
        if not isinstance(about, dict):
            odd += 1
            continue
        kernel = HANDLE.sub("", name)[:MAX_NAME]
        origins.setdefault(kernel, _origin(kernel, about))
    return CompilerRecording(
        format="kernel-information",
        paths=(source.label,),
        notes=(f"{odd} entries are of no kernel and were left out",) if odd else (),
        origins=tuple(origins.values()),
    )


def _origin(kernel: str, about: dict[str, Any]) -> KernelOrigin:
    """The innermost line of each stack, and the operators that became the kernel."""
    lines = []
    for stack in _texts(about.get("stack_traces")):
        frames = FRAME.findall(stack[-8000:])
        if frames:
            path, line, function = frames[-1]
            folder = "/".join(path.replace("\\", "/").split("/")[-2:])
            lines.append(f"{folder}:{line} in {function}")
    nodes = _texts(about.get("pre_grad_nodes")) or _texts(about.get("post_grad_nodes"))
    return KernelOrigin(
        kernel=kernel,
        lines=tuple(dict.fromkeys(lines))[:MAX_LINES],
        nodes=tuple(node[:MAX_NAME] for node in nodes[:MAX_NODES]),
    )


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


READER = Reader(is_mine=is_mine, read_file=read_file)
