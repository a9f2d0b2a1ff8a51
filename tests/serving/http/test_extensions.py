"""Extensions over HTTP: what clients tell the server reaches its functions, with the caller's own name, and fairly;
scopes and declarations are checked as for all else."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from tests.patience import PATIENCE
from tests.serving.http.protection import bearer, issued, protected, session_of
from tests.serving.http.raw import BASE, LEGACY, META, MODERN, Answer, Endpoint, message, modern
from tests.serving.http.scenes import in_memory
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Server, open_memory, proxy
from trio_mcp.protocol.errors import NoBackChannel
from trio_mcp.types import ConnectedClient, Extension


@attrs.frozen
class Added:
    count: int


@attrs.frozen
class Hits:
    names: list[str]


search = Extension("com.example/search")
query = search.method("com.example/search/query", Added, Hits)
purge = search.method("com.example/search/purge", Added, Hits, requires_client=False, scopes=["admin", "write"])
added = search.notification("notifications/com.example/search/added", Added, sender="client")
gone = search.notification(
    "notifications/com.example/search/gone", Added, sender="client", requires_client=False, scopes=["write"]
)
recent = search.notification(
    "notifications/com.example/search/recent", Added, sender="client", since=MODERN, scopes=["read"]
)


class Told:
    """A server, and what it was told."""

    def __init__(self) -> None:
        self.server = Server("search", extensions=[search])
        self.all: list[tuple[str, Any, ConnectedClient]] = []
        self.news = trio.lowlevel.ParkingLot()
        self.go: trio.Event | None = None
        self.ended = 0

        async def hits(_: Added) -> Hits:
            return Hits([])

        self.server.handles(query)(hits)
        self.server.handles(purge)(hits)
        for row in (added, gone, recent):
            self.server.handles(row)(partial(self._note, row.name.rpartition("/")[2]))

    async def _note(self, kind: str, params: Added, client: ConnectedClient) -> None:
        self.all.append((kind, params, client))
        self.news.unpark_all()
        try:
            if self.go is not None:
                await self.go.wait()
        finally:
            self.ended += 1

    async def has(self, count: int) -> None:
        with trio.fail_after(PATIENCE):
            while len(self.all) < count:
                await self.news.park()


@pytest.fixture
async def told() -> Told:
    return Told()


async def tell(endpoint: Endpoint, row: Any, count: Any = 3, **headers: str | None) -> Answer:
    """Tell as a modern client does."""
    written = {**BASE, "MCP-Protocol-Version": MODERN, "Mcp-Method": row.name}
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return await endpoint.ask("POST", {**written, **more}, message(row.name, {"count": count}))


async def test_extension_notification_handler_receives_principal_and_headers(told: Told) -> None:
    async with in_memory(told.server, auth=protected(issued())) as endpoint:
        for token in ("alice-1", "bob-1"):
            answer = await tell(endpoint, added, Authorization=f"Bearer {token}", X_Own=token)
            assert (answer.status, answer.body) == (202, b"")
            await told.has(len(told.all) or 1)
        await told.has(2)
        assert [params for _, params, _ in told.all] == [Added(3), Added(3)]
        for (_, _, client), name in zip(told.all, ("alice", "bob"), strict=True):
            assert client.auth is not None
            assert client.headers is not None
            assert (client.auth.principal.subject, client.headers["x-own"]) == (name, f"{name}-1")
            assert (client.session_id, client.info, client.revision.name) == (None, None, MODERN)
            with pytest.raises(NoBackChannel):
                await client.list_roots()


async def test_legacy_extension_notification_is_handled_by_a_stateless_server(told: Told) -> None:
    async with in_memory(told.server, stateless=True) as endpoint:
        headers = {**BASE, "MCP-Protocol-Version": LEGACY}
        for row in (recent, added):  # the first is in no legacy revision
            assert (await endpoint.ask("POST", headers, message(row.name, {"count": 1}))).status == 202
        await told.has(1)
        await wait_all_tasks_blocked()
        assert [kind for kind, _, _ in told.all] == ["added"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (added.name, {"count": "three"}),
        (added.name, {}),
        (added.name, [3]),
        ("notifications/com.example/other/added", {"count": 3}),
        ("notifications/cancelled", {"requestId": 1}),
        ("notifications/roots/list_changed", None),
        (query.name, {"count": 3}),
    ],
)
async def test_invalid_extension_notification_gets_status_202_and_is_ignored(
    told: Told, method: str, params: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_memory(told.server) as endpoint:
        headers = {**BASE, "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        assert (await endpoint.ask("POST", headers, message(method, params))).status == 202
        await tell(endpoint, added)
        await told.has(1)
        await wait_all_tasks_blocked()
    assert len(told.all) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("headers", "code"), [({"Mcp_Method": "tools/call"}, -32020), ({"MCP_Protocol_Version": "2099-01-01"}, -32022)]
)
async def test_extension_notification_with_mismatched_headers_gets_status_400(
    told: Told, headers: Any, code: int
) -> None:
    async with in_memory(told.server) as endpoint:
        answer = await tell(endpoint, added, **headers)
        assert (answer.status, answer.code) == (400, code)
        assert (await tell(endpoint, added, Mcp_Method=None)).status == 202
        await told.has(1)


async def test_extension_notification_from_a_disallowed_origin_or_without_a_token_is_rejected(told: Told) -> None:
    async with in_memory(told.server) as endpoint:
        assert (await tell(endpoint, added, Origin="https://evil.example")).status == 403
    async with in_memory(told.server, auth=protected(issued())) as endpoint:
        assert (await tell(endpoint, added)).status == 401
    assert told.all == []


async def test_exception_in_an_extension_notification_handler_is_only_logged(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    other = Extension("com.example/other")
    row = other.notification("notifications/com.example/other/told", Added, sender="client")
    server = Server("failing", extensions=[other])

    @server.handles(row)
    def fail(params: Added) -> None:
        if params.count:
            raise RuntimeError("a secret")
        told.all.append(("told", params, None))  # type: ignore[arg-type]
        told.news.unpark_all()

    async with in_memory(server) as endpoint:
        assert (await tell(endpoint, row, 1)).status == 202
        assert (await tell(endpoint, row, 0)).status == 202
        await told.has(1)
    assert "a secret" in caplog.text


async def test_caller_that_floods_extension_notifications_leaves_capacity_for_other_callers(told: Told) -> None:
    tokens = issued()
    told.go = trio.Event()
    async with in_memory(told.server, auth=protected(tokens), max_server_requests=8) as endpoint:
        statuses = [(await tell(endpoint, added, Authorization="Bearer alice-1")).status for _ in range(20)]
        assert statuses == [202] * 4 + [503] * 16
        busy = await tell(endpoint, added, Authorization="Bearer alice-2")
        assert (busy.code, busy.headers["retry-after"]) == (-31000, "5")
        assert (await tell(endpoint, added, 7, Authorization="Bearer bob-1")).status == 202
        await told.has(5)
        assert told.all[-1][1] == Added(7)
        told.go.set()
        await wait_all_tasks_blocked()
        assert (await tell(endpoint, added, Authorization="Bearer alice-1")).status == 202


async def test_shutdown_cancels_running_extension_notification_handlers(told: Told, autojump_clock: MockClock) -> None:
    told.go = trio.Event()
    async with in_memory(told.server) as endpoint:
        await tell(endpoint, added)
        await told.has(1)
    assert told.ended == 1


@pytest.mark.parametrize("row", [purge, gone])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_extension_message_from_a_token_without_the_required_scopes_gets_a_scope_challenge(
    told: Told, row: Any, era: str
) -> None:
    tokens = issued()
    tokens.issue("root", "root", "admin write")
    request_id = 1 if row.is_request else None
    async with in_memory(told.server, auth=protected(tokens)) as endpoint:

        async def post(token: str) -> Answer:
            body: Any = message(row.name, {"count": 1}, request_id)
            if era == "legacy":
                return await endpoint.ask("POST", await session_of(endpoint, token), body)
            headers, with_meta = modern(row.name, {"count": 1})
            return await endpoint.ask("POST", {**headers, **bearer(token)}, with_meta if row.is_request else body)

        refused = await post("alice-1")
        assert refused.status == 403
        assert f'scope="{" ".join(sorted(row.scopes))}"' in refused.headers["www-authenticate"]
        assert refused.json["error"]["data"]["scopes"] == sorted(row.scopes)
        assert (await post("root")).status == (200 if row.is_request else 202)
        if not row.is_request:
            await told.has(1)
    assert len(told.all) == (0 if row.is_request else 1)


@pytest.mark.parametrize(("extensions", "status"), [({}, 400), ({"com.example/search": 7}, 400), (None, 200)])
async def test_extension_request_from_a_client_that_does_not_declare_the_extension_gets_status_400(
    told: Told, extensions: Any, status: int
) -> None:
    declared = {"com.example/search": {}} if extensions is None else extensions
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": declared}}
    async with in_memory(told.server) as endpoint:
        answer = await endpoint.modern(query.name, {"count": 1, "_meta": meta})
        assert answer.status == status
        if status == 400:
            required = {"extensions": {"com.example/search": {}}}
            assert (answer.code, answer.json["error"]["data"]) == (-32021, {"requiredCapabilities": required})


async def test_proxy_forwards_extension_notifications_on_behalf_of_the_caller(told: Told) -> None:
    before = proxy(partial(open_memory, told.server))
    async with in_memory(before, auth=protected(issued())) as endpoint:
        assert (await tell(endpoint, added, 1, Authorization="Bearer alice-1")).status == 202
        await told.has(1)
        headers, body = modern(query.name, {"count": 1})
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"extensions": {search.name: {}}}
        answer = await endpoint.ask("POST", {**headers, **bearer("alice-1")}, body)
        assert answer.json["result"]["names"] == []
    async with in_memory(before) as endpoint:  # nobody knows the caller here
        assert (await tell(endpoint, added, 2)).status == 202
        assert (await endpoint.modern(query.name, {"count": 1})).code == -32601
        await wait_all_tasks_blocked()
    assert [params for _, params, _ in told.all] == [Added(1)]
