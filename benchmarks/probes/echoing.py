"""Calls and their replies: echoes, and handlers that ask the client."""

from __future__ import annotations

import json
import time
from itertools import islice
from statistics import median
from typing import Any

from ..driver import messages
from ..driver.checks import check
from ..driver.session import Session

__all__ = ["echo", "echo_64", "in_flight", "sampling", "sequential"]


def sequential(session: Session, texts: list[str]) -> tuple[list[float], float]:
    """One echo after another: the seconds of each, and of the processor for all."""
    ids = list(islice(session.ids, len(texts)))
    calls = [
        session.wire.frame(messages.tool_call(request_id, "echo", {"text": text}))
        for request_id, text in zip(ids, texts, strict=True)
    ]
    took: list[float] = []
    replies: list[bytes] = []
    wire, clock, cpu = session.wire, time.perf_counter, session.child.cpu()
    for call in calls:
        began = clock()
        wire.write(call)
        received = wire.receive()
        took.append(clock() - began)
        replies += received
    cpu = session.child.cpu() - cpu
    check(len(replies), len(calls), "the number of replies")
    for request_id, text, reply in zip(ids, texts, replies, strict=True):
        check(messages.text(json.loads(reply), request_id), text, "an echo")
    return took, cpu


def echo(session: Session) -> dict[str, float]:
    """One at a time."""
    count = session.sized(3000)
    took, cpu = sequential(session, [messages.echo(number) for number in range(count)])
    return {"echo": count / sum(took), "echo_p50": median(took) * 1e6, "echo_cpu": cpu / count * 1e6}


def in_flight(session: Session, count: int, width: int) -> tuple[float, float]:
    """``count`` echoes, always ``width`` at once: seconds of the wall and of the processor."""
    texts = {request_id: messages.echo(request_id) for request_id in islice(session.ids, count)}
    calls = [
        session.wire.frame(messages.tool_call(request_id, "echo", {"text": text})) for request_id, text in texts.items()
    ]
    replies: list[bytes] = []
    wire, cpu, began = session.wire, session.child.cpu(), time.perf_counter()
    wire.write(b"".join(calls[:width]))
    sent = width
    while len(replies) < count:
        received = wire.receive()
        replies += received
        if sent < count:
            wire.write(b"".join(calls[sent : sent + len(received)]))
            sent += len(received)
    wall, cpu = time.perf_counter() - began, session.child.cpu() - cpu
    for reply in map(json.loads, replies):
        check(messages.text(reply, reply["id"]), texts.pop(reply["id"], None), f"the echo of {reply['id']}")
    check(len(texts), 0, "calls without a reply")
    return wall, cpu


def echo_64(session: Session) -> dict[str, float]:
    """64 in flight, always."""
    count = session.sized(12_000, least=256)
    wall, cpu = in_flight(session, count, 64)
    return {"echo_64": count / wall, "echo_64_cpu": cpu / count * 1e6}


def sampling(session: Session) -> dict[str, float]:
    """A handler asks the client, and asks again when it has the answer."""
    count = session.sized(3000)
    number, reply = 0, dict[str, Any]()
    cpu, began = session.child.cpu(), time.perf_counter()
    request_id = session.begin("ask", {"count": count})
    while "method" in reply or not reply:
        (reply,) = session.receive()
        if reply.get("method") == "sampling/createMessage":
            (message,) = reply["params"]["messages"]
            content = message["content"]
            question = (content[0] if isinstance(content, list) else content)["text"]
            check(question, f"question {number}", "a question")
            answer = {"type": "text", "text": f"answer {number}"}
            session.wire.send(messages.result(reply["id"], {"role": "assistant", "content": answer, "model": "m"}))
            number += 1
    wall, cpu = time.perf_counter() - began, session.child.cpu() - cpu
    check(number, count, "the number of questions")
    check(messages.text(reply, request_id), f"{count} answers", "the result")
    return {"sampling": count / wall, "sampling_cpu": cpu / count * 1e6}
