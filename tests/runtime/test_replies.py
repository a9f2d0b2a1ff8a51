"""What a reply line says: of results, of errors that are meant for the peer, and of failures that are not."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.state.peers import accepted, modern, server_of

from trio_mcp.jsonrpc.errors import INTERNAL_ERROR, CodedError, UnsendableResult
from trio_mcp.jsonrpc.messages import ErrorResponse, Request
from trio_mcp.protocol.errors import CapabilityMissing, MethodUnavailable
from trio_mcp.protocol.meta import SERVER_INFO
from trio_mcp.protocol.revisions import LATEST_LEGACY, LATEST_MODERN, REVISIONS, Revision
from trio_mcp.protocol.types.content import AudioContent, TextContent
from trio_mcp.protocol.types.input_required import InputRequiredResult
from trio_mcp.protocol.types.tools import CallToolResult, ToolError
from trio_mcp.runtime.replies import Replies, error_line
from trio_mcp.state.requests import InboundRequest

INFO = {"name": "s", "version": "1"}


def request(
    method: str = "tools/call", revision: Revision = LATEST_LEGACY, request_id: int | str = 7
) -> InboundRequest:
    params = {"name": "add", "uri": "x:1"}
    if revision.handshake:
        return accepted(server_of(revision).receive(Request(request_id, method, params)))
    return accepted(server_of(revision).receive(modern(request_id, method, **params)))


def result(text: str = "done", **more: Any) -> CallToolResult:
    return CallToolResult([TextContent(text)], **more)


def said(line: bytes) -> Any:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)


def failed(line: bytes) -> str:
    """The text of a result that tells of a failure."""
    reply = said(line)["result"]
    assert reply["isError"] is True
    (content,) = reply["content"]
    return content["text"]


@pytest.fixture
def replies() -> Replies:
    return Replies({LATEST_MODERN: INFO})


# Results


@pytest.mark.parametrize("request_id", [7, "7", 0])
def test_result_is_sent_with_the_id_of_its_request(replies: Replies, request_id: int | str) -> None:
    reply = said(replies.result(request(request_id=request_id), result()))
    assert reply == {"jsonrpc": "2.0", "id": request_id, "result": {"content": [{"type": "text", "text": "done"}]}}


def test_modern_result_contains_result_type_and_server_info(replies: Replies) -> None:
    reply = said(replies.result(request(revision=LATEST_MODERN), result()))["result"]
    assert (reply["resultType"], reply["_meta"]) == ("complete", {SERVER_INFO: INFO})
    reply = said(replies.result(request(revision=LATEST_MODERN), InputRequiredResult(request_state="s")))["result"]
    assert (reply["resultType"], reply["_meta"]) == ("input_required", {SERVER_INFO: INFO})


def test_result_keeps_the_meta_set_by_the_handler_and_server_info_is_added(replies: Replies) -> None:
    reply = said(replies.result(request(revision=LATEST_MODERN), result(meta={"a": 1, SERVER_INFO: {}})))["result"]
    assert reply["_meta"] == {"a": 1, SERVER_INFO: INFO}
    reply = said(replies.result(request(), result(meta={"a": 1})))["result"]
    assert reply["_meta"] == {"a": 1}


def test_result_has_no_server_info_if_none_is_configured() -> None:
    reply = said(Replies({}).result(request(revision=LATEST_MODERN), result()))["result"]
    assert (reply["resultType"], "_meta" in reply) == ("complete", False)


def test_result_with_an_illegal_meta_key_is_sent_and_logged(replies: Replies, caplog: pytest.LogCaptureFixture) -> None:
    legal = said(replies.result(request(), result(meta={"com.example/a": 1})))
    assert (legal["result"]["_meta"], caplog.records) == ({"com.example/a": 1}, [])
    reply = said(replies.result(request(), result(meta={"a b": 1})))
    assert reply["result"]["_meta"] == {"a b": 1}
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("the result of tools/call (request 7): 'a b' is not a valid key of _meta")


# Results that cannot be sent


def test_result_that_the_revision_cannot_express_is_sent_as_an_error_with_the_reason(
    replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    asked = request(revision=REVISIONS["2024-11-05"])
    told = failed(replies.result(asked, CallToolResult([AudioContent(b"", "audio/wav")])))
    assert told.startswith("internal error in tool add: ")
    assert "2024-11-05" in told
    assert (asked.failed, asked.error) == (True, None)
    [record] = caplog.records
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert record.getMessage().startswith("tools/call (request 7) returned something that cannot be sent: ")


@pytest.mark.parametrize("value", [float("nan"), {"\ud800": float("nan")}, object()])
def test_result_that_json_cannot_encode_is_sent_as_an_error_without_details(
    replies: Replies, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told = failed(replies.result(request(), result(structured_content={"a": value})))
    assert told == "internal error in tool add: the result cannot be sent as JSON"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_result_nested_too_deeply_is_sent_as_an_error_without_details(replies: Replies) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    told = failed(replies.result(request(), result(structured_content={"a": deep})))
    assert told == "internal error in tool add: the result cannot be sent as JSON"


def test_result_that_contains_an_object_of_a_wrong_class_is_sent_as_an_error(
    replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    assert failed(replies.result(request(), "done")) == "internal error in tool add"
    [record] = caplog.records
    assert record.getMessage() == "tools/call (request 7) failed in 'add'"
    assert record.exc_info is not None


# Errors


@pytest.mark.parametrize(
    ("revision", "code", "sent"),
    [
        (LATEST_LEGACY, -32021, -32600),
        (LATEST_MODERN, -32021, -32021),
        (LATEST_MODERN, -32042, -32603),
        (LATEST_LEGACY, -32042, -32042),
        (LATEST_LEGACY, 7, 7),
    ],
)
def test_error_response_has_the_error_code_of_the_revision(
    replies: Replies, revision: Revision, code: int, sent: int
) -> None:
    asked = request(revision=revision)
    error = CodedError(code, "no", {"a": 1})
    assert said(replies.error(asked, error))["error"] == {"code": sent, "message": "no", "data": {"a": 1}}
    assert asked.error is not None
    assert asked.error is not error, "its traceback refers to the request"
    assert (asked.error.code, asked.error.message, asked.error.data) == (sent, "no", {"a": 1})
    assert not asked.failed


def test_error_whose_data_cannot_be_encoded_is_sent_as_an_internal_error() -> None:
    line = error_line(ErrorResponse(7, 3, "no", {"a": float("nan")}))
    told = {"code": 3, "message": "Internal error: the error cannot be sent as JSON"}
    assert said(line) == {"jsonrpc": "2.0", "id": 7, "error": told}
    assert said(error_line(ErrorResponse(None, 3, "no")))["error"] == {"code": 3, "message": "no"}


# Failures of handlers


def test_coded_error_is_sent_unchanged_and_not_logged(replies: Replies, caplog: pytest.LogCaptureFixture) -> None:
    for failure in (CodedError(3, "no"), ExceptionGroup("", [CodedError(3, "no")])):
        assert said(replies.failure(request(), failure))["error"] == {"code": 3, "message": "no"}
    assert caplog.records == []


def test_tool_error_is_sent_as_a_result_with_its_message(replies: Replies, caplog: pytest.LogCaptureFixture) -> None:
    asked = request()
    assert failed(replies.failure(asked, ToolError("no such file"))) == "no such file"
    assert (asked.failed, asked.error, caplog.records) == (True, None, [])


def test_tool_error_raised_outside_a_tool_is_answered_as_an_unexpected_exception(
    replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    asked = request("resources/read")
    reply = said(replies.failure(asked, ToolError("no such file")))
    assert reply["error"] == {"code": INTERNAL_ERROR, "message": "Internal error"}
    assert [record.getMessage() for record in caplog.records] == ["resources/read (request 7) failed in 'x:1'"]
    assert asked.error is not None
    assert not asked.failed


def test_unexpected_exception_is_logged_and_not_sent(replies: Replies, caplog: pytest.LogCaptureFixture) -> None:
    failure = LookupError("secret")
    assert failed(replies.failure(request(), failure)) == "internal error in tool add"
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "tools/call (request 7) failed in 'add'")
    assert record.exc_info is not None
    assert record.exc_info[1] is failure


def test_tool_name_and_request_id_are_truncated_in_the_log(replies: Replies, caplog: pytest.LogCaptureFixture) -> None:
    asked = request(request_id="i" * 1000)
    asked.params["name"] = "n" * 1000
    assert failed(replies.failure(asked, LookupError())) == f"internal error in tool {'n' * 200}"
    assert f"(request {'i' * 1000!r:.100})" in caplog.records[0].getMessage()


def test_call_fails_with_internal_error_if_its_handler_sends_a_request_that_the_revision_lacks(
    replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    unavailable = MethodUnavailable("roots/list", LATEST_MODERN)
    reply = said(replies.failure(request(revision=LATEST_MODERN), unavailable))
    told = f"Internal error: roots/list cannot be sent in revision {LATEST_MODERN}"
    assert reply["error"] == {"code": INTERNAL_ERROR, "message": told}
    assert caplog.records == []


def test_result_that_cannot_be_encoded_as_json_is_answered_with_an_internal_error(
    replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    told = failed(replies.failure(request(), UnsendableResult("NaN")))
    assert told == "internal error in tool add: the result cannot be sent as JSON"
    assert caplog.records[0].getMessage() == "tools/call (request 7) returned something that cannot be sent: NaN"


def test_error_response_names_all_missing_capabilities_together(replies: Replies) -> None:
    asked = request(revision=LATEST_MODERN)
    sampling, roots = (CapabilityMissing(each, LATEST_MODERN) for each in ("sampling", "roots"))
    for failure in (ExceptionGroup("", [sampling, roots]), ExceptionGroup("", [ExceptionGroup("", [roots]), sampling])):
        error = said(replies.failure(asked, failure))["error"]
        assert error["code"] == -32021
        assert error["data"] == {"requiredCapabilities": {"roots": {}, "sampling": {}}}
    error = said(replies.failure(asked, sampling))["error"]
    assert error["data"] == {"requiredCapabilities": {"sampling": {}}}


def test_missing_capability_together_with_another_exception_causes_an_internal_error(
    replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    both = ExceptionGroup("", [CapabilityMissing("roots", LATEST_MODERN), LookupError()])
    assert failed(replies.failure(request(revision=LATEST_MODERN), both)) == "internal error in tool add"
    assert len(caplog.records) == 1


# Exposed


def test_exception_is_sent_with_its_type_and_text_if_expose_errors_is_on() -> None:
    replies = Replies({}, expose_errors=True)
    assert failed(replies.failure(request(), LookupError("why"))) == (
        "internal error in tool add: LookupError: why"
    )  # fmt: skip
    group = ExceptionGroup("two", [LookupError("why"), ExceptionGroup("one", [ValueError("no")])])
    assert failed(replies.failure(request(), group)) == (
        "internal error in tool add: LookupError: why; ValueError: no"
    )  # fmt: skip
    error = said(replies.failure(request("resources/read"), LookupError("why")))["error"]
    assert error["message"] == "Internal error: LookupError: why"


def test_exception_sent_with_expose_errors_is_truncated_and_can_always_be_encoded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "trio_mcp")  # reports of tests are sent, too, and cannot have what is logged
    replies = Replies({}, expose_errors=True)
    told = failed(replies.failure(request(), LookupError("\ud800" + "x" * 10_000)))
    begin = "internal error in tool add: LookupError: \\ud800"
    assert told.startswith(begin + "x")
    assert len(told) == len("internal error in tool add: ") + 4000 + len("\\ud800") - 1


def test_error_contains_the_reason_why_a_result_cannot_be_sent_if_expose_errors_is_on() -> None:
    replies = Replies({}, expose_errors=True)
    told = failed(replies.result(request(), result(structured_content={"a": float("nan")})))
    assert told.startswith("internal error in tool add: trio_mcp")
