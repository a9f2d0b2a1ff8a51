"""Draws cancel.svg and cancel-narrow.svg: a cancel that crosses the process boundary, as both processes recorded it.

python docs/pictures/cancel.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from trio_mcp import RequestContext, Server, open_stdio, serve_stdio
from trio_mcp.recording.entries import read_recording
from trio_mcp.recording.timeline import timeline

server = Server("reports")


@server.tool
async def report(ctx: RequestContext) -> str:
    try:
        for page in range(1, 10):
            await trio.sleep(0.1)
            ctx.progress(page, 9)
        return "a report of nine pages"
    finally:
        with trio.CancelScope(shield=True):  # cleanup that must run to its end
            await trio.sleep(0.15)


@attrs.frozen
class Measured:
    """Milliseconds since the call was sent, and the processes."""

    left: float
    read: float
    finally_began: float
    done: float
    progress: list[float]
    client: int
    server: int


async def measure(folder: str) -> Measured:
    """Call the server in another process, leave the call after 0.35 seconds, and return what both sides recorded."""
    ours, theirs = os.path.join(folder, "client.jsonl"), os.path.join(folder, "server.jsonl")
    command = [sys.executable, __file__, theirs]
    async with open_stdio(command, inherit_env=True, record=ours) as client:
        with trio.move_on_after(0.35):
            await client.call_tool("report", on_progress=lambda _: None)
        await trio.sleep(0.3)
    recordings = [read_recording(ours), read_recording(theirs)]
    (call,) = [each for each in timeline(recordings).requests if each.name == "report"]

    def after(moment: float | None) -> float:
        assert moment is not None
        return (moment - call.started_at) * 1000

    return Measured(
        after(call.cancel_sent),
        after(call.cancel_read),
        after(call.finally_began),
        after(call.done),
        [after(tick.at) for tick in call.ticks],
        *(each.header.pid for each in recordings),
    )


STYLE = """
svg { --paper:#ffffff; --ink:#1f2328; --faint:#656d76; --grid:#d8dce1; --call:#2f6fde; --free:#dbe7fb;
  --handler:#2e9e62; --cleanup:#d9822b; --cancel:#cf222e; --inside:#ffffff; }
@media (prefers-color-scheme: dark) {
  svg { --paper:#0d1117; --ink:#e6edf3; --faint:#9198a1; --grid:#30363d; --call:#6ea8fe; --free:#1b2a44;
    --handler:#4cc38a; --cleanup:#f0a35e; --cancel:#ff6b6b; --inside:#0d1117; } }
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: var(--ink); }
.faint { fill: var(--faint); } .head { font-weight: 600; } .inside { fill: var(--inside); }
.red { fill: var(--cancel); font-weight: 600; } .right { text-anchor: end; } .middle { text-anchor: middle; }
.paper { fill: var(--paper); } .call { fill: var(--call); } .free { fill: var(--free); }
.handler { fill: var(--handler); } .cleanup { fill: var(--cleanup); }
.line { stroke: var(--grid); fill: none; } .cancel { stroke: var(--cancel); stroke-width: 2; fill: none; }
.bracket { stroke: var(--ink); fill: none; } .tick { stroke: var(--inside); stroke-width: 2; }
"""
BAR = 20


def picture(seen: Measured, width: int) -> str:
    return "\n".join(parts(seen, width)) + "\n"


def parts(seen: Measured, width: int) -> Iterator[str]:
    """Draw two lanes, one for each process, and below them the moment of the cancel, enlarged."""
    title = "Leaving a scope in the client stops the handler in the server"
    end = seen.done + 50
    height = 336

    def x(at: float) -> float:
        return round(12 + at / end * (width - 24), 1)

    begin, span = seen.left - 1, seen.finally_began - seen.left + 2

    def enlarged(at: float) -> float:
        return round(12 + (at - begin) / span * (width - 24), 1)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img">'
    )
    yield f"<title>{title}</title><style>{STYLE}</style>"
    yield f'<rect class="paper" width="{width}" height="{height}"/>'

    client, server, top = 34, 92, 158
    step = 100 if width > 500 else 200
    for at in range(0, int(end), step):
        yield f'<path class="line" d="M{x(at)} {client}V{top - 22}"/>' if at else ""
        yield text(x(at) if at else 12, top - 4, f"{at} ms", "faint middle" if at else "faint")

    yield text(12, client - 8, f"client, process {seen.client}", "head")
    yield text(
        x(seen.left), client - 8, f"leaves its scope, {seen.left:.0f} ms" if width > 500 else "leaves its scope", "red"
    )
    yield bar("call", x(0), x(seen.left), client)
    yield text(x(0) + 8, client + 15, "calls the tool", "inside")
    yield bar("free", x(seen.left), x(end), client)
    yield text(x(seen.left) + 8, client + 15, "goes on at once" if width < 500 else "the caller continues at once")

    yield text(12, server - 8, f"server, process {seen.server}", "head")
    yield bar("handler", x(1), x(seen.finally_began), server)
    yield text(x(0) + 8, server + 15, "the handler runs", "inside")
    yield bar("cleanup", x(seen.finally_began), x(seen.done), server)
    for at in seen.progress:
        yield f'<path class="tick" d="M{x(at)} {server + 4}v{BAR - 8}"/>'
    cleanup = f"cleanup, {seen.done - seen.finally_began:.0f} ms"
    yield text(x(seen.finally_began), server + BAR + 16, cleanup)
    yield text(12, server + BAR + 16, f"{len(seen.progress)} × progress", "faint")
    yield f'<path class="cancel" d="M{x(seen.left)} {client}V{server + BAR}"/>'

    box = 178
    yield (
        f'<path class="line" d="M{x(seen.left)} {server + BAR}L12 {box}M{x(seen.finally_began)} {server + BAR}'
        f'L{width - 12} {box}"/>'
    )
    yield f'<rect class="line" x="12" y="{box}" width="{width - 24}" height="{height - box - 10}"/>'
    yield text(20, box + 18, f"The same moment, {end / span:.0f} times enlarged", "faint")
    upper, lower = box + 46, box + 92
    sent, read, turned = enlarged(seen.left), enlarged(seen.read), enlarged(seen.finally_began)
    yield bar("call", 13, sent, upper)
    yield bar("free", sent, width - 13, upper)
    yield text(sent, upper - 5, "cancel sent", "red middle" if width > 500 else "red")
    yield bar("handler", 13, turned, lower)
    yield bar("cleanup", turned, width - 13, lower)
    yield f'<path class="cancel" d="M{sent} {upper}V{upper + BAR}L{read} {lower}V{lower + BAR}"/>'
    yield text(turned + 8, lower + 15, "finally", "inside")
    yield from bracket(sent, read, lower + BAR + 4, f"{seen.read - seen.left:.1f} ms")
    yield from bracket(read, turned, lower + BAR + 4, f"{seen.finally_began - seen.read:.1f} ms")
    yield "</svg>"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}"' + (f' class="{kind}"' if kind else "") + f">{words}</text>"


def bar(kind: str, begin: float, end: float, y: float) -> str:
    return f'<rect class="{kind}" x="{begin}" y="{y}" width="{round(end - begin, 1)}" height="{BAR}" rx="2"/>'


def bracket(begin: float, end: float, y: float, words: str) -> Iterator[str]:
    yield f'<path class="bracket" d="M{begin} {y}v6H{end}v-6"/>'
    yield text(round((begin + end) / 2, 1), y + 20, words, "middle")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(lambda: serve_stdio(server, record=sys.argv[1]))
    else:
        with TemporaryDirectory() as folder:
            measured = trio.run(measure, folder)
        for name, width in (("cancel", 720), ("cancel-narrow", 360)):
            Path(__file__).with_name(f"{name}.svg").write_text(picture(measured, width), encoding="utf-8")
