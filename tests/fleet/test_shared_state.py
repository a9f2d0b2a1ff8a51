"""``ctx.state`` on replicas that share a storage in memory or in files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.fleet.shared_state import SECRET, keeper, said, state_is_shared_by_replicas
from tests.serving.http.protection import issued, protected
from tests.serving.http.scenes import in_memory

from trio_mcp import MemoryStorage, SQLiteStorage
from trio_mcp.stores import Replica


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("secrets", [(), [SECRET]], ids=["plain", "sealed"])
async def test_replicas_share_the_caller_state_of_each_principal_through_memory_storage(secrets: Any) -> None:
    await state_is_shared_by_replicas(MemoryStorage(), secrets)


@pytest.mark.parametrize(("secrets", "is_readable"), [((), True), ([SECRET], False)], ids=["plain", "sealed"])
async def test_replicas_share_the_caller_state_of_each_principal_through_sqlite_files(
    tmp_path: Path, secrets: Any, is_readable: bool
) -> None:
    await state_is_shared_by_replicas(SQLiteStorage(tmp_path / "shared.db"), secrets)
    files = files_in(tmp_path)
    assert {each.name for each in files} >= {"shared.db", "shared.db-state"}
    assert any(b"hidden words" in each.read_bytes() for each in files) == is_readable
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}


async def test_server_that_does_not_use_caller_state_creates_no_sqlite_state_file(tmp_path: Path) -> None:
    async with in_memory(keeper(), shared=SQLiteStorage(tmp_path / "shared.db")):
        pass
    assert not any("state" in each.name for each in files_in(tmp_path))


async def test_reading_caller_state_encrypted_with_another_secret_raises_and_keeps_the_state() -> None:
    storage, auth = MemoryStorage(), protected(issued())
    async with in_memory(keeper(secrets=[SECRET]), shared=storage, auth=auth) as endpoint:
        await said(endpoint, "bob-1", "put", value="a")
    async with in_memory(keeper(secrets=[SECRET[::-1]]), shared=storage, auth=auth) as endpoint:
        for tool, more in (("look", {}), ("put", {"value": "b"})):
            words = await said(endpoint, "bob-1", tool, **more)
            assert "a caller's state was modified, or encrypted with an unknown secret" in words
    async with in_memory(keeper(secrets=[SECRET[::-1], SECRET]), shared=storage, auth=auth) as endpoint:
        assert await said(endpoint, "bob-1", "look") == "a"


class StatelessStorage(MemoryStorage):
    """A storage of somebody else, from before there was any state."""

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        async with super().join(name, secrets) as replica:
            yield attrs.evolve(replica, state=None)


async def test_storage_without_caller_state_support_raises_an_error_that_names_the_storage() -> None:
    async with in_memory(keeper(), shared=StatelessStorage(), auth=protected(issued())) as endpoint:
        assert "the shared storage of this server cannot store ctx.state" in await said(endpoint, "bob-1", "look")
