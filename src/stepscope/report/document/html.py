"""A document as a piece of an HTML page: no scripts, no styles, and all text escaped."""

from __future__ import annotations

from stepscope.report.document.blocks import Document
from stepscope.report.html import environment
from stepscope.report.names import clean


def to_html(document: Document) -> str:
    """The blocks in one element."""
    made = environment(finalize=_harmless)
    made.filters["kind"] = lambda block: type(block).__name__
    return made.get_template("document.html").render(blocks=document)


def _harmless(value: object) -> object:
    """Every text on its way into the page; what is markup already is our own."""
    return clean(value) if type(value) is str else value
