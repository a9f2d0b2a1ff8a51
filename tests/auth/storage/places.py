"""The places where records are kept, and what else their tests share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keyring
import trio
from keyring.backend import KeyringBackend

from trio_mcp.auth import FileTokenStorage, KeyringTokenStorage, MemoryTokenStorage, StoredAuthorization, TokenStorage
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, Tokens

URL = "https://mcp.example.com/mcp"
ISSUER = "https://as.example.com"

STORAGES: dict[str, Callable[[Path], TokenStorage]] = {
    "memory": lambda _: MemoryTokenStorage(),
    "files": lambda path: FileTokenStorage(path / "tokens"),
    "keyring": lambda path: KeyringTokenStorage(lock_folder=path / "locks"),
}


def record(token: str) -> StoredAuthorization:
    return StoredAuthorization()._with_record(
        ISSUER,
        IssuerRecord(
            client=RegisteredClient(client_id="c", client_secret="the secret", redirect_uris=("http://127.0.0.1/",)),
            tokens=Tokens(access_token=token, refresh_token=f"refresh {token}", expires_at=12.5, scopes=("a", "b")),
            proof_key={"kty": "EC", "d": "the key"},
        ),
    )


class FakeKeyring(KeyringBackend):
    """A keyring in memory."""

    priority: Any = 1

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.entries[service, username]


@contextmanager
def keyring_of(backend: KeyringBackend) -> Iterator[None]:
    before = keyring.get_keyring()
    keyring.set_keyring(backend)
    try:
        yield
    finally:
        keyring.set_keyring(before)


async def cancelled_at(step: int, call: Callable[[], Awaitable[object]]) -> bool:
    """Call, with a cancel while the task waits for the ``step``th time; return whether the task got there."""

    class Cancelling(trio.abc.Instrument):
        left = step

        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            self.left -= task is caller
            if self.left == 0:
                scope.cancel(reason="the test")

    caller, cancelling = trio.lowlevel.current_task(), Cancelling()
    with trio.CancelScope() as scope:
        trio.lowlevel.add_instrument(cancelling)
        try:
            await call()
        finally:
            trio.lowlevel.remove_instrument(cancelling)
    return scope.cancel_called
