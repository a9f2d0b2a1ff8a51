"""The raw HTTP client of the benchmarks."""

import json
import socket

import pytest
from benchmarks.driver.checks import Mismatch
from benchmarks.driver.http import Connection, Response, request, size_of

WHOLE = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"id":1}'
PARTS = (
    b"id: 1\r\ndata:\r\n\r\n: waiting\n\n",
    b'event: message\ndata: {"id"',
    b":0}\n\nda",
    b'ta:{"id":\ndat',
    b'a: "0\\r\\n"}\n\n',
    b"",
)
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(
    b"%x\r\n%s\r\n" % (len(part), part) for part in PARTS
)


def test_benchmark_http_request_has_content_length_only_with_a_body() -> None:
    assert request(80, "GET", {"Accept": "*/*"}) == b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:80\r\nAccept: */*\r\n\r\n"
    assert request(80, "POST", {}, b"{}") == b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:80\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("data", [WHOLE, EVENTS, b"HTTP/1.1 202 Accepted\r\ndate: today\r\n\r\n"], ids=len)
def test_benchmark_http_response_is_complete_with_its_last_byte(data: bytes) -> None:
    assert [size_of(data[:size]) for size in range(len(data))] == [0] * len(data)
    assert size_of(bytearray(data)) == len(data)


def test_benchmark_http_parser_reads_a_json_response_as_one_message() -> None:
    response = Response.of(WHOLE)
    assert (response.status, response.messages()) == (200, [{"id": 1}])


def test_benchmark_http_parser_ignores_sse_events_without_data_and_joins_data_lines() -> None:
    assert Response.of(EVENTS).messages() == [{"id": 0}, {"id": "0\r\n"}]


def test_benchmark_http_parser_returns_no_message_for_an_incomplete_sse_event() -> None:
    begun = EVENTS[: EVENTS.index(b"dat\r\n")]
    assert Response.of(begun).messages() == [{"id": 0}]


def test_benchmark_http_parser_returns_no_messages_for_a_response_without_a_body() -> None:
    assert Response.of(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").messages() == []


def test_benchmark_http_response_with_another_status_raises_mismatch_with_its_body() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Connection(listener.getsockname()[1]) as connection:
        peer, _ = listener.accept()
        body = json.dumps({"error": "no such session"}).encode()
        peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        with pytest.raises(Mismatch, match="no such session"):
            connection.ask(b"GET / HTTP/1.1\r\n\r\n")
        peer.close()


def test_benchmark_http_client_raises_eof_error_if_the_connection_closes_within_a_response() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Connection(listener.getsockname()[1]) as connection:
        peer, _ = listener.accept()
        peer.sendall(b"HTTP/1.1 200 OK\r\n")
        peer.close()
        with pytest.raises(EOFError, match="200 OK"):
            connection.whole()
