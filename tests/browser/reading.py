"""What a screen reader, or an eye that needs contrast, would find wrong with a page."""

from __future__ import annotations

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


def faults_of(page: Any, context: str | None = None) -> list[str]:
    """By axe. Contrast is nine tenths of its work, and the same for rows that are drawn alike: it
    is looked at last, in one row of each look, and the page is of no use afterwards."""
    others = {"rules": {CONTRAST: {"enabled": False}}}
    faults = _run(page, context, others)
    page.evaluate(SHOWN_ONCE)
    return faults + _run(page, context, {"runOnly": {"type": "rule", "values": [CONTRAST]}})


def _run(page: Any, context: str | None, options: dict[str, Any]) -> list[str]:
    axe = package("axe_playwright_python.sync_playwright", "a browser")
    told = axe.Axe().run(page, context, {"resultTypes": ["violations"], **options})
    return [
        f"{one['impact']} {one['id']}: {one['nodes'][0]['target']}"
        for one in told.response["violations"]
    ]
