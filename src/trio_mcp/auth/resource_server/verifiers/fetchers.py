"""fetcher_for makes the fetcher that asks an issuer."""

from __future__ import annotations

from typing import Final

from ...fetching.exchange import Fetcher

_DEADLINE: Final = 10.0
"""Seconds in which an issuer has to answer."""


def fetcher_for(url: str) -> Fetcher:
    """Return a fetcher for ``url``, and for what the answer names: by ``https`` alone, and by ``http`` where both are
    on this machine. Raises `ValueError`."""
    from ...fetching.fetcher import HttpFetcher  # which imports an HTTP client
    from ...fetching.url_rules import UrlRules

    return HttpFetcher(UrlRules.for_server(url), deadline=_DEADLINE)
