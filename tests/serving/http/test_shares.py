"""What is bounded for a whole server is shared by its callers, however many connections and tokens each has."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from tests.fleet.replicas import SCENES, in_memory
from tests.patience import PATIENCE
from tests.serving.http.protection import ISSUER, Tokens, bearer, protected
from tests.serving.http.raw import BASE, INITIALIZE, Answer, Connection, message, modern, served
from tests.serving.http.scenes import MemoryEndpoint, Scene, call
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits, TrustedProxies, http_app
from trio_mcp.auth import PrincipalId
from trio_mcp.diagnostics.log_shares import BURST

SAMPLER = {"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}
SAMPLED = {"model": "m", "role": "assistant", "content": {"type": "text", "text": "well"}}


@attrs.define(eq=False)
class Party:
    """A caller of a protected endpoint, who has one token for each connection."""

    endpoint: MemoryEndpoint
    tokens: Tokens
    name: str
    connections: int = 0

    def headers(self) -> dict[str, str | None]:
        self.connections += 1
        token = f"{self.name}-{self.connections}"
        self.tokens.issue(token, self.name)
        return bearer(token)

    async def open(self) -> dict[str, str | None] | Answer:
        """Return the headers of a session that was opened, or the refusal."""
        headers = self.headers()
        answer = await self.endpoint.ask("POST", headers, INITIALIZE)
        if answer.status != 200:
            assert (answer.status, answer.code) == (503, -31000)
            return answer
        session = {**headers, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        assert (await self.endpoint.ask("POST", session, message("notifications/initialized"))).status == 202
        return session

    async def open_all(self) -> list[dict[str, str | None]]:
        """Open sessions until one is refused."""
        opened: list[dict[str, str | None]] = []
        while isinstance(session := await self.open(), dict):
            opened.append(session)
        return opened

    async def is_there(self, session: dict[str, str | None]) -> bool:
        status = (await self.endpoint.ask("POST", session, message("ping", request_id=1))).status
        assert status in (200, 404)
        return status == 200


@asynccontextmanager
async def parties(*names: str, scene: Scene | None = None, **limits: Any) -> AsyncGenerator[list[Party]]:
    """An endpoint, of one process or of replicas in turn, with callers whom a token names."""
    tokens = Tokens()
    tokens.may_answer.set()
    async with in_memory((scene or Scene()).server, auth=protected(tokens), **limits) as endpoint:
        yield [Party(endpoint, tokens, name) for name in names]


by_all = pytest.mark.parametrize("kind", SCENES.values(), ids=SCENES)


class Addresses:
    """Connections to a port of this machine from several of its addresses."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.opened: list[Connection] = []

    async def connect(self, address: str) -> Connection:
        """Return a connection from ``address``."""
        connection = Connection(await trio.open_tcp_stream("127.0.0.1", self.port, local_address=address))
        self.opened.append(connection)
        return connection

    async def open(self, address: str) -> dict[str, str | None] | int:
        """Open a session and use it; return the headers that belong to it, or the status of the refusal."""
        connection = await self.connect(address)
        answer = await connection.ask("POST", {**BASE}, INITIALIZE)
        if answer.status != 200:
            return answer.status
        session: dict[str, str | None] = {**BASE, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        assert (await connection.ask("POST", session, message("notifications/initialized"))).status == 202
        return session

    async def opens(self, address: str) -> bool:
        return isinstance(await self.open(address), dict)


@asynccontextmanager
async def from_addresses(
    scene: Scene, proxies: TrustedProxies | None = None, **limits: Any
) -> AsyncGenerator[Addresses]:
    async with served(scene.server, limits=Limits(**limits), trusted_proxies=proxies) as endpoint:
        addresses = Addresses(endpoint.port)
        try:
            yield addresses
        finally:
            for connection in addresses.opened:
                await connection.aclose()


async def all_it_gets(party: Party, method: str, params: dict[str, Any], most: int = 20) -> int:
    """Return how many of many modern requests that do not end by themselves are taken, each on a connection of its
    own."""
    taken = 0
    for _ in range(most):
        headers, body = modern(method, params)
        connection = await party.endpoint.post({**headers, **party.headers()}, body)
        await wait_all_tasks_blocked()
        if await refused(connection):
            break
        taken += 1
    return taken


async def refused(connection: Connection) -> bool:
    """Return whether the answer is there, and says that the server is too busy."""
    with trio.move_on_after(0.05) as scope:
        answer = await connection.head()
        if answer.headers["content-type"] == "text/event-stream":
            return False
        assert (answer.status, answer.headers["retry-after"].isdigit()) == (503, True)
    return not scope.cancelled_caught


async def echoes(party: Party) -> bool:
    headers, body = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
    return (await party.endpoint.ask("POST", {**headers, **party.headers()}, body)).status == 200


# Sessions


@by_all
async def test_first_principal_can_open_half_of_the_sessions_and_the_next_principal_half_of_the_rest(
    kind: type[Scene], autojump_clock: MockClock
) -> None:
    async with parties("alice", "bob", scene=kind(), max_sessions=8) as [alice, bob]:
        assert len(await alice.open_all()) == 4
        assert len(await bob.open_all()) == 2
        assert not isinstance(await alice.open(), dict)


async def test_client_address_can_use_half_of_the_free_sessions() -> None:
    async with from_addresses(Scene(), max_sessions=8) as addresses:
        assert [await addresses.opens("127.0.0.1") for _ in range(6)] == [True] * 4 + [False] * 2
        assert [await addresses.opens("127.0.0.2") for _ in range(3)] == [True] * 2 + [False]


@by_all
async def test_new_caller_replaces_the_longest_idle_session_of_the_caller_with_the_most_sessions(
    kind: type[Scene], autojump_clock: MockClock
) -> None:
    async with parties("alice", "bob", "carol", "dave", scene=kind(), max_sessions=4) as [alice, bob, carol, dave]:
        first = await alice.open_all()
        assert len(first) == 2
        [of_bob] = await bob.open_all()
        [of_carol] = await carol.open_all()
        await trio.sleep(10)
        assert await alice.is_there(first[0])  # which is a use of it
        of_dave = await dave.open()
        assert isinstance(of_dave, dict)
        await wait_all_tasks_blocked()
        assert [await alice.is_there(each) for each in first] == [True, False]
        assert await bob.is_there(of_bob)
        assert await carol.is_there(of_carol)
        assert await dave.is_there(of_dave)


@by_all
async def test_new_caller_at_the_session_limit_does_not_replace_the_only_session_of_another_caller(
    kind: type[Scene], autojump_clock: MockClock
) -> None:
    async with parties("alice", "bob", "carol", scene=kind(), max_sessions=2) as [alice, bob, carol]:
        [of_alice], [of_bob] = await alice.open_all(), await bob.open_all()
        assert not isinstance(await carol.open(), dict)
        assert await alice.is_there(of_alice)
        assert await bob.is_there(of_bob)


@by_all
async def test_new_session_of_a_caller_at_its_limit_replaces_an_unused_session_of_that_caller(
    kind: type[Scene], autojump_clock: MockClock
) -> None:
    async with parties("alice", "bob", scene=kind(), max_sessions=3) as [alice, bob]:
        unused = await bob.endpoint.ask("POST", bob.headers(), INITIALIZE)
        headers = alice.headers()
        mine = await alice.endpoint.ask("POST", headers, INITIALIZE)
        assert isinstance(await alice.open(), dict)  # in the place of that one
        assert not await alice.is_there({**headers, "Mcp-Session-Id": mine.headers["mcp-session-id"]})
        assert not isinstance(await alice.open(), dict)
        session = {**bearer("bob-1"), "Mcp-Session-Id": unused.headers["mcp-session-id"]}
        assert await bob.is_there(session)


# Requests, streams, threads, parked handlers

WAIT: dict[str, Any] = {"name": "wait", "arguments": {"name": "long"}}
LISTEN: dict[str, Any] = {"notifications": {"toolsListChanged": True}}


async def test_one_principal_gets_at_most_half_of_the_free_request_slots(autojump_clock: MockClock) -> None:
    async with parties("alice", "bob", "carol", max_server_requests=8) as [alice, bob, carol]:
        assert await all_it_gets(alice, "tools/call", WAIT) == 4
        assert await all_it_gets(bob, "tools/call", WAIT) == 2
        assert not await echoes(alice)
        assert await echoes(carol)


async def test_one_principal_gets_at_most_half_of_the_free_listen_streams(autojump_clock: MockClock) -> None:
    async with parties("alice", "bob", max_server_streams=8) as [alice, bob]:
        assert await all_it_gets(alice, "subscriptions/listen", LISTEN) == 4
        assert await all_it_gets(bob, "subscriptions/listen", LISTEN) == 2


async def test_calls_in_all_sessions_of_a_principal_count_towards_one_limit(autojump_clock: MockClock) -> None:
    async with parties("alice", "bob", max_server_requests=8) as [alice, bob]:
        taken = 0
        for number in range(6):
            session = await alice.open()
            assert isinstance(session, dict)
            connection = await alice.endpoint.post(session, call("wait", number, name="long"))
            await wait_all_tasks_blocked()
            taken += not await refused(connection)
        assert taken == 4
        assert await echoes(bob)


async def test_one_client_address_gets_at_most_half_of_the_free_request_slots() -> None:
    async with from_addresses(Scene(), max_server_requests=4) as addresses:
        statuses = list[int]()
        for address in ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2"):
            connection = await addresses.connect(address)
            headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": address, "speaks": True}})
            await connection.send("POST", {**headers}, body)
            statuses.append((await connection.head()).status)
        assert statuses == [200, 200, 503, 200]


async def test_session_requests_count_towards_the_limit_of_the_address_that_opened_the_session() -> None:
    async with from_addresses(Scene(), max_server_requests=4) as addresses:
        session, statuses = await addresses.open("127.0.0.1"), list[int]()
        assert isinstance(session, dict)
        for number, address in enumerate(("127.0.0.1", "127.0.0.2", "127.0.0.3")):
            connection = await addresses.connect(address)
            await connection.send("POST", session, call("wait", number, name="long", speaks=True))
            statuses.append((await connection.head()).status)
        assert statuses == [200, 200, 503]


async def test_one_principal_gets_at_most_half_of_the_free_worker_threads() -> None:
    scene, tokens, gate = Scene(), Tokens(), threading.Event()
    runs = {name: threading.Semaphore(0) for name in ("alice", "bob")}

    @scene.server.tool
    def hold(name: str) -> str:
        runs[name].release()
        assert gate.wait(PATIENCE)
        return "held"

    tokens.may_answer.set()
    async with in_memory(scene.server, auth=protected(tokens), worker_threads=2) as endpoint:
        parties = {name: Party(endpoint, tokens, name) for name in runs}
        connections: list[Connection] = []
        for name in ("alice", "alice", "bob"):
            headers, body = modern("tools/call", {"name": "hold", "arguments": {"name": name}})
            connections.append(await endpoint.post({**headers, **parties[name].headers()}, body))
            await wait_all_tasks_blocked()
        try:
            for semaphore in runs.values():
                assert await trio.to_thread.run_sync(partial(semaphore.acquire, timeout=PATIENCE))
        finally:
            gate.set()
        for connection in connections:
            assert (await connection.answer()).status == 200


async def test_handlers_that_await_input_from_one_client_address_do_not_evict_handlers_of_another() -> None:
    scene = Scene()
    async with from_addresses(scene, max_parked=2) as addresses:

        async def park(address: str, name: str) -> dict[str, Any]:
            connection = await addresses.connect(address)
            headers, body = modern("tools/call", {"name": "ask", "arguments": {"name": name}, "_meta": SAMPLER})
            answer = await connection.ask("POST", {**headers}, body)
            assert answer.json["result"]["resultType"] == "input_required"
            return answer.json["result"]

        first = await park("127.0.0.1", "first")
        for number in range(4):
            await park("127.0.0.2", str(number))
        await scene["1"].ended.wait()
        assert not scene["first"].ended.is_set()
        params = {
            "name": "ask",
            "arguments": {"name": "first"},
            "_meta": SAMPLER,
            "requestState": first["requestState"],
            "inputResponses": dict.fromkeys(first["inputRequests"], SAMPLED),
        }
        back = await addresses.connect("127.0.0.1")
        headers, body = modern("tools/call", params)
        answer = await back.ask("POST", {**headers}, body)
        assert answer.json["result"]["content"][0]["text"] == "m has answered"


# Behind a proxy


@pytest.mark.parametrize("believed", [True, False])
async def test_clients_behind_a_trusted_proxy_are_limited_separately(believed: bool) -> None:
    proxies = TrustedProxies(["127.0.0.1" if believed else "127.0.0.9"])
    async with from_addresses(Scene(), proxies, max_sessions=4) as addresses:
        statuses = list[int]()
        for client in ("203.0.113.1", "203.0.113.1", "203.0.113.1", "203.0.113.2"):
            connection = await addresses.connect("127.0.0.1")
            headers: dict[str, str | None] = {**BASE, "X-Forwarded-For": f"1.2.3.4, {client}"}
            answer = await connection.ask("POST", headers, INITIALIZE)
            statuses.append(answer.status)
            if answer.status == 200:
                session = {**headers, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
                assert (await connection.ask("POST", session, message("notifications/initialized"))).status == 202
        assert statuses == ([200, 200, 503, 200] if believed else [200, 200, 503, 503])


@pytest.mark.parametrize("proxied", [True, False])
async def test_asgi_app_reads_the_client_address_for_limits_from_the_asgi_scope(proxied: bool) -> None:
    proxies, limits = TrustedProxies(["10.0.0.1"]), Limits(max_sessions=4)
    app = http_app(
        Scene().server, allowed_origins=[], allowed_hosts=["127.0.0.1"], trusted_proxies=proxies, limits=limits
    )

    async def ask(client: str, headers: dict[str, str], body: Any) -> dict[str, Any]:
        """Return the head of the answer."""
        sent: list[dict[str, Any]] = []
        pieces = [{"type": "http.request", "body": json.dumps(body).encode()}]
        headers = {**headers, "Content-Length": str(len(pieces[0]["body"])), "X-Forwarded-For": client}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "client": ("10.0.0.1" if proxied else client, 4711),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }

        async def receive() -> Any:
            return pieces.pop() if pieces else await trio.sleep_forever()

        async def send(piece: Any) -> None:
            sent.append(piece)

        await app(scope, receive, send)
        return sent[0]

    async with app.lifespan():
        statuses = list[int]()
        for client in ("203.0.113.1", "203.0.113.1", "203.0.113.1", "203.0.113.2"):
            head = await ask(client, BASE, INITIALIZE)
            statuses.append(head["status"])
            session = dict(head["headers"]).get(b"mcp-session-id", b"").decode()
            if session:
                await ask(client, {**BASE, "Mcp-Session-Id": session}, message("notifications/initialized"))
        assert statuses == [200, 200, 503, 200]


# The log


async def test_failed_call_is_logged_with_its_traceback_after_another_client_floods_the_log(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    scene = Scene()

    @scene.server.tool
    async def fail(name: str) -> None:
        raise RuntimeError(f"oh dear, {name}")

    async with parties("alice", "bob", scene=scene) as [alice, bob]:
        session = await alice.open()
        assert isinstance(session, dict)
        for _ in range(BURST):
            headers, body = modern("tools/call", {"name": "fail", "arguments": {"name": "alice"}})
            await alice.endpoint.ask("POST", {**headers, **alice.headers()}, body)
            await alice.endpoint.ask("POST", session, call("fail", name="alice"))
        headers, body = modern("tools/call", {"name": "fail", "arguments": {"name": "bob"}})
        await bob.endpoint.ask("POST", {**headers, **bob.headers()}, body)
        failures = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
        assert failures == ["oh dear, alice"] * BURST + ["oh dear, bob"]


# Connections


async def test_client_address_can_use_half_of_the_connections_and_then_loses_its_own_idle_connections() -> None:
    async with from_addresses(Scene(), max_connections=4) as addresses:
        statuses = list[int]()
        headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "x", "speaks": True}})
        idle = await addresses.connect("127.0.0.2")
        await idle.modern("tools/list")
        mine = await addresses.connect("127.0.0.1")
        await mine.modern("tools/list")
        for _ in range(3):
            busy = await addresses.connect("127.0.0.1")  # the second of them in the place of the idle one
            await busy.send("POST", {**headers}, body)
            statuses.append((await busy.head()).status)
        assert statuses == [200, 200, 503]
        assert await mine.stream.receive_some(1) == b""
        assert (await idle.modern("tools/list")).status == 200


async def test_client_behind_a_trusted_proxy_can_use_half_of_the_connections() -> None:
    proxies = TrustedProxies(["127.0.0.1"])
    async with from_addresses(Scene(), proxies, max_connections=6) as addresses:
        headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "x", "speaks": True}})
        statuses = list[int]()
        for client in ("203.0.113.1",) * 4 + ("203.0.113.2",):
            connection = await addresses.connect("127.0.0.1")
            await connection.send("POST", {**headers, "X-Forwarded-For": client}, body)
            statuses.append((await connection.head()).status)
        assert statuses == [200, 200, 200, 503, 200]


async def test_connection_of_a_trusted_proxy_counts_for_the_client_named_in_its_latest_request() -> None:
    proxies = TrustedProxies(["127.0.0.1"])
    async with from_addresses(Scene(), proxies, max_connections=4) as addresses:
        pool = [await addresses.connect("127.0.0.1") for _ in range(3)]
        for client in ("203.0.113.1", "203.0.113.2", "203.0.113.1"):
            statuses = [(await each.modern("tools/list", X_Forwarded_For=client)).status for each in pool]
            assert statuses == [200, 200, 503]
            # What tells is served in any case.
            headers: dict[str, str | None] = {**BASE, "X-Forwarded-For": client}
            assert (await pool[2].ask("POST", headers, message("notifications/x"))).status == 400  # no session
        for connection in pool[:2]:
            await connection.aclose()
        with trio.fail_after(PATIENCE):
            while (await pool[2].modern("tools/list", X_Forwarded_For="203.0.113.1")).status == 503:
                await trio.lowlevel.checkpoint()


async def test_trusted_proxy_can_use_all_connections() -> None:
    proxies = TrustedProxies(["127.0.0.1"])
    async with from_addresses(Scene(), proxies, max_connections=4) as addresses:
        headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "x", "speaks": True}})
        statuses = list[int]()
        for number in range(5):
            connection = await addresses.connect("127.0.0.1")
            await connection.send("POST", {**headers, "X-Forwarded-For": f"203.0.113.{number}"}, body)
            statuses.append((await connection.head()).status)
        assert statuses == [200, 200, 200, 200, 503]


async def test_server_forgets_callers_without_sessions_or_requests() -> None:
    async with parties(*map(str, range(20))) as guests:
        for guest in guests:
            assert await echoes(guest)
        session = await guests[0].open()
        await wait_all_tasks_blocked()
        known = guests[0].endpoint.front.callers._callers._known
        assert [key for key, _ in known.items()] == [("principal", PrincipalId(ISSUER, "0"))]
        assert isinstance(session, dict)
        await guests[0].endpoint.ask("DELETE", session)
        await wait_all_tasks_blocked()
        assert not known
