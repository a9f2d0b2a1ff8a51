"""The scenarios of ``tests/interaction/server`` over one wire more: HTTP through a balancer, to four replicas."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from tests.fleet.redis_server import RedisServer
from tests.interaction.harness import JOURNAL_VARIABLE, Journal
from tests.interaction.raw_client import ERAS, FIXTURE, RawClient
from tests.interaction.server.conftest import WITHOUT_COUNTERPART
from tests.interaction.wires import HttpWire
from tests.replicas.fleet import Replica, needs, serving
from tests.reverse_proxies.proxies import HAPROXY

LITTLE: Final = 0.3
_ONE_PROCESS: Final = "it looks at one process, or ends it"
_LATER: Final = "a change on one replica is told by another one a moment later"
_COALESCED: Final = "lines of a session are kept before they are sent, and the last progress counts meanwhile"
_TWICE: Final = "that one id is used twice at a time is noticed where both requests come to one replica"

OF_ONE_PROCESS: Final = {
    "test_bpl_06_idle_server_uses_no_cpu_after_a_thousand_cancels": _ONE_PROCESS,
    "test_can_02_server_still_answers_after_two_hundred_cancelled_calls": _ONE_PROCESS,
    "test_s2c_05_shutdown_immediately_cancels_handler_that_awaits_input": _ONE_PROCESS,
    "test_s2c_05_end_of_input_cancels_handler_that_awaits_input": _ONE_PROCESS,
    "test_mod_01_each_of_20_listen_streams_receives_only_the_changes_that_match_its_filter": _ONE_PROCESS,
    "test_mod_02_listen_stream_ends_with_last_changes_then_cancelled_notification_then_result": _ONE_PROCESS,
    "test_mod_03_legacy_requests_modern_requests_and_a_listen_stream_get_only_their_own_messages": _ONE_PROCESS,
    "test_listen_stream_that_is_not_read_uses_little_memory_and_does_not_delay_other_streams": _ONE_PROCESS,
    "test_listen_stream_ends_in_the_server_when_its_client_vanishes": _ONE_PROCESS,
    "test_prg_02_only_increasing_finite_progress_values_are_sent[2025-11-25]": _COALESCED,
    "test_cancelled_listen_stream_gets_no_changes_and_its_id_can_be_reused": _LATER,
    "test_rpc_02_request_with_an_id_in_flight_is_refused_and_the_first_request_continues": _TWICE,
    "test_rpc_02_id_of_cancelled_request_can_be_reused_during_its_cleanup": _TWICE,
    "test_rpc_02_cancelled_request_that_ends_does_not_free_an_id_in_use_by_a_new_request": _TWICE,
}
"""Beginnings of the scenarios that have no meaning for several processes, and why."""
SKIPPED: Final = tuple(name.replace("[http-", "[") for name in (*WITHOUT_COUNTERPART, *OF_ONE_PROCESS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what has no meaning here, and each wire but HTTP."""
    kept = list[pytest.Item]()
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.stem == "test_interaction":
            call = getattr(item, "callspec", None)
            transport = "http" if call is None else call.params.get("transport", "http")
            is_ours = "balanced" in getattr(item, "fixturenames", ())
            if transport != "http" or not is_ours or item.name.replace("[http-", "[").startswith(SKIPPED):
                continue
        kept.append(item)
    items[:] = kept


class ClientOfAll(RawClient):
    """A client of several processes, of which it ends none."""

    def __init__(self, wire: HttpWire, journal: Journal, logs: list[Path], connect: Callable[[], HttpWire]) -> None:
        process: Any = None
        super().__init__(process, wire, journal, logs[0], connect)
        self._logs = {log: log.stat().st_size for log in logs}

    def stderr(self) -> str:
        """What any of the processes has written since this client is there."""
        return "".join(log.read_text(errors="replace")[before:] for log, before in self._logs.items())

    def finish(self, *, bound: float = LITTLE) -> int:
        """Read what comes in a little time: nobody tells that nothing more would come."""
        with suppress(AssertionError):
            while self.receive(bound=min(bound, LITTLE)) is not None:
                pass
        self.wire.close()
        return 0


class Balanced:
    """Four replicas of the fixture server, and what they have written."""

    def __init__(self, folder: Path, replicas: list[Replica], port: int) -> None:
        self.folder = folder
        self.replicas = replicas
        self.port = port

    @contextmanager
    def connected(
        self, *, revision: str | None = None, capabilities: dict[str, Any] | None = None, limits: Any = None
    ) -> Iterator[RawClient]:
        """A client, whose requests go to the replicas in turn. See `tests.interaction.raw_client.serving`."""
        if limits:
            pytest.skip("the replicas of all scenarios have the usual limits")
        journal = Journal(self.folder / "journal")
        journal.entries()
        journal._entries.clear()  # those of others

        def dial() -> socket.socket:
            connected = socket.create_connection(("127.0.0.1", self.port), 60)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected

        def connect() -> HttpWire:
            return HttpWire(dial, f"127.0.0.1:{self.port}")

        client = ClientOfAll(connect(), journal, [replica.log for replica in self.replicas], connect)
        try:
            if revision is not None:
                client.open(revision, capabilities)
            yield client
        finally:
            client.wire.close()


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Generator[Balanced]:
    """One fleet for all scenarios: it runs in a thread, since the scenarios do without trio."""
    needs(HAPROXY)
    folder = tmp_path_factory.mktemp("balanced")
    begun, ending = threading.Event(), threading.Event()
    made: list[Balanced] = []

    async def run() -> None:
        with RedisServer(folder) as redis:
            async with serving(folder, HAPROXY, redis.url, [str(FIXTURE)]) as (replicas, port):
                made.append(Balanced(folder, replicas, port))
                begun.set()
                await trio.to_thread.run_sync(ending.wait)

    def start() -> None:
        try:
            trio.run(run)
        finally:
            begun.set()

    before = os.environ.get(JOURNAL_VARIABLE)
    os.environ[JOURNAL_VARIABLE] = str(folder / "journal")
    thread = threading.Thread(target=start)
    thread.start()
    begun.wait()
    try:
        assert made, "the replicas do not start"
        yield made[0]
    finally:
        ending.set()
        thread.join()
        os.environ.pop(JOURNAL_VARIABLE)
        if before is not None:
            os.environ[JOURNAL_VARIABLE] = before


@pytest.fixture
def transport() -> str:
    return "http"


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def start(balanced: Balanced, transport: str) -> Callable[..., AbstractContextManager[RawClient]]:
    """Connect to the replicas."""
    assert transport == "http"
    return balanced.connected


@pytest.fixture
def client(start: Callable[..., AbstractContextManager[RawClient]], era: str) -> Iterator[RawClient]:
    with start(revision=era) as client:
        yield client
