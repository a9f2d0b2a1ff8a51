"""Tasks of the extension over HTTP: headers, statuses, principals, streams, and tasks that outlive connections."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.serving.http.protection import bearer, issued, protected
from tests.serving.http.raw import META, Answer, Connection, Endpoint, modern, served
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Server, TaskSettings

EXTENSION = "io.modelcontextprotocol/tasks"
KNOWS = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}}}
KNOWS_NOTHING = {"io.modelcontextprotocol/clientCapabilities": META["io.modelcontextprotocol/clientCapabilities"]}


def working(**bounds: Any) -> tuple[Server, trio.Event]:
    """Return a server with a tool that works until the event is set."""
    server, done = Server("working", tasks=TaskSettings(grace=0, **bounds)), trio.Event()

    @server.tool(task="required")
    async def work() -> str:
        await done.wait()
        return "done"

    return server, done


def asked(method: str, params: dict[str, Any], declared: dict[str, Any] = KNOWS) -> tuple[dict[str, str], Any]:
    headers, body = modern(method, {**params, "_meta": declared})
    return (headers if "taskId" not in params else {**headers, "Mcp-Name": params["taskId"]}), body


async def ask(endpoint: Endpoint, method: str, params: dict[str, Any], **headers: str | None) -> Answer:
    """Ask as a client that knows tasks. ``headers`` replace others; underscores stand for hyphens."""
    good, body = asked(method, params)
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    with trio.fail_after(PATIENCE):
        return await endpoint.ask("POST", {**good, **more}, body)


async def task_of(endpoint: Endpoint, **headers: str | None) -> str:
    answer = await ask(endpoint, "tools/call", {"name": "work", "arguments": {}}, **headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json"), answer
    return answer.json["result"]["taskId"]


async def test_http_task_continues_after_the_connection_of_its_call_is_closed() -> None:
    server, done = working()
    async with served(server) as endpoint:
        task = await task_of(endpoint)  # whose connection is closed
        assert (await ask(endpoint, "tasks/get", {"taskId": task})).json["result"]["status"] == "working"
        done.set()
        await wait_all_tasks_blocked()
        state = (await ask(endpoint, "tasks/get", {"taskId": task})).json["result"]
    assert state["result"]["content"][0]["text"] == "done"


async def test_anonymous_callers_at_different_addresses_have_separate_task_limits() -> None:
    server, done = working(max_running_of_caller=1)
    headers, body = asked("tools/call", {"name": "work", "arguments": {}})
    async with served(server) as endpoint:
        codes = list[int | None]()
        for address in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
            stream = await trio.open_tcp_stream("127.0.0.1", endpoint.port, local_address=address)
            answer = await Connection(stream).ask("POST", {**headers}, body)
            codes.append(answer.code if "error" in answer.json else None)
            await trio.aclose_forcefully(stream)
        assert codes == [None, -31000, None]
        done.set()
        await wait_all_tasks_blocked()


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_task_request_whose_mcp_name_header_is_not_its_task_id_gets_status_400(method: str) -> None:
    params: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
    server, _ = working()
    async with served(server) as endpoint:
        params["taskId"] = task = await task_of(endpoint)
        for wrong in ({"Mcp_Name": "other"}, {"Mcp_Name": task.swapcase()}, {"Mcp_Method": "tasks/other"}):
            answer = await ask(endpoint, method, params, **wrong)
            assert (answer.status, answer.code) == (400, -32020)
        answer = await ask(endpoint, method, params)
        assert (answer.status, answer.json["result"]["resultType"]) == (200, "complete")


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_task_request_without_the_tasks_extension_gets_status_400(method: str) -> None:
    server, _ = working()
    async with served(server) as endpoint:
        task = await task_of(endpoint)
        answer = await endpoint.ask("POST", *asked(method, {"taskId": task}, KNOWS_NOTHING))
        assert (answer.status, answer.code) == (400, -32021)
        answer = await endpoint.ask("POST", *asked("tools/call", {"name": "work"}, KNOWS_NOTHING))
        assert (answer.status, answer.code) == (400, -32021)
        assert answer.json["error"]["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        listen = {"notifications": {"taskIds": [task]}}
        answer = await endpoint.ask("POST", *asked("subscriptions/listen", listen, KNOWS_NOTHING))
        assert (answer.status, answer.code) == (400, -32021)


async def test_unknown_task_gets_status_200_with_an_error_and_unknown_task_method_gets_status_404() -> None:
    server, _ = working()
    async with served(server) as endpoint:
        answer = await ask(endpoint, "tasks/get", {"taskId": "unknown"})
        assert (answer.status, answer.code) == (200, -32602)
        for method in ("tasks/result", "tasks/list"):
            answer = await ask(endpoint, method, {})
            assert (answer.status, answer.code) == (404, -32601)


async def test_task_methods_get_status_404_on_a_server_without_task_tools() -> None:
    server = Server("plain")
    async with served(server) as endpoint:
        for method in ("tasks/get", "tasks/cancel"):
            answer = await ask(endpoint, method, {"taskId": "t"})
            assert (answer.status, answer.code) == (404, -32601)


async def test_http_task_of_another_principal_is_reported_as_unknown() -> None:
    server, _ = working()
    async with served(server, auth=protected(issued())) as endpoint:
        task = await task_of(endpoint, **bearer("alice-1"))
        for token, known in (("alice-1", True), ("alice-2", True), ("bob-1", False)):
            answer = await ask(endpoint, "tasks/get", {"taskId": task}, **bearer(token))
            assert ("result" in answer.json) is known
        unknown = await ask(endpoint, "tasks/get", {"taskId": "unknown"}, **bearer("bob-1"))
        assert answer.json == unknown.json
        cancel = await ask(endpoint, "tasks/cancel", {"taskId": task}, **bearer("bob-1"))
        assert cancel.code == -32602
        state = await ask(endpoint, "tasks/get", {"taskId": task}, **bearer("alice-2"))
        assert state.json["result"]["status"] == "working"


async def listening(endpoint: Endpoint, task: str) -> Connection:
    """Open a stream of the task, and read its acknowledgement."""
    connection = await endpoint.connect()
    headers, body = asked("subscriptions/listen", {"notifications": {"taskIds": [task]}})
    await connection.send("POST", {**headers}, body)
    head = await connection.head()
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
    acknowledged = (await connection.event()).data
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"] == {"taskIds": [task]}
    return connection


async def test_listen_stream_over_http_sends_task_states() -> None:
    server, done = working()
    async with served(server) as endpoint:
        with trio.fail_after(PATIENCE):
            connection = await listening(endpoint, await task_of(endpoint))
            told = (await connection.event()).data
            assert (told["method"], told["params"]["status"]) == ("notifications/tasks", "working")
            done.set()
            told = (await connection.event()).data
            assert told["params"]["status"] == "completed"
            assert told["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 1}
            await connection.aclose()


async def test_task_continues_after_its_listen_stream_disconnects() -> None:
    server, _ = working()
    async with served(server) as endpoint:
        with trio.fail_after(PATIENCE):
            task = await task_of(endpoint)
            connection = await listening(endpoint, task)
            await connection.aclose()
            await wait_all_tasks_blocked(0.05)
            assert server.statistics().listening == 0
            assert (await ask(endpoint, "tasks/get", {"taskId": task})).json["result"]["status"] == "working"
