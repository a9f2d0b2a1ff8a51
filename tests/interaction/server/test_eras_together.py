"""Both eras at once on one connection: what belongs to a request stays with it."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from tests.interaction.conversation import META_PREFIX
from tests.interaction.raw_client import LATEST_LEGACY, MODERN, RawClient, Start, is_same

EACH = 1_000
RANKS = {"debug": 0, "warning": 1, "emergency": 2}
LEVELS = (None, "debug", "warning", "emergency")
CAPABILITIES: tuple[dict[str, Any], ...] = (
    {},
    {"sampling": {}},
    {"elicitation": {"form": {}}},
    {"sampling": {}, "elicitation": {}},
)


@attrs.frozen
class Told:
    """One request, and what is to come of it and of no other."""

    n: int
    revision: str
    id: int | str
    token: int | str
    level: str | None
    supports: list[str]
    trace_id: str
    message: dict[str, Any]

    @classmethod
    def of(cls, client: RawClient, n: int, revision: str) -> Told:
        """Where one era has a number, the other has the same digits as text."""
        is_modern = revision == MODERN
        has_number = (n % 2 == 0) is is_modern
        request_id, token = (n, f"{n}") if has_number else (f"{n}", n)
        level = LEVELS[n // 4 % 4] if is_modern else "warning"
        trace_id = f"{n + 1:031x}{int(is_modern)}"
        meta: dict[str, Any] = {"progressToken": token, "traceparent": f"00-{trace_id}-{n + 1:016x}-01"}
        capabilities = CAPABILITIES[n % 4] if is_modern else {"roots": {}}
        client.revision, client.capabilities = revision, capabilities
        if is_modern and level is not None:
            meta[META_PREFIX + "logLevel"] = level
        arguments = {"n": n if is_modern else -n - 1, "together": 2 * EACH}
        message = client.message("tools/call", {"name": "account", "arguments": arguments}, meta=meta, id=request_id)
        return cls(arguments["n"], revision, request_id, token, level, sorted(capabilities), trace_id, message)

    def levels(self) -> list[str]:
        """What passes, for each step."""
        return [] if self.level is None else [name for name, rank in RANKS.items() if rank >= RANKS[self.level]]


def ask_all(client: RawClient) -> list[Told]:
    """A thousand requests of each era, in no order, all of them sent before any can be answered."""
    asked = [Told.of(client, n, revision) for n in range(EACH) for revision in (LATEST_LEGACY, MODERN)]
    random.Random(4).shuffle(asked)
    for told in asked:
        client.send(told.message)
    return asked


def read_all(client: RawClient, replies: int) -> None:
    """Read up to the last reply."""
    client.forget()
    while replies:
        received = client.receive()
        assert isinstance(received, dict)
        replies -= "method" not in received


@pytest.mark.parametrize("transport", ["stdio", "websocket"])
def test_a_thousand_requests_of_each_era_at_once_keep_what_is_theirs(start: Start) -> None:
    with start(limits={"max_in_flight": 2 * EACH}, revision=LATEST_LEGACY, capabilities={"roots": {}}) as client:
        client.result(client.request("logging/setLevel", {"level": "warning"}))
        asked = ask_all(client)
        read_all(client, len(asked))
        assert client.finish() == 0
        assert client.stderr() == ""
        grouped = group(client.messages, asked)
        for told in asked:
            check(grouped[told.n], told)


def group(messages: list[dict[str, Any]], asked: list[Told]) -> dict[int, list[dict[str, Any]]]:
    """The messages by the ``n`` that each of them names, in their order. One that names none fails."""
    by_id = {(type(told.id), told.id): told.n for told in asked}
    grouped: dict[int, list[dict[str, Any]]] = {told.n: [] for told in asked}
    for message in messages:
        match message.get("method"):
            case "notifications/progress":
                n = int(message["params"]["message"])
            case "notifications/message":
                n = message["params"]["data"]["n"]
            case _:
                n = by_id[type(message["id"]), message["id"]]
        grouped[n].append(message)
    return grouped


def check(messages: list[dict[str, Any]], told: Told) -> None:
    """Its progress under its own token, its logs from its own level on, and then its own reply, and no more."""
    *notifications, reply = messages
    progress = [m["params"] for m in notifications if m["method"] == "notifications/progress"]
    assert [params["progress"] for params in progress] in ([1, 2], [2])  # where it waits, the latest value counts
    assert all(is_same(params["progressToken"], told.token) for params in progress)
    logs = [m["params"] for m in notifications if m["method"] == "notifications/message"]
    assert [(params["data"]["step"], params["level"]) for params in logs] == [
        (step, level) for step in (1, 2) for level in told.levels()
    ]
    result = reply["result"]
    assert result["structuredContent"] == {
        "n": told.n,
        "id": told.id,
        "revision": told.revision,
        "supports": told.supports,
        "token": told.token,
        "trace": told.trace_id,
    }
    assert is_same(result["structuredContent"]["id"], told.id)
    assert is_same(result["structuredContent"]["token"], told.token)
    assert ("resultType" in result, "_meta" in result) == ((True, True) if told.revision == MODERN else (False, False))
