"""A connection over TLS."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trustme
from tests.transports.http.clients import socket_pair


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_pair(authority: trustme.CA) -> Callable[[], Awaitable[Any]]:
    """The stream of the server and that of the client."""

    async def connect() -> Any:
        ours, theirs = await socket_pair()
        server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
        authority.issue_cert("localhost").configure_cert(server)
        authority.configure_trust(client)
        return (
            trio.SSLStream(ours, server, server_side=True, https_compatible=True),
            trio.SSLStream(theirs, client, server_hostname="localhost", https_compatible=True),
        )

    return connect
