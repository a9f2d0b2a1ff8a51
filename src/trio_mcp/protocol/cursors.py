"""Cursors: the cursors of a list that is read page by page."""

from __future__ import annotations

from typing import Any, cast


class Cursors:
    """The cursors of one list so far. A server may repeat a cursor for ever."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        """Hashes, since a cursor may be of any length."""

    def after(self, page: object) -> str | None:
        """Return the cursor of the page that follows ``page``, a result as JSON data. Returns `None` at the end, and
        for a cursor that isn't a string or was returned before."""
        cursor: Any = cast("dict[str, Any]", page).get("nextCursor") if isinstance(page, dict) else None
        if not isinstance(cursor, str) or hash(cursor) in self._seen:
            return None
        self._seen.add(hash(cursor))
        return cursor
