"""Pages in a browser's tabs that are used again."""

from __future__ import annotations

from typing import Any

from tests.browser.reading import SIZES


class Tabs:
    """A tab for pages as they are, and one in which their policy lets axe's script in."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self._tabs: dict[bool, Any] = {}

    def open(
        self,
        address: str,
        size: tuple[int, int] = SIZES[0],
        scheme: str = "light",
        *,
        bypass: bool = False,
    ) -> Any:
        """The page; what it says in the console is kept in `page.said`. A tab that knows our
        scripts already opens it in half the time of a new one."""
        if bypass not in self._tabs:
            self._tabs[bypass] = _listening(self.browser.new_context(bypass_csp=bypass).new_page())
        page = self._tabs[bypass]
        if page.url.startswith("http"):
            # What it asks its server for as it is left is none of the next one's.
            page.goto("about:blank")
        page.said.clear()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(media="screen", color_scheme=scheme)
        page.goto(address)
        return page


def _listening(page: Any) -> Any:
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda problem: page.said.append(str(problem)))
    page.on(
        "dialog", lambda dialog: (page.said.append(f"dialog {dialog.message}"), dialog.dismiss())
    )
    return page
