"""What events carry, and how notifications wait."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.peers import client_of

from trio_mcp.jsonrpc.messages import Notification
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.state.events import Ignored, NotificationReceived, PackedNotification


@pytest.mark.parametrize("params", [{}, {"a": [1, {"ü": None}], "_meta": {"b": 1.5}}])
def test_a_notification_that_was_kept_as_text_is_what_it_was(params: dict[str, Any]) -> None:
    event = client_of(LATEST_LEGACY).receive(Notification("notifications/resources/list_changed", params))
    assert isinstance(event, NotificationReceived)
    packed = event.packed()
    assert isinstance(packed, PackedNotification)
    assert type(packed.text) is bytes
    assert packed.method is event.method
    assert packed.unpacked() == event
    assert packed.unpacked().params is not event.params


def test_notification_keeps_the_call_that_was_noted_while_it_waits_as_text() -> None:
    event = client_of(LATEST_LEGACY).receive(Notification("notifications/resources/list_changed", {}))
    assert isinstance(event, NotificationReceived)
    assert event.served is None
    event.note_call("a call")
    assert event.served == "a call"
    assert event.packed().unpacked().served == "a call"


def test_what_is_ignored_is_not_worth_a_note_unless_said() -> None:
    assert not Ignored("late").noteworthy
    assert Ignored("wrong", noteworthy=True).noteworthy
