"""The report as one HTML file: opens from disk, needs no network, and reads well with scripts off.

Whatever comes out of a recording is a stranger's text. The template escapes it; the data for the
charts lies in a block that is not run, with every `<` written as an escape; and a content-security
policy lets nothing run but our own scripts, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import size_words
from stepscope.protocol.json_text import json_text
from stepscope.report.words import clean, figure, percent, shorten

if TYPE_CHECKING:
    from jinja2 import Environment

NOTHING = "'none'"
SCRIPTS = (
    "vendor/echarts.js",
    "timeline_data.js",
    "timeline_panels.js",
    "timeline.js",
    "charts.js",
    "page.js",
)
STYLES = ("page.css", "peak.css", "timeline.css", "auxiliary.css")


def render_page(page: dict[str, Any]) -> str:
    """The whole report. `page` is what model.page_of gives."""
    from markupsafe import Markup

    data = Markup(data_block(page["data"]))  # noqa: S704 - it cannot end its element
    more = {"data": data, "notice": Markup.escape(_file("vendor/echarts.NOTICE"))}
    return render("report.html", page, SCRIPTS, STYLES, policy=("img-src data: blob:",), **more)


def render(
    template: str,
    page: dict[str, Any],
    script_names: Sequence[str],
    style_names: Sequence[str],
    *,
    policy: Sequence[str] = (),
    forms: str = "'none'",
    **more: Any,
) -> str:
    """One of our pages as a file, under a policy that lets these scripts and styles alone run;
    `forms` says where a form may be sent."""
    from markupsafe import Markup

    scripts, styles = ([_file(name) for name in names] for names in (script_names, style_names))
    rules = (
        "default-src 'none'",
        f"script-src {' '.join(map(_hash, scripts)) or NOTHING}",
        f"style-src {' '.join(map(_hash, styles))}",
        *policy,
        "base-uri 'none'",
        f"form-action {forms}",
    )
    return (
        environment()
        .get_template(template)
        .render(
            page=page,
            policy=Markup.escape("; ".join(rules)),
            scripts=[Markup(text) for text in scripts],  # noqa: S704 - our own files
            styles=[Markup(text) for text in styles],  # noqa: S704 - our own files
            **more,
        )
    )


@cache
def environment(*, is_inline: bool = False) -> Environment:
    """Our templates, which escape whatever they are given. `is_inline`: for a piece of another's
    page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from stepscope.core.action_code import action_code
    from stepscope.report.diagnosis.auxiliary import weight_words
    from stepscope.report.diagnosis.memory import kind_words, phase_words
    from stepscope.report.diagnosis.out_of_memory import failure_words, held_words, way_cells
    from stepscope.report.html.auxiliary import explained, format_words

    made = Environment(
        loader=PackageLoader("stepscope.report.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
        # A page is drawn once: working out its constants beforehand takes longer than it saves.
        optimized=False,
    )
    made.filters["kind"] = lambda block: type(block).__name__
    functions = (
        action_code,
        clean,
        explained,
        failure_words,
        figure,
        format_words,
        held_words,
        kind_words,
        percent,
        phase_words,
        shorten,
        size_words,
        way_cells,
        weight_words,
    )
    made.filters.update({function.__name__: function for function in functions})
    made.globals["is_inline"] = is_inline
    return made


def _harmless(value: object) -> object:
    """Every text on its way into a page; what is markup already is our own."""
    return clean(value) if type(value) is str else value


def data_block(data: Any) -> str:
    """JSON that cannot end the element it stands in, whatever is in it."""
    text = json_text(data, separators=(",", ":"))
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
    )


def _file(name: str) -> str:
    text = resources.files("stepscope.report.html").joinpath(name).read_text(encoding="utf-8")
    # No file of ours may end its own element.
    assert "</script" not in text.lower(), name
    assert "</style" not in text.lower(), name
    return f"\n{text.strip()}\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
