"""trio-mcp's client runs tasks at servers of other makes, over stdio and over HTTP.

``mcp1`` and ``typescript`` have the tasks of 2025-11-25, where the caller decides; ``fastmcp`` has the extension, where
the server does. One child per server serves all tests of this file; each test talks to the live connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
from tests.peers.conversations import Conversation, conversation
from tests.peers.http_servers import HttpServers
from tests.peers.journals import Journal
from tests.peers.tasks.makes import Makes
from tests.peers.websocket.children import environment

from trio_mcp import PeerError, Progress, TaskCancelled, TaskSettings, open_http, open_stdio

PEERS = [(make, over) for make in ("mcp1", "typescript", "fastmcp") for over in ("stdio", "http")]
QUESTIONS = TaskSettings(poll_interval=0.1)
"""Tasks that a server of 2025-11-25 may make of what it asks."""

core_only = pytest.mark.parametrize("peer", PEERS[:4], indirect=True, ids="-".join)
extension_only = pytest.mark.parametrize("peer", PEERS[4:], indirect=True, ids="-".join)


@pytest.fixture(scope="module", params=PEERS, ids="-".join)
def peer(
    request: pytest.FixtureRequest, makes: Makes, over_http: HttpServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversation]:
    make, over = request.param
    command = makes.server(make)
    era = "modern" if make == "fastmcp" else "legacy"
    if over == "http":
        running = over_http.get(make, command)
        opens = partial(open_http, running.url, question_tasks=QUESTIONS)
        with conversation(make, era, running.journal, opens, over) as talk:
            yield talk
        return
    journal = Journal(tmp_path_factory.mktemp("tasks") / "journal")
    opens = partial(open_stdio, command, env=environment(journal), question_tasks=QUESTIONS)
    with conversation(make, era, journal, opens) as talk:
        yield talk


async def start(peer: Conversation, tool: str, **arguments: Any) -> Any:
    return await peer.client.start_task(tool, arguments)


async def whole(peer: Conversation, tool: str, **arguments: Any) -> tuple[list[str], Any]:
    """The statuses of a task, as they are polled, and its result."""
    task = await start(peer, tool, **arguments)
    seen: list[str] = []
    while True:
        state = await task.get()
        if state.status not in seen:
            seen.append(state.status)
        if state.is_final or state.status == "input_required":
            break
        await trio.sleep(0.05)
    return seen, await task.result()


async def last_status(peer: Conversation, task_id: str) -> str:
    """The status of a task that ends, and whose server may take its time to say so."""
    while True:
        state = await peer.client.resume_task(task_id).get()
        if state.is_final:
            return state.status
        await trio.sleep(0.05)


# Calls that are tasks


def test_call_tool_returns_the_result_if_the_tool_runs_as_a_task(peer: Conversation) -> None:
    assert peer.text("work", steps=2) == "2 steps"


def test_status_messages_of_a_task_arrive_as_progress_of_its_call(peer: Conversation) -> None:
    seen: list[Progress] = []

    async def work() -> None:
        task = await start(peer, "work", steps=5)
        await task.result(on_progress=seen.append)

    peer.run(work)
    messages = [progress.message for progress in seen if progress.message is not None]
    assert messages
    assert set(messages) <= {f"step {step}" for step in range(1, 6)}


def test_tool_without_task_support_is_called_without_a_task(peer: Conversation) -> None:
    assert peer.text("plain") == "plain"


@core_only
def test_cancelled_call_of_a_tool_that_requires_a_task_cancels_the_task(peer: Conversation) -> None:
    """The listing of a tool decides (2025-11-25 tasks, Tool-Level Negotiation). Both SDKs refuse a plain call by a
    failure of the tool, which nobody can tell from another."""

    async def called_and_left() -> list[str]:
        ids: list[str] = []
        with trio.CancelScope() as scope:

            def started(task_id: str) -> None:
                ids.append(task_id)
                scope.cancel()

            await peer.client.call_tool("hang", on_task=started)
        return [await last_status(peer, task_id) for task_id in ids]

    assert peer.run(called_and_left) == ["cancelled"]


def test_tool_without_task_support_returns_its_result_instead_of_a_task(peer: Conversation) -> None:
    async def plain() -> Any:
        task = await start(peer, "plain")
        assert task.id is None
        return await task.result()

    result = peer.run(plain)
    assert (result.text, bool(result.is_error)) == ("plain", False)


# Tasks in the hands of the caller


def test_task_status_goes_from_working_to_completed_with_a_result(peer: Conversation) -> None:
    seen, result = peer.run(partial(whole, peer, "work", steps=3))
    assert (seen, result.text) == (["working", "completed"], "3 steps")


def test_task_state_contains_the_ttl_that_the_client_requested_or_the_server_chose(peer: Conversation) -> None:
    """That of a server which decides on tasks is its own."""

    async def state(ttl: float | None) -> Any:
        task = await peer.client.start_task("work", {"steps": 1}, ttl=ttl)
        return await task.get()

    core = peer.name != "fastmcp"
    assert peer.run(state, 60).ttl == (60 if core else 900)
    assert peer.run(state, None).ttl == (None if core else 900)


def test_elicitation_from_a_task_is_answered_by_the_client_handler(peer: Conversation) -> None:
    before = len(peer.elicitations)
    seen, result = peer.run(partial(whole, peer, "ask_user"))
    assert (seen[-1], result.text) == ("input_required", "accept green")
    assert [question.message for question in peer.elicitations[before:]] == ["Which colour?"]


@core_only
def test_sampling_request_from_a_task_is_answered_by_the_client_handler(peer: Conversation) -> None:
    _, result = peer.run(partial(whole, peer, "ask_model"))
    assert result.text == "deep-thought: forty-two"


@core_only
@pytest.mark.parametrize(
    ("tool", "answer"), [("elicit_as_task", "accept green"), ("sample_as_task", "deep-thought: forty-two")]
)
def test_client_answers_elicitation_and_sampling_by_a_task_if_the_server_requests_a_task(
    peer: Conversation, tool: str, answer: str
) -> None:
    assert peer.text(tool) == answer


def test_tool_failure_is_returned_as_the_result_of_its_task(peer: Conversation) -> None:
    _, result = peer.run(partial(whole, peer, "fail"))
    assert (result.is_error, result.text) == (True, "no luck today")


def test_result_method_of_a_started_task_raises_the_error_of_the_task(peer: Conversation) -> None:
    """mcp1 keeps its words alone. The TypeScript SDK keeps results alone, so that its author made one of the error."""

    async def crash() -> Any:
        task = await start(peer, "crash")
        return await task.result()

    if peer.name == "typescript":
        result = peer.run(crash)
        assert (result.is_error, result.text) == (True, "broken")
        return
    with pytest.raises(PeerError, match="broken") as caught:
        peer.run(crash)
    assert caught.value.code == (-32099 if peer.name == "fastmcp" else -32603)


# Cancelling


def test_cancelled_task_has_status_cancelled_and_raises_on_result(peer: Conversation) -> None:
    async def cancel() -> str:
        task = await start(peer, "hang")
        await task.cancel()
        state = await task.get()
        with pytest.raises((TaskCancelled, PeerError)):
            await task.result()
        return state.status

    assert peer.run(cancel) == "cancelled"


def test_cancelled_task_can_be_cancelled_again_without_an_error(peer: Conversation) -> None:
    async def cancel() -> None:
        task = await start(peer, "hang")
        await task.cancel()
        await task.cancel()

    peer.run(cancel)


@extension_only
def test_cancelled_call_cancels_its_task_and_handler(peer: Conversation) -> None:
    async def leave() -> None:
        with trio.CancelScope() as scope:
            await peer.client.call_tool("hang", on_progress=lambda _: scope.cancel())

    before = len(peer.journal.lines)
    peer.run(leave)
    peer.journal.wait_for("hang ended", after=before)


# Which tasks there are


@core_only
def test_list_tasks_returns_every_started_task_across_pages(peer: Conversation) -> None:
    """mcp1 lists them in one page, the TypeScript SDK ten by ten."""

    async def listed() -> bool:
        ids = [(await start(peer, "fail")).id for _ in range(12)]
        return set(ids) <= {state.id async for state in peer.client.list_tasks()}

    assert peer.run(listed)


def test_getting_an_unknown_task_raises_invalid_params(peer: Conversation) -> None:
    async def get() -> None:
        await peer.client.resume_task("no such task").get()

    with pytest.raises(PeerError) as caught:
        peer.run(get)
    assert caught.value.code == -32602


def test_resume_task_with_a_task_id_returns_the_result(peer: Conversation) -> None:
    async def resume() -> str:
        task = await start(peer, "work", steps=2)
        return (await peer.client.resume_task(task.id).result()).text

    assert peer.run(resume) == "2 steps"


def test_connection_shared_by_all_tests_still_serves_calls_after_the_last_test(peer: Conversation) -> None:
    assert peer.text("plain") == "plain"
