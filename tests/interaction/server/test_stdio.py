"""STD: a server in another process, over stdin and stdout."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interaction.harness import cpu_seconds, is_alive, resident_bytes, wait_until
from tests.interaction.raw_client import FIXTURE, LATEST_LEGACY, MODERN, RawClient, serving
from tests.patience import PATIENCE

ERAS = (LATEST_LEGACY, MODERN)
MIB = 2**20


@pytest.fixture(params=ERAS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RawClient]:
    with serving(tmp_path, revision=request.param) as client:
        yield client


# STD-01: the end of input


def test_std_01_idle_server_exits_when_input_is_closed(client: RawClient) -> None:
    client.ping()
    assert client.finish() == 0
    assert client.stderr() == ""
    assert [entry["event"] for entry in client.journal.entries(tool="lifespan")] == ["start", "end"]


def test_std_01_server_that_got_no_message_exits_when_its_input_is_closed(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        assert client.finish() == 0
        assert client.messages == []
        assert client.stderr() == ""


@pytest.mark.parametrize("era", ERAS)
def test_std_01_accepted_requests_can_finish_after_end_of_input_until_drain_timeout(tmp_path: Path, era: str) -> None:
    """Ruling 14: what was accepted is answered, up to the drain bound; then it is cancelled."""
    with serving(tmp_path, revision=era, limits={"drain_timeout": 3}) as client:
        client.started("sleep", {"ms": 200}, id=1)
        client.started("sleep", {"ms": 60_000}, id=2)
        client.silent_about(2)
        assert client.finish() == 0
        assert client.text(1) == "slept 200"
        (cancelled,) = client.journal.entries("cancelled", call=2)
        assert cancelled["cause"] == "shutdown"
        assert client.journal.events(2) == ["start", "cancelled", "finally"]
        assert client.journal.entries("end", tool="lifespan"), "the lifespan is left after the last request"


def test_std_01_child_process_started_by_a_handler_continues_after_the_server_ends(client: RawClient) -> None:
    grandchild = int(client.text(client.call("spawn")))
    try:
        assert client.finish() == 0
        assert is_alive(grandchild), "a server does not hunt down what its handlers started on purpose"
    finally:
        os.kill(grandchild, signal.SIGKILL)


# STD-04: the reader goes away


def test_std_04_server_whose_output_closes_cancels_handlers_and_exits_with_one_line_on_stderr(
    client: RawClient,
) -> None:
    """The answer is larger than a pipe, so its writer stands in the middle of it."""
    client.started("sleep", {"ms": 60_000}, id=1)
    client.call("big", {"count": 8 * MIB})
    client.wire.peek()
    before = cpu_seconds(client.pid)
    client.wire.close_output()
    wait_until(lambda: not is_alive(client.pid))
    assert cpu_seconds(client.pid) - before < 0.2
    client.wait()
    assert len(client.stderr().splitlines()) == 1, client.stderr()
    assert "the client has disconnected" in client.stderr()
    (cancelled,) = client.journal.entries("cancelled", call=1)
    assert cancelled["cause"] == "disconnect"
    assert client.journal.entries("end", tool="lifespan")


def test_std_04_idle_server_notices_closed_output_at_its_next_answer(client: RawClient) -> None:
    client.wire.close_output()
    client.call("echo", {"text": "nobody reads this"}, id=1)
    client.wait()
    assert len(client.stderr().splitlines()) == 1, client.stderr()


# STD-05: however the bytes come


def test_std_05_message_sent_byte_by_byte_is_read(client: RawClient) -> None:
    message = client.call_message("echo", {"text": "ä🦑é"}, id="ünï")
    for byte in json.dumps(message, ensure_ascii=False).encode() + b"\n":
        client.write(bytes([byte]))
    assert client.text("ünï") == "ä🦑é"


def test_std_05_messages_joined_or_split_across_writes_are_read(client: RawClient) -> None:
    lines = [json.dumps(client.call_message("echo", {"text": text}, id=text)).encode() for text in "abc"]
    client.write(b"\n".join(lines) + b"\n")
    assert [client.text(text) for text in "abc"] == ["a", "b", "c"]
    line = lines[0] + b"\n"
    for place in range(0, len(line), 7):
        client.write(line[place : place + 7])
    assert client.text("a") == "a"


def test_std_05_server_ignores_carriage_returns_and_blank_lines(client: RawClient) -> None:
    line = json.dumps(client.call_message("echo", {"text": "a\r\nb"}, id=1)).encode()
    client.write(b"\r\n\n  \n" + line + b"\r\n\r\n\n")
    assert client.text(1) == "a\r\nb"
    client.ping()
    assert client.finish() == 0
    assert not [m for m in client.messages if "error" in m]


@pytest.mark.parametrize("era", ERAS)
def test_std_05_server_accepts_a_leading_byte_order_mark_and_a_missing_last_newline(tmp_path: Path, era: str) -> None:
    with serving(tmp_path) as client:
        if era == MODERN:
            client.open(MODERN)
            first = client.message("server/discover", id=1)
        else:
            first = client.message("initialize", client.opening(), id=1)
        client.write(b"\xef\xbb\xbf" + json.dumps(first).encode() + b"\n")
        client.result(1)
        last = client.call_message("echo", {"text": "without a newline"}, id=2)
        client.write(json.dumps(last).encode())
        assert client.finish() == 0
        assert client.text(2) == "without a newline"


def test_std_05_message_truncated_by_the_end_of_input_gets_a_parse_error(client: RawClient) -> None:
    client.write(b'{"jsonrpc":"2.0","id":1,"meth')
    assert client.finish() == 0
    assert [m["error"]["code"] for m in client.messages if "error" in m] == [-32700]


# STD-07: what is not UTF-8


def test_std_07_line_that_is_not_utf8_gets_one_error(client: RawClient) -> None:
    named = b'{"jsonrpc":"2.0","id":1,"method":"\xff"}'
    for garbage, request_id in ((b"\xff\xfe", None), (named, 1), (b"\xed\xa0\x80", None), (b"\x00", None)):
        client.write(garbage + b"\n")
        error = client.take(lambda m: "error" in m, "the error")
        assert (error["id"], error["error"]["code"]) == (request_id, -32700)
        client.ping()
    assert client.finish() == 0
    assert sum("error" in m for m in client.messages) == 4


# STD-08: large messages


def test_std_08_messages_of_ten_mebibytes_are_received_and_sent(client: RawClient) -> None:
    text = "x" * (10 * MIB)
    assert client.echo(text, bound=30) == text
    assert len(client.text(client.call("big", {"count": 10 * MIB}), bound=30)) == 10 * MIB


def test_std_08_server_skips_line_beyond_message_limit_without_buffering(tmp_path: Path) -> None:
    """Over the limit: one error under null, and the next line is understood."""
    limit = 4 * MIB
    with serving(tmp_path, limits={"max_message_bytes": limit}, revision=LATEST_LEGACY) as client:
        client.echo("x" * (limit // 2))
        before = resident_bytes(client.pid)
        block = b"x" * MIB
        for _ in range(1024):
            client.write(block, bound=30)
        error = client.take(lambda m: "error" in m, "the error")
        assert (error["id"], error["error"]["code"]) == (None, -32600)
        assert str(limit) in error["error"]["message"]
        client.write(b"\n")
        assert client.echo("in step again") == "in step again"
        assert resident_bytes(client.pid, peak=True) < before + limit + 20 * MIB
        assert client.finish() == 0
        assert sum("error" in m for m in client.messages) == 1


def test_oversized_sampling_answer_fails_its_request_even_if_the_id_is_the_last_field(tmp_path: Path) -> None:
    """So does the TypeScript SDK write its replies."""
    with serving(
        tmp_path, limits={"max_message_bytes": 100_000}, revision=LATEST_LEGACY, capabilities={"sampling": {}}
    ) as client:
        call = client.call("ask", {"kind": "sampling"})
        question = client.take(lambda m: m.get("method") == "sampling/createMessage", "the question")
        client.write(b'{"result":{"content":{"type":"text","text":"' + b"x" * 200_000 + b'"}},"jsonrpc":"2.0",')
        client.write(b'"id":%d}\n' % question["id"])
        assert "the answer cannot be read: the message is longer than 100000 bytes" in client.text(call)
        assert client.finish() == 0
        assert sum("error" in m for m in client.messages) == 0


def test_oversized_request_gets_an_error_with_its_id_even_if_the_id_is_the_last_field(tmp_path: Path) -> None:
    with serving(tmp_path, limits={"max_message_bytes": 100_000}, revision=LATEST_LEGACY) as client:
        text = b"x" * 200_000
        client.write(b'{"method":"ping","params":{"x":"' + text + b'"},"jsonrpc":"2.0","id":"late"}\n')
        assert client.error("late")["code"] == -32600
        client.ping()


def test_std_08_message_limit_is_exact_to_the_byte(tmp_path: Path) -> None:
    with serving(tmp_path, limits={"max_message_bytes": 1000}, revision=LATEST_LEGACY) as client:
        for length, fits in ((1000, True), (1001, False)):
            line = json.dumps(client.call_message("echo", {"text": ""}, id=length)).encode()
            text = b"y" * (length - len(line))
            client.write(line.replace(b'"text": ""', b'"text": "%b"' % text) + b"\n")
            if fits:
                assert client.text(length) == text.decode()
            else:
                assert client.take(lambda m: "error" in m, "the error")["error"]["code"] == -32600
        client.ping()


# STD-11: stray output


def test_std_11_printed_text_and_child_output_go_to_stderr_and_not_to_the_client(client: RawClient) -> None:
    """Every line that comes is checked to be a message, so a stray byte anywhere fails this."""
    flood = client.call("flood", {"kind": "log", "n": 2000}, log_level="debug")
    dirty = [client.call("dirty") for _ in range(3)]
    for request_id in dirty:
        assert client.text(request_id) == "read b'' and ''", "standard input is empty for handlers and children"
    for number in range(20):
        assert client.echo(str(number)) == str(number)
    assert client.text(flood) == "sent 2000"
    assert client.finish() == 0
    for stray in ("printed", "written", "buffered", "from a child", "and once more"):
        assert stray in client.stderr()


def test_std_11_text_printed_by_a_handler_appears_on_stderr_line_by_line(tmp_path: Path) -> None:
    script = tmp_path / "printing.py"
    script.write_text(
        "import sys, trio\n"
        "from trio_mcp import Server, serve_stdio\n"
        "server = Server('printing')\n"
        "@server.tool\n"
        "async def say(text: str) -> None:\n"
        "    print(text)\n"
        "    print('unfinished', end='')\n"
        "print('before')\n"
        "trio.run(serve_stdio, server)\n"
        "print('line by line:', sys.stdout.line_buffering, file=sys.stderr)\n"
    )
    with serving(tmp_path, command=[sys.executable, str(script)], revision=LATEST_LEGACY) as client:
        client.result(client.call("say", {"text": "first"}))
        assert client.stderr() == "before\nfirst\n"
        client.result(client.call("say", {"text": "second"}))
        assert client.stderr() == "before\nfirst\nunfinishedsecond\n"
        assert client.finish() == 0
        assert client.stderr() == "before\nfirst\nunfinishedsecond\nunfinishedline by line: False\n"


# STD-15: signals


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_std_15_server_drains_requests_closes_lifespan_and_exits_after_a_signal(
    tmp_path: Path, era: str, number: signal.Signals
) -> None:
    with serving(tmp_path, revision=era, limits={"drain_timeout": PATIENCE}) as client:
        client.held(id=1)
        os.kill(client.pid, number)
        # It has been taken when new work is refused.
        wait_until(lambda: "error" in client.reply(client.call("echo", {"text": "new"})))
        client.let_go()
        assert client.text(1) == "let go"
        client.drain()
        assert client.wait() == 0
        assert client.stderr() == ""
        assert [entry["event"] for entry in client.journal.entries(tool="lifespan")] == ["start", "end"]


def test_std_15_second_signal_ends_a_server_that_still_waits_for_running_requests(tmp_path: Path) -> None:
    with serving(tmp_path, limits={"drain_timeout": 3600}, revision=LATEST_LEGACY) as client:
        client.started("sleep", {"ms": 60_000}, id=1)
        client.silent_about(1)
        os.kill(client.pid, signal.SIGTERM)
        # The first has been taken when new work is refused.
        wait_until(lambda: "error" in client.reply(client.call("echo", {"text": "new"})))
        os.kill(client.pid, signal.SIGTERM)
        client.drain()
        assert client.wait() == 0
        (cancelled,) = client.journal.entries("cancelled", call=1)
        assert cancelled["cause"] == "shutdown"


def test_std_15_server_with_handle_signals_false_does_not_handle_signals(tmp_path: Path) -> None:
    script = tmp_path / "unhandled.py"
    script.write_text(
        f"import sys, trio; sys.path.insert(0, {str(FIXTURE.parent)!r})\n"
        "from functools import partial\n"
        "from fixture_server import serve_stdio, server\n"
        "trio.run(partial(serve_stdio, server, handle_signals=False))\n"
    )
    with serving(tmp_path, command=[sys.executable, str(script)], revision=LATEST_LEGACY) as client:
        client.ping()
        os.kill(client.pid, signal.SIGTERM)
        assert client.wait() == -signal.SIGTERM
