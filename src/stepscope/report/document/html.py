"""A document as a piece of an HTML page: no scripts, and all text escaped."""

from __future__ import annotations

from typing import Any

from stepscope.report.document.blocks import Document
from stepscope.report.html import environment


def to_html(document: Document) -> str:
    """The blocks in one element, for a page that is not ours."""
    macros: Any = environment(is_inline=True).get_template("blocks.html").module
    return f'<div class="stepscope">{macros.draw(document)}</div>'
