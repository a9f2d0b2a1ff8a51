"""seconds_until_retry reads when a server asks to be asked again (RFC 9110 section 10.2.3)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final

_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_LONGEST_DATE: Final = 40


def seconds_until_retry(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the ``Retry-After`` of an answer names; `None` without one that makes sense. A date is
    compared with the ``Date`` of the answer, so that clocks need not agree, else with our clock."""
    value = headers.get("retry-after")
    if value is None:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    then = _time_of(value)
    if then is None:
        return None
    now = _time_of(headers.get("date", ""))
    return max(then - (time.time() if now is None else now), 0.0)


def _time_of(date: str) -> float | None:
    from datetime import UTC
    from email.utils import parsedate_to_datetime  # 10 ms, for those who need it

    if len(date) > _LONGEST_DATE:
        return None
    try:
        parsed = parsedate_to_datetime(date)
        # RFC 9110 section 5.6.7: without a zone, in the form of asctime, GMT is meant.
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
