"""A small server of the legacy era, written by hand, with one defect by choice: ``faulty_server.py FAULT``.

The fault ``none`` has no defect, but for progress, which is sent as often as it is reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

FAULT = sys.argv[1]
TOOLS = ("fast", "slow", "running", "flood")
tasks: dict[Any, asyncio.Task[None]] = {}
running = 0


def send(**message: Any) -> None:
    if FAULT == "id-as-text" and "id" in message:
        message["id"] = str(message["id"])
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def progress(token: Any, value: int) -> None:
    if token is None and FAULT != "progress-without-token":
        return
    shown = str(token) if FAULT == "token-as-text" else 0 if token is None else token
    params = {"progressToken": shown, "progress": 1 if FAULT == "progress-repeats" else value}
    send(method="notifications/progress", params=params)


async def slow(token: Any) -> None:
    global running
    running += 1
    step = 0
    try:
        while step < 600:
            step += 1
            progress(token, step)
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                if FAULT != "ignores-cancels":
                    raise
    finally:
        running -= 1
        if FAULT == "progress-after-cancel":
            asyncio.get_running_loop().call_later(0.5, progress, token, step + 1)


async def call(id: Any, name: str, token: Any) -> None:
    try:
        if name == "slow":
            await slow(token)
        for value in range(1, 10_001) if name == "flood" else ():
            progress(token, value)
    except asyncio.CancelledError:
        if FAULT == "answers-cancelled":
            send(id=id, error={"code": 0, "message": "cancelled"})
        return
    finally:
        tasks.pop(id, None)
    text = str(running) if name == "running" else "fine"
    send(id=id, result={"content": [{"type": "text", "text": text}]})


def cancel(params: Any) -> None:
    if FAULT == "dies-of-odd-cancels":
        params["requestId"] + 1
    if FAULT == "dies-of-reasons" and len(str(params.get("reason"))) > 100:
        sys.exit(1)
    wanted = params.get("requestId") if isinstance(params, dict) else None
    if not isinstance(wanted, int | str):
        return
    known = list(tasks) if FAULT == "cancels-all" else [wanted]
    if FAULT == "confuses-ids":
        known = [each for each in tasks if str(each) == str(wanted)]
    for each in known:
        if each in tasks:
            tasks[each].cancel()


async def handle(message: Any) -> None:
    method, params, id = message.get("method"), message.get("params") or {}, message.get("id")
    if method == "notifications/cancelled":
        cancel(params)
        if FAULT == "answers-notifications":
            send(id=None, error={"code": -32602, "message": "odd"})
    elif method == "initialize":
        shown = {"name": "faulty", "version": "1"}
        send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": shown})
    elif method == "tools/list":
        send(id=id, result={"tools": [{"name": each, "inputSchema": {"type": "object"}} for each in TOOLS]})
    elif method == "ping":
        send(id=id, result={})
    elif method == "tools/call":
        tasks[id] = asyncio.create_task(call(id, params["name"], params.get("_meta", {}).get("progressToken")))
        if FAULT == "one-at-a-time":
            await tasks[id]
    elif id is not None and FAULT == "answers-unknown-methods":
        send(id=id, result={})
    elif id is not None:
        send(id=id, error={"code": -32601, "message": "Method not found"})


async def main() -> None:
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            message = json.loads(line)
        except ValueError:
            if FAULT == "dies-of-text":
                raise
            if FAULT != "silent-on-errors":
                send(id=None, error={"code": -32700, "message": "Parse error"})
            continue
        await handle(message)
    if FAULT == "stays":
        await asyncio.sleep(60)
    for task in list(tasks.values()):
        task.cancel()


asyncio.run(main())
