"""Regular expressions that are compiled at their first use: compiling one takes as long as making a class, and a server
needs few of its patterns for its first answer."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what `re.compile` returns. Errors in ``text`` are raised at the first use."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))


class _LazyPattern:
    """Gets each method of the pattern at its first use, and has it from then on."""

    def __init__(self, text: Any, flags: int) -> None:
        self._source = (text, flags)

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(*self._source), name)
        setattr(self, name, method)
        return method
