"""More clients than the server process has file descriptors."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.interaction.harness import BOUND, descriptors_of, wait_until
from tests.interaction.raw_client import FIXTURE, LATEST_LEGACY, RawClient, Start

DESCRIPTORS = 40


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_server_that_runs_out_of_file_descriptors_continues_and_accepts_connections_later(start: Start) -> None:
    starved = ["sh", "-c", f"ulimit -n {DESCRIPTORS} && exec {sys.executable} {FIXTURE} websocket"]
    with start(command=starved, revision=LATEST_LEGACY) as client, ThreadPoolExecutor() as pool:
        with ExitStack() as others:

            def connect(stack: ExitStack) -> RawClient:
                return stack.enter_context(client.beside(LATEST_LEGACY))

            first = others.enter_context(ExitStack())
            inside = [connect(first)]
            while descriptors_of(client.pid) < DESCRIPTORS:
                inside.append(connect(others))
            outside = pool.submit(connect, others)  # the system accepts it, the server cannot
            wait_until(lambda: "EMFILE" in client.stderr())
            for other in (client, *inside):
                assert other.echo("here") == "here"
            assert descriptors_of(client.pid) == DESCRIPTORS
            assert not outside.done()
            first.close()
            assert outside.result(BOUND).echo("let in") == "let in"
            for other in (client, *inside[1:]):
                assert other.echo("still here") == "still here"
        with client.beside(LATEST_LEGACY) as newcomer:
            assert newcomer.echo("room for many") == "room for many"
        assert client.finish() == 0
