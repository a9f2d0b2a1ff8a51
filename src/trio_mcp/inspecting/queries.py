"""Queries of pages: lists, completions, tasks and the like, each a function of the client and of the request of a page,
with an answer that is plain data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, cast

import trio

from ..client.client import Client
from ..client.listing import collect
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.types.notifications import LogLevel
from ..protocol.types.prompts import PromptReference, ResourceTemplateReference
from ..tasks.task_state import TaskState
from .runs import cut

MOST_LISTED: Final = 5000
"""Tools, resources, ... of one list that are shown."""
_MOST_TASKS: Final = 200


class InvalidPageRequest(ValueError):
    """A page asks for something that makes no sense, or not now. The message is for the user."""


async def list_offers(client: Client, asked: JSONObject) -> JSONObject:
    """Return a list of the server, up to a bound, and what is wrong with it. Raises as a call if nothing came."""
    lists: dict[Any, Callable[[], AsyncIterator[Any]]] = {
        "tools": client.list_tools,
        "resources": client.list_resources,
        "templates": client.list_resource_templates,
        "prompts": client.list_prompts,
        "skills": client.list_skills,
    }
    kind = asked.get("kind")
    if not (isinstance(kind, str) and kind in lists):
        raise InvalidPageRequest("there is no such list")
    found = await collect(lists[kind](), limit=MOST_LISTED)
    if found.error is not None and not found.items:
        raise found.error
    items = [unstructure(item, client.revision) for item in found.items]
    return {"items": items, "more": found.problem is not None, "problem": found.remark}


async def complete(client: Client, asked: JSONObject) -> JSONObject:
    """Return suggestions for an argument of a prompt or a template."""
    refs = {"prompt": PromptReference, "template": ResourceTemplateReference}
    kind, name, argument, value = (asked.get(key) for key in ("kind", "name", "argument", "value"))
    if not all(isinstance(each, str) for each in (kind, name, argument, value)) or kind not in refs:
        raise InvalidPageRequest("a completion is of an argument, of a prompt or a template")
    found = await client.complete(refs[kind](cast("str", name)), cast("str", argument), cast("str", value))
    return {"values": [cut(each, 1000) for each in found.values[:100]]}


async def log_level(client: Client, asked: JSONObject) -> None:
    """Ask the server for logs of a level and above."""
    level: Any = asked.get("level")
    await client.set_log_level(LogLevel(level))


async def ping(client: Client, asked: JSONObject) -> JSONObject:
    """Return how many seconds a round trip takes."""
    begun = trio.current_time()
    await client.ping()
    return {"seconds": trio.current_time() - begun}


async def list_tasks(client: Client, asked: JSONObject) -> JSONObject:
    """Return the listed tasks, where the server lists any, and the ids of further tasks that were seen here."""
    listed: list[JSONObject] = []
    declared = client.server_capabilities.tasks
    if client.revision.tasks == "core" and declared is not None and declared.list is not None:
        async for state in client.list_tasks():
            if len(listed) >= _MOST_TASKS:
                break
            listed.append(_plain(state))
    return {"tasks": listed, "seen": asked["seen"]}


async def task(client: Client, asked: JSONObject) -> JSONObject:
    """Return the state of a task."""
    return _plain(await client.resume_task(_id_of(asked)).get())


async def cancel_task(client: Client, asked: JSONObject) -> None:
    """Ask the server to cancel a task."""
    await client.resume_task(_id_of(asked)).cancel()


def _id_of(asked: JSONObject) -> str:
    task: Any = asked.get("task")
    if not (isinstance(task, str) and task):
        raise InvalidPageRequest("a task has an id")
    return task


def _plain(state: TaskState) -> JSONObject:
    return {
        "id": state.id,
        "status": state.status,
        "message": None if state.message is None else cut(state.message, 500),
        "updatedAt": state.updated_at,
    }


QUERIES: Final[dict[str, Callable[[Client, JSONObject], Awaitable[Any]]]] = {
    "list": list_offers,
    "complete": complete,
    "logLevel": log_level,
    "ping": ping,
    "tasks": list_tasks,
    "task": task,
    "cancelTask": cancel_task,
}
"""The queries by their names in the requests of pages."""
