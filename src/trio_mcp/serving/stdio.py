"""serve_stdio: serve a server on this process's standard input and output."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from ..concurrency.misuse import check_served_under_trio
from ..concurrency.nurseries import open_service_nursery
from ..diagnostics.log import written_in_a_thread
from ..diagnostics.writer import let_go_of_unread_output
from ..runtime.peer import THE_ONLY_ONE
from ..runtime.transport import Transport
from ..server.served import Running, Servable, ServedConnection, check_servable, connection_to, end_tasks
from ..transports.stdio import own_stdio
from .process import quieten_collector, shutting_down_at_signals

logger = logging.getLogger("trio_mcp")


async def serve_stdio(server: Servable, *, stateless: bool = False, handle_signals: bool = True) -> None:
    """Serve ``server`` on this process's standard input and output until the client closes them.

    After the end of input, and after SIGTERM or SIGINT, no new request is taken. Accepted requests and tasks go on for
    up to `Limits.drain_timeout` seconds and are then cancelled, threads are abandoned `Limits.shutdown_grace` later,
    the lifespan is left, and the function returns. A second signal skips the waiting, and the process ends within a
    second, by SIGALRM if necessary. Signals are handled in the main thread only, and not with ``handle_signals=False``.
    ``stateless``: see `Server.running`.

    During the call no other code of this process can touch the wire: ``print`` writes to standard error, and standard
    input is empty. If nobody reads standard error at the return, later text is dropped, so that the process can end.
    Raises `OSError` when standard input or output is not open.
    """
    check_served_under_trio("serve_stdio")
    check_servable(server)
    quieten_collector()
    try:
        async with written_in_a_thread():
            with own_stdio(server.limits.max_message_bytes) as transport:
                await _serve(server, transport, stateless=stateless, handle_signals=handle_signals)
    finally:
        let_go_of_unread_output()


async def _serve(server: Servable, transport: Transport, *, stateless: bool, handle_signals: bool) -> None:
    with ExitStack() as signals:  # they may come until the lifespan has ended
        async with server.running(stateless=stateless) as running:
            connection = connection_to(running, transport, THE_ONLY_ONE)
            connection.duplex.is_only = True
            if handle_signals:

                def shut_down(reason: str, *, hurry: bool) -> None:
                    connection.duplex.shut_down(reason, hurry=hurry)
                    end_tasks(running, hurry=hurry)

                signals.enter_context(shutting_down_at_signals(shut_down, for_good=True))
            async with open_service_nursery("the connection has ended") as services:
                services.start_soon(_end_tasks, running, connection)
                await connection.run()
            if connection.duplex.lost is not None:
                logger.warning("the client is gone: %s", connection.duplex.lost.reason)


async def _end_tasks(running: Running, connection: ServedConnection) -> None:
    """Have the tasks end as soon as the connection starts to: at the end of input, too."""
    await connection.duplex.until_ending()
    end_tasks(running, hurry=False)
