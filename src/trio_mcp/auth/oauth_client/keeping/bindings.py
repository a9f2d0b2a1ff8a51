"""ClientBindings: the authorization server that the secret of a client belongs to."""

from __future__ import annotations

import hashlib

from ....jsonrpc.codec import canonical_value
from ...own_functions import telling
from ...storage.stored import BINDING, IssuerRecord, Storage, Stored
from ..discovery import check_belonging
from ..settings import PreregisteredClient


class ClientBindings:
    """Binds each secret or private key, of a client without a named issuer, to the first issuer that any server names
    (2026-07-28 authorization, Authorization Server Binding). The bindings are kept in ``storage``, for all clients and
    processes that use the same secret there.

    A client without a secret or key is bound to nobody here: its id is not secret, and authorization servers that do
    not know each other give the same one.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._claimed: dict[str, str] = {}
        """Issuers to which clients are about to be bound, by the names of the bindings."""

    async def issuer_of(self, client: PreregisteredClient) -> str | None:
        """Return the issuer that the credentials of ``client`` belong to; `None` where the first use decides. Raises
        `AuthorizationError`."""
        name = _name_of(client)
        if client.issuer is not None or name is None:
            return client.issuer
        with telling("the storage of tokens"):
            stored = await self._storage.load(name)
        return None if stored is None else stored.current

    def claim(self, client: PreregisteredClient, issuer: str) -> None:
        """Have `settle` bind the credentials of ``client`` to ``issuer``. Synchronous."""
        name = _name_of(client)
        if name is not None:
            self._claimed[name] = issuer

    async def settle(self) -> None:
        """Keep the claimed bindings. Raises `AuthorizationError` where the credentials belong to another issuer
        already, or the binding cannot be kept: nothing must be sent then."""
        while self._claimed:
            name, issuer = next(iter(self._claimed.items()))
            with telling("the storage of tokens"):
                async with self._storage.lock(name):
                    stored = await self._storage.load(name) or Stored()
                    if stored.current is None:
                        await self._storage.save(name, stored.with_record(issuer, IssuerRecord()))
            if stored.current is not None:
                check_belonging(stored.current, (issuer,))
            del self._claimed[name]


def _name_of(client: PreregisteredClient) -> str | None:
    """Return the name of the binding of ``client``, which tells nothing of its secret; `None` for a client without
    any."""
    if client.client_secret is None and client.private_key is None:
        return None
    key = client.private_key if isinstance(client.private_key, str | None) else dict(client.private_key)
    credentials = canonical_value([client.client_id, client.client_secret, key])
    return BINDING + hashlib.sha256(credentials).hexdigest()[:32]
