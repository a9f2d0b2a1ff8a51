"""Every message of every revision survives encoding and decoding."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocol.examples import CASES, full, minimal, restricted

from trio_mcp.jsonrpc.codec import decode, frame_notification
from trio_mcp.jsonrpc.messages import Notification
from trio_mcp.protocol.converters import structure, unstructure
from trio_mcp.protocol.errors import URLElicitationRequiredData
from trio_mcp.protocol.revisions import LATEST_MODERN, REVISIONS, Revision
from trio_mcp.protocol.types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams
from trio_mcp.protocol.types.input_required import InputRequest, InputRequiredResult
from trio_mcp.protocol.types.sampling import CreateMessageParams, CreateMessageResult, ListRootsResult

# Objects inside other messages: input requests and responses of modern requests, and the data of errors.
INSIDE: list[tuple[Revision, str, Any]] = [
    *(
        (LATEST_MODERN, "input", kind)
        for kind in (
            InputRequiredResult,
            InputRequest,
            CreateMessageParams,
            CreateMessageResult,
            ElicitFormParams,
            ElicitURLParams,
            ElicitResult,
            ListRootsResult,
        )
    ),
    (REVISIONS["2025-11-25"], "error", URLElicitationRequiredData),
]


def over_the_wire(value: Any, revision: Revision) -> Any:
    message = decode(frame_notification("x", unstructure(value, revision)))
    assert isinstance(message, Notification)
    return message.params


def _name(case: tuple[Revision, str, Any]) -> str:
    revision, method, kind = case
    return f"{revision.name} {method} {getattr(kind, '__name__', kind)}"


@pytest.mark.parametrize("case", CASES + INSIDE, ids=_name)
def test_minimal_message_is_unchanged_after_writing_and_reading_in_each_revision(
    case: tuple[Revision, str, Any],
) -> None:
    revision, _, kind = case
    said = minimal(kind, revision)
    assert structure(over_the_wire(said, revision), kind) == restricted(said, revision)


@pytest.mark.parametrize("case", CASES + INSIDE, ids=_name)
def test_full_message_keeps_all_fields_of_the_revision_after_writing_and_reading(
    case: tuple[Revision, str, Any],
) -> None:
    revision, _, kind = case
    said = full(kind, revision)
    assert structure(over_the_wire(said, revision), kind) == restricted(said, revision)


@pytest.mark.parametrize("case", CASES + INSIDE, ids=_name)
def test_unknown_fields_sent_by_a_newer_peer_are_ignored(case: tuple[Revision, str, Any]) -> None:
    revision, _, kind = case
    wire = over_the_wire(minimal(kind, revision), revision)
    heard = structure({**wire, "notInventedYet": {"at": ["all"]}}, kind)
    if isinstance(heard, CreateMessageResult):
        assert heard.extra == {"notInventedYet": {"at": ["all"]}}  # the one class that keeps what it does not know
    elif kind != dict[str, Any]:
        assert heard == structure(wire, kind)
