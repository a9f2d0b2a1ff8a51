"""A cancel at any step of an exchange closes what the exchange had opened, and costs nobody else anything."""

from __future__ import annotations

import gc
import os
import ssl

import pytest
import trio
import trustme
from tests.transports.http_client.scripted import OK, answering, scripted
from tests.transports.http_client.test_proxies import Told, relaying
from trio.testing import wait_all_tasks_blocked

from trio_mcp.transports.http_client.client import HttpClient

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="descriptors are counted there")


class CancelAtStep(trio.abc.Instrument):
    """Cancels ``scope`` when some task, the server's included, is about to run for the ``step``-th time from now."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self._left = step
        self._scope = scope

    def before_task_step(self, _: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


async def call(client: HttpClient, body: bytes) -> bytes:
    async with client.request("POST", "/", body=body) as reply:
        return await reply.read(1000)


async def cancelled_at(step: int, client: HttpClient, body: bytes) -> bool:
    """Whether a cancel at ``step`` of a call came before the end of the call."""
    with trio.CancelScope() as scope:
        instrument = CancelAtStep(step, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            assert await call(client, body) == b"hello"
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("size", [2, 100_000])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("warm", [False, True])
async def test_http_request_cancelled_at_any_checkpoint_leaves_no_open_descriptor(
    authority: trustme.CA, size: int, secure: bool, proxied: bool, warm: bool
) -> None:
    theirs = ours = None
    if secure:
        theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert("127.0.0.1").configure_cert(theirs)
        authority.configure_trust(ours)
    body, step = b"x" * size, 0
    async with scripted(answering(OK), ssl_context=theirs) as server, scripted(relaying(Told())) as proxy:
        by = f"http://127.0.0.1:{proxy.port}" if proxied else None
        gc.collect()  # what earlier tests have left to the collector closes its own
        before, is_over = descriptors(), False
        while not is_over:
            step += 1
            async with HttpClient(server.url, ssl_context=ours, http_proxy=by) as client:
                if warm:
                    await call(client, b"{}")
                is_over = not await cancelled_at(step, client, body)
                assert await call(client, b"{}") == b"hello"
            while server.open or proxy.open:
                await wait_all_tasks_blocked()
            if descriptors() != before:  # a collection takes longer than a step
                gc.collect()
            assert descriptors() == before, step
    assert step > 1, "some cancels came before the end"
