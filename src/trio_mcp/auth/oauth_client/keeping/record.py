"""Record: the authorization at one server, as stored, and the grant that could not be stored."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager

from ...errors import AuthorizationError
from ...own_functions import telling
from ...storage.stored import Storage, Stored
from ..grant import Grant

logger = logging.getLogger("trio_mcp")


class Record:
    """The record of the server at ``server_url`` in ``storage``."""

    def __init__(self, server_url: str, storage: Storage) -> None:
        self._server_url = server_url
        self._storage = storage
        self._unkept: Grant | None = None

    def lock(self) -> AbstractAsyncContextManager[None]:
        """Hold the record for this task alone, among all processes: see `Storage.lock`."""
        return self._storage.lock(self._server_url)

    async def load(self) -> Stored:
        """Return the record, the last grant included even where the storage has failed."""
        with telling("the storage of tokens"):
            stored = await self._storage.load(self._server_url) or Stored()
        return stored if self._unkept is None else stored.with_record(self._unkept.issuer, self._unkept.record)

    async def keep(self, grant: Grant, stored: Stored) -> None:
        """Put ``grant`` into ``stored``, which was loaded under the lock, and save that. A failure of the storage is
        logged: the tokens are good, and the old ones may be so no more."""
        self._unkept = grant
        try:
            with telling("the storage of tokens"):
                await self._storage.save(self._server_url, stored.with_record(grant.issuer, grant.record))
        except AuthorizationError as error:
            logger.warning("the tokens are used, but were not stored: %s", error)
        else:
            self._unkept = None
