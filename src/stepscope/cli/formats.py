"""What stepscope reads, and how each format is recorded.

FILE, where one is given, is looked at: what it is, what it would show, or what to record instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.cli import options as declare
from stepscope.cli.printing import print_document, put
from stepscope.errors import StepscopeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    files: list[Path] = declare.option("FILE", "a file to look at", declare.run_path, nargs="*")
    format: str = declare.style()


def run(options: Options) -> int:
    from stepscope.report.formats import formats_document, formats_json

    if options.files:
        return _look(options.files, is_json=options.format == "json")
    if options.format == "json":
        put(formats_json() + "\n")
    else:
        print_document(formats_document(), options.format)
    return 0


def _look(files: list[Path], *, is_json: bool) -> int:
    """One line for each file; 1 where one of them is not known."""
    from stepscope.core.contract.formats import FileFormat
    from stepscope.readers.cache import read_trace
    from stepscope.readers.inputs import find_sources
    from stepscope.report.formats import formats_json, source_formats, source_words

    code = 0
    found: list[FileFormat] = []
    for file in files:
        try:
            with find_sources([file]) as inputs:
                for source in inputs.sources:
                    if source.format is None:
                        # Only reading it shows what it is; it is refused with the reason.
                        read_trace(source, use_cache=False)
                lines = source_words(inputs)
                found += source_formats(inputs)
        except StepscopeError as problem:
            lines, code = [str(problem)], 1
            found.append(FileFormat(path=str(file), format=None, problem=str(problem)))
        if not is_json:
            put("\n".join(lines) + "\n")
    if is_json:
        put(formats_json(tuple(found)) + "\n")
    return code
