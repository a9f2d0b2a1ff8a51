"""What holds for records wherever they are kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from tests.auth.storage.places import STORAGES, URL, FakeKeyring, cancelled_at, keyring_of, record
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from trio_mcp.auth import StoredAuthorization, TokenStorage

OTHER = "https://other.example.com/mcp"


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TokenStorage]:
    with keyring_of(FakeKeyring()):
        yield STORAGES[request.param](tmp_path)


async def test_new_token_storage_is_empty(storage: TokenStorage):
    assert await storage.load(URL) is None
    assert not await storage.remove(URL)


async def test_token_storage_returns_all_fields_of_the_token_record_that_was_saved_last(storage: TokenStorage):
    await storage.save(URL, record("old"))
    await storage.save(URL, record("new"))
    assert await storage.load(URL) == record("new")


async def test_token_storage_stores_a_separate_token_record_for_each_server(storage: TokenStorage):
    await storage.save(URL, record("one"))
    await storage.save(OTHER, record("other"))
    assert await storage.remove(URL)
    assert await storage.load(URL) is None
    assert await storage.load(OTHER) == record("other")


async def test_token_storage_accepts_urls_of_any_length_and_characters(storage: TokenStorage):
    for url in (
        "https://example.com/" + "x" * 5000,
        "https://example.com/../../etc/passwd",
        "https://bücher.example/ü",
    ):
        await storage.save(url, record(url))
        assert await storage.load(url) == record(url)


async def test_token_storage_lock_is_exclusive_per_server(storage: TokenStorage):
    events: list[str] = []

    async def hold(url: str, name: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with storage.lock(url):
            events.append(f"{name} in")
            task_status.started()
            await release[name].wait()
            events.append(f"{name} out")

    release = {name: trio.Event() for name in ("first", "second", "other")}
    async with trio.open_nursery() as nursery:
        await nursery.start(hold, URL, "first")
        nursery.start_soon(hold, URL, "second")
        await nursery.start(hold, OTHER, "other")
        release["other"].set()
        release["second"].set()
        await wait_all_tasks_blocked()
        release["first"].set()
    assert [event for event in events if "other" not in event] == ["first in", "first out", "second in", "second out"]


async def test_token_storage_lock_is_released_if_the_code_that_holds_it_fails_or_is_cancelled(storage: TokenStorage):
    with pytest.raises(KeyError):
        async with storage.lock(URL):
            raise KeyError
    with trio.CancelScope() as scope:
        async with storage.lock(URL):
            scope.cancel()
            await trio.sleep_forever()
    async with storage.lock(URL):
        pass


@pytest.mark.parametrize("call", ["save", "remove"])
async def test_token_storage_cancelled_at_any_checkpoint_leaves_a_complete_record_and_no_lock(
    storage: TokenStorage, call: str
):
    async def change() -> None:
        async with storage.lock(URL):
            await storage.load(URL)
            await (storage.save(URL, record("new")) if call == "save" else storage.remove(URL))

    seen: list[StoredAuthorization | None] = []
    step = 1
    while True:
        await storage.save(URL, record("old"))
        cancelled = await cancelled_at(step, change)
        with trio.fail_after(60):
            async with storage.lock(URL):
                seen.append(await storage.load(URL))
        if not cancelled:
            break
        step += 1
    after = record("new") if call == "save" else None
    assert step > 2
    assert seen[0] == record("old")
    assert seen[-1] == after
    assert all(one in (record("old"), after) for one in seen)


async def test_every_token_storage_method_executes_a_trio_checkpoint(storage: TokenStorage):
    for call in (lambda: storage.load(URL), lambda: storage.save(URL, record("x")), lambda: storage.remove(URL)):
        with assert_checkpoints():
            await call()
    with assert_checkpoints():
        async with storage.lock(URL):
            pass


async def test_repr_of_a_token_storage_hides_secrets(storage: TokenStorage):
    await storage.save(URL, record("the token"))
    told = repr(storage) + repr(await storage.load(URL))
    assert not any(secret in told for secret in ("the token", "the secret", "the key"))
