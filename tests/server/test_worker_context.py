"""WorkerContext beside RequestContext: the same members, for threads."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import trio

from trio_mcp import RequestContext, WorkerContext
from trio_mcp.types import CallerState, CallerTasks, StoredTasks, TaskContext, WorkerState, WorkerTask, WorkerTasks

MEMBERS = sorted(name for name in vars(RequestContext) if not name.startswith("_"))


def written(member: Any) -> tuple[type, str]:
    """Return the kind of a member, and its parameters and result as they are written."""
    if isinstance(member, property):
        assert member.fget is not None
        return property, str(inspect.signature(member.fget))
    return type(member), str(inspect.signature(member))


@pytest.mark.parametrize("name", MEMBERS)
def test_context_class_for_sync_handlers_has_all_attributes_of_the_one_for_async_handlers(name: str) -> None:
    assert name in vars(WorkerContext)
    expected = written(vars(RequestContext)[name])
    if name == "log":
        expected = (property, "(self) -> 'WorkerLog'")
    if name == "task":
        expected = (property, "(self) -> 'WorkerTask | None'")
    if name == "caller_tasks":
        expected = (property, "(self) -> 'WorkerTasks | None'")
    if name == "state":
        expected = (property, "(self) -> 'WorkerState'")
    assert written(vars(WorkerContext)[name]) == expected


TASK_MEMBERS = [
    (here, there, name)
    for here, there in ((TaskContext, WorkerTask), (CallerTasks, WorkerTasks), (StoredTasks, WorkerTasks))
    for name in vars(here)
    if not name.startswith("_") and (here, name) != (StoredTasks, "running")  # of the server itself
]


@pytest.mark.parametrize(("here", "there", "name"), TASK_MEMBERS)
def test_task_context_class_for_sync_handlers_has_all_attributes_of_the_async_class(
    here: type, there: type, name: str
) -> None:
    assert written(vars(there)[name]) == written(vars(here)[name])
    assert not inspect.iscoroutinefunction(vars(there)[name])


@pytest.mark.parametrize("name", [name for name in vars(CallerState) if not name.startswith("_")])
def test_caller_state_class_for_sync_handlers_has_all_attributes_of_the_async_class(name: str) -> None:
    kind, words = written(vars(CallerState)[name])
    assert written(vars(WorkerState)[name]) == (kind, words.replace("CallerState", "WorkerState"))
    assert not inspect.iscoroutinefunction(vars(WorkerState)[name])


@pytest.mark.parametrize("name", MEMBERS)
def test_context_class_for_sync_handlers_has_no_async_methods(name: str) -> None:
    assert not inspect.iscoroutinefunction(vars(WorkerContext)[name])


def test_context_of_a_sync_handler_returns_the_values_of_the_request_context() -> None:
    class Named(RequestContext):
        __slots__ = ()

        @property
        def request_id(self) -> str:
            return "seven"

        @property
        def input_responses(self) -> dict[str, dict[str, Any]]:
            return {"name": {"action": "accept"}}

        @property
        def request_state(self) -> str:
            return "3"

        def client_supports(self, capability: str) -> bool:
            return capability == "roots"

    known = Named()
    context = WorkerContext(known)
    plain = ("revision", "session_id", "meta", "trace", "headers", "auth", "stateless", "lifespan")
    assert {name: getattr(context, name) for name in plain} == {name: getattr(known, name) for name in plain}
    assert context.request_id == "seven"
    assert context.is_resubmit
    assert context.has_input_response("name")
    assert not context.has_input_response("age")
    assert context.input_response_as(dict[str, str], "name") == {"action": "accept"}
    assert context.request_state_as(int) == 3
    assert context.client_supports("roots")
    assert not context.client_supports("sampling")
    assert context.no_channel().code == known.no_channel().code
    assert isinstance(context.cancel_scope, trio.CancelScope)
    with pytest.raises(RuntimeError, match="no nursery"):
        _ = context.nursery
