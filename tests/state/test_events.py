"""What events carry, and how notifications wait."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.peers import client_of

from trio_mcp.jsonrpc.messages import Notification
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.state.events import Ignored, NotificationReceived, PackedNotification


@pytest.mark.parametrize("params", [{}, {"a": [1, {"ü": None}], "_meta": {"b": 1.5}}])
def test_notification_packed_into_bytes_equals_the_original_after_unpacking(params: dict[str, Any]) -> None:
    event = client_of(LATEST_LEGACY).receive(Notification("notifications/resources/list_changed", params))
    assert isinstance(event, NotificationReceived)
    packed = event.packed()
    assert isinstance(packed, PackedNotification)
    assert type(packed.text) is bytes
    assert packed.method is event.method
    assert packed.unpacked() == event
    assert packed.unpacked().params is not event.params


def test_notification_that_was_packed_into_bytes_still_refers_to_the_call_it_belongs_to() -> None:
    event = client_of(LATEST_LEGACY).receive(Notification("notifications/resources/list_changed", {}))
    assert isinstance(event, NotificationReceived)
    assert event.served is None
    event.note_call("a call")
    assert event.served == "a call"
    assert event.packed().unpacked().served == "a call"


def test_event_for_an_ignored_message_is_not_logged_as_a_warning_by_default() -> None:
    assert not Ignored("late").noteworthy
    assert Ignored("wrong", noteworthy=True).noteworthy
