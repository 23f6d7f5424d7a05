"""One HTTP POST of JSON, by the standard library."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from stepscope.protocol.json_text import json_text


def post(
    url: str, body: dict[str, Any], timeout_s: float, more: Mapping[str, str] | None = None
) -> str | None:
    """Sends it to an http or https address; returns what went wrong, if anything did."""
    headers = {"Content-Type": "application/json", "User-Agent": "stepscope", **(more or {})}
    try:
        request = urllib.request.Request(url, json_text(body).encode(), headers, method="POST")  # noqa: S310 - see _opener
        with _opener().open(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as problem:
        return f"it answered {problem.code}"
    except urllib.error.URLError as problem:
        return str(problem.reason)
    except (OSError, ValueError, HTTPException) as problem:
        return str(problem)


def _opener() -> urllib.request.OpenerDirector:
    """An opener of http and https alone, and no redirects: an alert goes where it was told to go,
    and to no file."""
    opener = urllib.request.OpenerDirector()
    handlers = (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
    )
    for handler in (
        *handlers,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener
