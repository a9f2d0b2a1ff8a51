"""The client side, against a raw server that does nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..driver.checks import check, within
from ..driver.child import Child
from ..driver.wire import Lines, Wire

__all__ = ["MeasuredClient", "calls", "calls_64", "handled", "open_client"]

_PATIENCE = 120


@dataclass
class MeasuredClient:
    """A client that does what it is told: see `benchmarks/clients/orders.py`. ``scale``: as of a `Session`."""

    child: Child
    wire: Wire
    scale: float

    def sized(self, amount: int, *, least: int = 50) -> int:
        """See `Session.sized`."""
        return max(least, int(amount * self.scale))

    def order(self, words: str, count: int) -> tuple[float, float]:
        """Have it do something ``count`` times: seconds of the wall and of the processor."""
        cpu, began = self.child.cpu(), time.perf_counter()
        self.wire.send(words.encode())
        done = self.wire.receive()
        wall, cpu = time.perf_counter() - began, self.child.cpu() - cpu
        check([int(line) for line in done], [count], f"what was right of {words!r}")
        return wall, cpu


@contextmanager
def open_client(command: list[str], scale: float) -> Iterator[MeasuredClient]:
    """Start a client, and let it connect."""
    with Child(command) as child:
        client = MeasuredClient(child, Wire(child.output, child.input, Lines(), child.marks), scale)
        with within(_PATIENCE, "the client's first word"):
            check(client.wire.receive(), [b"0"], "the client's first word")
        yield client


def calls(client: MeasuredClient) -> dict[str, float]:
    """One at a time."""
    count = client.sized(3000)
    wall, cpu = client.order(f"calls {count} 1", count)
    return {"calls": count / wall, "calls_cpu": cpu / count * 1e6}


def calls_64(client: MeasuredClient) -> dict[str, float]:
    """64 callers at once."""
    count = client.sized(10_000, least=256)
    wall, cpu = client.order(f"calls {count} 64", count)
    return {"calls_64": count / wall, "calls_64_cpu": cpu / count * 1e6}


def handled(client: MeasuredClient) -> dict[str, float]:
    """Log notifications, each given to a callback."""
    count = client.sized(50_000)
    client.order(f"notifications {count}", count)  # the server makes its lines
    wall, cpu = client.order(f"notifications {count}", count)
    return {"handled": count / wall, "handled_cpu": cpu / count * 1e6}
