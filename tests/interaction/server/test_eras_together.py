"""Concurrent legacy and modern requests on one connection don't mix."""

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
ROOM = {"max_in_flight": 2 * EACH, "max_parked": EACH, "max_connections": 8 * EACH}  # half of those for one address
LEGACY_CAPABILITIES: dict[str, Any] = {"roots": {}, "sampling": {}}


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
    def of(
        cls,
        client: RawClient,
        tool: str,
        n: int,
        revision: str,
        capabilities: dict[str, Any],
        *,
        later: bool = False,
        **more: Any,
    ) -> Told:
        """Where one era has a number, the other has the same digits as text. ``later``: of the second round."""
        is_modern = revision == MODERN
        number = n + later * EACH
        has_number = (n % 2 == 0) is is_modern
        request_id, token = (number, f"{number}") if has_number else (f"{number}", number)
        level = LEVELS[(n // 4 + later) % 4] if is_modern else "warning"
        trace_id = f"{number + 1:031x}{int(is_modern)}"
        meta: dict[str, Any] = {"progressToken": token, "traceparent": f"00-{trace_id}-{n + 1:016x}-01"}
        client.revision, client.capabilities = revision, capabilities
        if is_modern and level is not None:
            meta[META_PREFIX + "logLevel"] = level
        name = n if is_modern else -n - 1
        arguments = {"n": name, **({"together": 2 * EACH} if tool == "account" else {})}
        message = client.message("tools/call", {"name": tool, "arguments": arguments, **more}, meta=meta, id=request_id)
        return cls(name, revision, request_id, token, level, sorted(capabilities), trace_id, message)

    def levels(self) -> list[str]:
        """What passes, for each step."""
        return [] if self.level is None else [name for name, rank in RANKS.items() if rank >= RANKS[self.level]]


def ask_all(client: RawClient) -> list[Told]:
    """A thousand requests of each era, in no order, all of them sent before any can be answered."""
    asked = [Told.of(client, "account", n, LATEST_LEGACY, {"roots": {}}) for n in range(EACH)]
    asked += [Told.of(client, "account", n, MODERN, CAPABILITIES[n % 4]) for n in range(EACH)]
    send_all(client, asked)
    return asked


def send_all(client: RawClient, asked: list[Told]) -> None:
    """In no order."""
    random.Random(4).shuffle(asked)
    for told in asked:
        client.send(told.message)


def read_all(client: RawClient, replies: int) -> None:
    """Read up to the last reply."""
    client.forget()
    while replies:
        received = client.receive()
        assert isinstance(received, dict)
        replies -= "method" not in received


@pytest.mark.parametrize("transport", ["stdio", "websocket", "http"])
def test_each_of_a_thousand_concurrent_requests_per_revision_keeps_its_log_level_and_capabilities(start: Start) -> None:
    with start(limits=ROOM, revision=LATEST_LEGACY, capabilities={"roots": {}}) as client:
        client.result(client.request("logging/setLevel", {"level": "warning"}))
        asked = ask_all(client)
        read_all(client, len(asked))
        assert client.finish() == 0
        assert client.stderr() == ""
        grouped = group(client.messages, asked)
        for told in asked:
            check(grouped[told.n], told)


@pytest.mark.parametrize("transport", ["stdio", "websocket", "http"])
def test_each_of_a_thousand_concurrent_handlers_per_revision_gets_its_own_sampling_answer(start: Start) -> None:
    with start(limits=ROOM, revision=LATEST_LEGACY, capabilities=LEGACY_CAPABILITIES) as client:
        client.result(client.request("logging/setLevel", {"level": "warning"}))
        client.forget()
        legacy = [Told.of(client, "confer", n, LATEST_LEGACY, LEGACY_CAPABILITIES) for n in range(EACH)]
        modern = [Told.of(client, "confer", n, MODERN, {"sampling": {}}) for n in range(EACH)]
        send_all(client, legacy + modern)
        while len(client.messages) < 2 * EACH:  # until all have asked: nothing else is said before
            client.receive()
        by_id = {(type(told.id), told.id): told for told in modern}
        replies: list[dict[str, Any]] = []
        again: list[Told] = []
        for message in client.messages:
            if message.get("method") == "sampling/createMessage":
                n = int(message["params"]["messages"][0]["content"]["text"])
                replies.append({"jsonrpc": "2.0", "id": message["id"], "result": answer_to(n)})
            else:
                told = by_id.pop((type(message["id"]), message["id"]))
                again.append(second_round(client, told, message["result"]))
        assert (len(replies), by_id) == (EACH, {})
        replies += [told.message for told in again]
        random.Random(5).shuffle(replies)
        for message in replies:
            client.send(message)
        read_all(client, 2 * EACH)
        assert client.finish() == 0
        assert client.stderr() == ""
        grouped = group(client.messages, legacy + again)
        for told in legacy + again:
            check(grouped[told.n], told, answer=f"model {told.n}")
        begun = [entry["call"] for entry in client.journal.entries("asks", tool="confer")]
        assert sorted(begun) == sorted(told.n for told in legacy + again), "none ran twice"


def answer_to(n: int) -> dict[str, Any]:
    """Whose it is can be seen."""
    return {"role": "assistant", "content": {"type": "text", "text": "!"}, "model": f"model {n}"}


def second_round(client: RawClient, told: Told, asked: dict[str, Any]) -> Told:
    """The same call again, with the answer, under another id, token, level and trace and with other capabilities."""
    ((key, question),) = asked["inputRequests"].items()
    assert question["params"]["messages"][0]["content"]["text"] == str(told.n)
    more = {"inputResponses": {key: answer_to(told.n)}, "requestState": asked["requestState"]}
    capabilities = {"sampling": {}, **({"elicitation": {"form": {}}} if told.n % 2 else {})}
    return Told.of(client, "confer", told.n, MODERN, capabilities, later=True, **more)


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


def check(messages: list[dict[str, Any]], told: Told, answer: str | None = None) -> None:
    """Its progress under its own token, its logs from its own level on, and then its own reply, and no more. One
    that got an ``answer`` has told things only after it."""
    *notifications, reply = messages
    progress = [m["params"] for m in notifications if m["method"] == "notifications/progress"]
    steps = (1, 2) if answer is None else (2,)
    # Where progress waits for the wire, the latest value counts.
    assert [params["progress"] for params in progress] in ([*steps], [2])
    assert all(is_same(params["progressToken"], told.token) for params in progress)
    logs = [m["params"] for m in notifications if m["method"] == "notifications/message"]
    assert [(params["data"]["step"], params["level"]) for params in logs] == [
        (step, level) for step in steps for level in told.levels()
    ]
    result = reply["result"]
    assert result["structuredContent"] == {
        "n": told.n,
        "id": told.id,
        "revision": told.revision,
        "supports": told.supports,
        "token": told.token,
        "trace": told.trace_id,
        **({} if answer is None else {"answer": answer}),
    }
    assert is_same(result["structuredContent"]["id"], told.id)
    assert is_same(result["structuredContent"]["token"], told.token)
    assert ("resultType" in result, "_meta" in result) == ((True, True) if told.revision == MODERN else (False, False))
