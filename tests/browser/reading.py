"""What a screen reader, or an eye that needs contrast, would find wrong with a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.installed import package

SIZES = ((1280, 900), (390, 844))
"""A desktop's window, and a phone's."""
CONTRAST = "color-contrast"
SHOWN_ONCE = r"""() => {
    for (const many of document.querySelectorAll('tbody, #flame svg')) {
        const known = new Set();
        for (const one of [...many.children]) {
            const drawn = one.outerHTML
                .replace(/>[^<]*</g, '><')
                .replace(/(data-[\w-]+|title|aria-label)="[^"]*"/g, '')
                .replace(/[\d.]+/g, '');
            if (known.has(drawn)) one.remove(); else known.add(drawn);
        }
    }
}"""
"""Of rows that differ in words and numbers alone the first stays."""


def faults_of(
    page: Any,
    context: str | None = None,
    *,
    sizes: Sequence[tuple[int, int]] = SIZES,
    schemes: Sequence[str] = ("light",),
) -> list[str]:
    """By axe, in each size and colour scheme. Contrast is nine tenths of its work, and the same for
    rows that are drawn alike: it is looked at last, in one row of each look, and the page is of no
    use afterwards."""
    others = {"rules": {CONTRAST: {"enabled": False}}}
    contrast = {"runOnly": {"type": "rule", "values": [CONTRAST]}}
    faults = []
    for number, size in enumerate(sizes):
        _resize(page, size)
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            faults.append(f"wider than {size[0]} pixels")
        faults += _run(page, context, others)
        if number == 0:
            page.evaluate(SHOWN_ONCE)
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        for size in sizes:
            _resize(page, size)
            faults += _run(page, context, contrast)
    return faults


def _resize(page: Any, size: tuple[int, int]) -> None:
    """And what the page draws anew is drawn: it hears of its size before the next frame."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _run(page: Any, context: str | None, options: dict[str, Any]) -> list[str]:
    axe = package("axe_playwright_python.sync_playwright", "a browser")
    told = axe.Axe().run(page, context, {"resultTypes": ["violations"], **options})
    return [
        f"{one['impact']} {one['id']}: {one['nodes'][0]['target']}"
        for one in told.response["violations"]
    ]
