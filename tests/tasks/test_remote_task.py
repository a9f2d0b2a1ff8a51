"""What the requestor of a task makes of the answer that names the task."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp import ProtocolViolation
from trio_mcp.protocol.types.tools import CreatedTask, CreateTaskResult
from trio_mcp.tasks.remote_task import created_state

WHOLE: dict[str, Any] = {
    "taskId": "t-1",
    "status": "working",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttl": 60000,
    "ttlMs": 60000,
}


def answer(kind: type[CreatedTask] | type[CreateTaskResult], task: dict[str, Any]) -> dict[str, Any]:
    return {"resultType": "task", **task} if kind is CreatedTask else {"task": task}


@pytest.mark.parametrize("kind", [CreatedTask, CreateTaskResult])
def test_task_that_a_server_creates_for_a_call_is_decoded_to_a_task_state(kind: Any) -> None:
    forgotten = list[str]()
    state = created_state("tools/call", answer(kind, WHOLE), kind, forgotten.append)
    assert (state.id, state.is_final, forgotten) == ("t-1", False, [])


@pytest.mark.parametrize("kind", [CreatedTask, CreateTaskResult])
@pytest.mark.parametrize(
    ("wrong", "cancelled"), [({"status": 5}, ["t-1"]), ({"taskId": 5}, []), ({"taskId": None}, [])]
)
def test_client_cancels_a_created_task_if_the_rest_of_the_result_is_invalid(
    kind: Any, wrong: dict[str, Any], cancelled: list[str]
) -> None:
    forgotten = list[str]()
    with pytest.raises(ProtocolViolation, match="tools/call"):
        created_state("tools/call", answer(kind, {**WHOLE, **wrong}), kind, forgotten.append)
    assert forgotten == cancelled
