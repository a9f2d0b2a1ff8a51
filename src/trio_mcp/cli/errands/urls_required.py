"""say_urls: show the pages that the user must have visited before a call can succeed (2025-11-25)."""

from __future__ import annotations

from typing import Any

from ...protocol.converters import structure
from ...protocol.errors import URLElicitationRequiredData
from ..reporting import say


def say_urls(data: Any) -> None:
    """Show the pages named by an error -32042; ``data`` is its data. Nothing is opened."""
    try:
        required = structure(data, URLElicitationRequiredData)
    except ValueError:
        return  # the error itself is reported all the same
    for page in required.elicitations:
        say(f"visit this page, then call again: {ascii(page.url)[1:-1]} ({page.message})")
