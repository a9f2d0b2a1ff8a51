"""Measures: what is measured, in which unit, and what is to be reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .probes.growth import CONNECTIONS, PAYLOADS, WIDTHS

__all__ = ["MEASURES", "Goal", "Measure"]


@dataclass(frozen=True)
class Goal:
    """Bounds: ``least`` is asked for, ``aim`` is wished for. Of the ratio to the floor unless ``absolute``."""

    least: float
    aim: float
    absolute: bool = False


@dataclass(frozen=True)
class Measure:
    """One row of the results. ``suite`` and ``name`` together are its key."""

    suite: str
    name: str
    title: str
    unit: str
    better: Literal["more", "less"] = "less"
    goal: Goal | None = None

    def reached(self, bound: float, value: float) -> bool:
        """Whether ``value`` is at least as good as ``bound``."""
        return value >= bound if self.better == "more" else value <= bound


def _more(suite: str, name: str, title: str, least: float | None = None, aim: float | None = None) -> Measure:
    goal = None if least is None or aim is None else Goal(least, aim)
    return Measure(suite, name, title, "/s", "more", goal)


def _cpu(suite: str, name: str, title: str) -> Measure:
    return Measure(suite, name, f"{title}: processor time each", "µs")


def _http(suite: str, least: float, aim: float, cancel: str) -> tuple[Measure, ...]:
    """What is measured in both eras. ``least`` and ``aim``: of the echoes."""
    return (
        _more(suite, "post_1", "echo, 1 connection", least, aim),
        Measure(suite, "post_1_p50", "echo, 1 connection: median", "µs"),
        _more(suite, "post_16", "echo, 16 connections", least, aim),
        _cpu(suite, "post_16_cpu", "echo, 16 connections"),
        _more(suite, "post_64", "echo, 64 connections", least, aim),
        Measure(suite, "post_64_p99", "echo, 64 connections: 99th percentile", "ms"),
        _more(suite, "streamed", "log notifications", 0.25, 0.5),
        _cpu(suite, "streamed_cpu", "log notifications"),
        Measure(suite, "leave_p50", f"{cancel} to `finally`: median", "µs", goal=Goal(1.3, 1.1)),
        Measure(suite, "leave_p99", f"{cancel} to `finally`: 99th percentile", "µs"),
        Measure(suite, "stopped", "of these handlers, stopped", "%", "more", Goal(100, 100, absolute=True)),
    )


MEASURES = (
    _more("stdio", "notifications", "log notifications", 0.6, 0.75),
    _cpu("stdio", "notifications_cpu", "log notifications"),
    Measure("stdio", "progress", "a call of `ctx.progress()`", "µs", goal=Goal(1.0, 0.4, absolute=True)),
    Measure("stdio", "progress_written", "of these calls, notifications written", "%"),
    _more("stdio", "echo", "echo, sequential", 0.85, 1.0),
    Measure("stdio", "echo_p50", "echo, sequential: median", "µs"),
    _cpu("stdio", "echo_cpu", "echo, sequential"),
    _more("stdio", "echo_64", "echo, 64 in flight", 0.68, 0.85),
    _cpu("stdio", "echo_64_cpu", "echo, 64 in flight"),
    _more("stdio", "sampling", "sampling round trips", 0.8, 0.95),
    _cpu("stdio", "sampling_cpu", "sampling round trips"),
    Measure("stdio", "cancel_p50", "cancel to `finally`: median", "µs", goal=Goal(1.25, 1.1)),
    Measure("stdio", "cancel_500", "500 cancelled at once: last `finally`", "ms", goal=Goal(1.6, 1.2)),
    Measure("stdio", "flood_echo", "echo while another request floods: median", "µs", goal=Goal(2.0, 1.2)),
    Measure(
        "stdio",
        "flood_after_cancel",
        "lines written after the cancel of a flood",
        "lines",
        goal=Goal(150, 20, absolute=True),
    ),
    Measure("stdio", "crowd_accept", "10,000 in flight: time to accept, each", "µs"),
    Measure("stdio", "crowd_memory", "10,000 in flight: memory each", "KiB", goal=Goal(7.5, 6, absolute=True)),
    Measure("stdio", "start", "spawn to first reply", "ms", goal=Goal(1.6, 1.35)),
    Measure("stdio", "idle_memory", "idle memory", "MiB", goal=Goal(36, 30, absolute=True)),
    Measure("crowd", "crowd_accept", "10,000 in flight, of peers too: time to accept, each", "µs"),
    Measure("crowd", "crowd_memory", "10,000 in flight, of peers too: memory each", "KiB"),
    _more("websocket", "notifications", "log notifications", 8, 12),
    _cpu("websocket", "notifications_cpu", "log notifications"),
    _more("websocket", "echo", "echo, sequential"),
    Measure("websocket", "echo_p50", "echo, sequential: median", "µs"),
    _more("websocket", "echo_64", "echo, 64 in flight"),
    _cpu("websocket", "echo_64_cpu", "echo, 64 in flight"),
    Measure("websocket", "cancel_p50", "cancel to `finally`: median", "µs"),
    Measure("websocket", "cancel_500", "500 cancelled at once: last `finally`", "ms"),
    *_http("http", 0.8, 1.4, "disconnect"),
    Measure("http", "listen_memory", "memory per listen stream", "KiB", goal=Goal(24, 18, absolute=True)),
    Measure("http", "told", "2,000 listen streams told of a change: last", "ms"),
    Measure("http", "told_each", "listen streams told of a change: each", "µs"),
    Measure("http", "start", "spawn to first answer", "ms", goal=Goal(1.7, 1.3)),
    Measure("http", "idle_memory", "idle memory", "MiB"),
    Measure("http-asgi", "post_1_p50", "echo, 1 connection: median", "µs"),
    Measure("http-asgi", "post_64", "echo, 64 connections", "/s", "more"),
    Measure("http-asgi", "leave_p50", "disconnect to `finally`: median", "µs"),
    Measure("http-asgi", "stopped", "of these handlers, stopped", "%", "more"),
    *_http("http-legacy", 0.7, 1.2, "cancel"),
    Measure("http-legacy", "session_memory", "memory per idle session", "KiB", goal=Goal(24, 16, absolute=True)),
    Measure("http-legacy", "get_memory", "memory per GET stream", "KiB", goal=Goal(14, 10, absolute=True)),
    _more("client", "calls", "calls, sequential", 0.9, 1.0),
    _cpu("client", "calls_cpu", "calls, sequential"),
    _more("client", "calls_64", "calls, 64 at once", 0.75, 0.9),
    _cpu("client", "calls_64_cpu", "calls, 64 at once"),
    _more("client", "handled", "notifications handled", 0.4, 0.6),
    _cpu("client", "handled_cpu", "notifications handled"),
    *(_more("growth", f"echo_in_flight_{n}", f"echo, {n:,} in flight") for n in WIDTHS),
    *(Measure("growth", f"cancel_among_{n}", f"cancel among {n:,} in flight: median", "µs") for n in WIDTHS),
    *(Measure("growth", f"echo_bytes_{n}", f"echo of {n:,} bytes: median", "ms") for n in PAYLOADS),
    *(
        Measure(suite, "large_cpu", f"echo of 4 MiB{where}: processor time each", "ms")
        for suite, where in (("large", ""), ("large-http", " over HTTP"), ("large-client", ", client"))
    ),
    *(_more("growth-websocket", f"echo_connections_{n}", f"echo, connections: {n:,}") for n in CONNECTIONS[:-1]),
    _more(
        "growth-websocket",
        f"echo_connections_{CONNECTIONS[-1]}",
        f"echo, connections: {CONNECTIONS[-1]:,}",
        0.7,
        0.9,
    ),
    Measure("growth-websocket", "memory_per_connection", "memory per connection", "KiB"),
)
