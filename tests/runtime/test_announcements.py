"""Notifications of ours that belong to no request: each is sent once while it waits."""

from __future__ import annotations

import json

import pytest

from trio_mcp.jsonrpc.errors import NotSerializable
from trio_mcp.runtime import notifications
from trio_mcp.runtime.notifications import Announcements
from trio_mcp.runtime.outbox import Outbox

CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


async def written(outbox: Outbox) -> list[tuple[str, object]]:
    lines = bytes(await outbox.take()).splitlines() if outbox.size else []
    messages = [json.loads(line) for line in lines]
    return [(message["method"], message.get("params")) for message in messages]


async def test_notifications_are_sent_in_order_on_separate_lines() -> None:
    outbox = Outbox(1000)
    notices = Announcements(outbox)
    notices.put(CHANGED)
    notices.put(UPDATED, {"uri": "x:1"})
    outbox.put(b'{"method":"after"}\n')
    assert await written(outbox) == [(CHANGED, None), (UPDATED, {"uri": "x:1"}), ("after", None)]


async def test_notification_is_not_queued_if_an_equal_notification_waits_to_be_sent() -> None:
    outbox = Outbox(1000)
    notices = Announcements(outbox)
    for uri in ("x:1", "x:2", "x:1", "x:1"):
        notices.put(UPDATED, {"uri": uri})
    assert await written(outbox) == [(UPDATED, {"uri": "x:1"}), (UPDATED, {"uri": "x:2"})]


async def test_notification_is_sent_again_if_an_equal_notification_was_already_sent() -> None:
    outbox = Outbox(1000)
    notices = Announcements(outbox)
    for _ in range(3):
        notices.put(CHANGED)
        notices.put(CHANGED)
        assert await written(outbox) == [(CHANGED, None)]


async def test_notification_that_cannot_be_encoded_raises_and_is_not_queued() -> None:
    outbox = Outbox(1000)
    notices = Announcements(outbox)
    with pytest.raises(NotSerializable):
        notices.put(UPDATED, {"uri": object()})
    assert outbox.size == 0


async def test_notification_queue_remembers_a_limited_number_of_notifications_for_deduplication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifications, "_KEPT", 3)
    outbox = Outbox(1000)
    notices = Announcements(outbox)
    for number in range(30):
        notices.put(UPDATED, {"uri": f"x:{number}"})
        assert len(notices._waiting) <= 3
        assert len(await written(outbox)) == 1


async def test_queued_notifications_are_deduplicated_even_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_KEPT", 2)
    outbox = Outbox(1000)
    notices = Announcements(outbox)
    for _ in range(2):
        for number in range(5):
            notices.put(UPDATED, {"uri": f"x:{number}"})
    assert len(await written(outbox)) == 5
    notices.put(CHANGED)
    assert len(notices._waiting) == 1, "those that were written are forgotten"
