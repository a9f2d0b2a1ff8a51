"""Lost or wrong messages fail a benchmark."""

import os
import select
from typing import Any

import pytest
from benchmarks.driver.checks import Mismatch, Stuck, within
from benchmarks.driver.marks import Marks
from benchmarks.driver.messages import echo, text, tool_call
from benchmarks.driver.websocket import Frames
from benchmarks.driver.wire import Lines
from benchmarks.probes.notifying import check_rows


def logged(number: int) -> dict[str, Any]:
    data = f"row {number} was read, checked and written"
    return {"method": "notifications/message", "params": {"level": "info", "data": data}}


def test_benchmark_check_accepts_notifications_in_order() -> None:
    assert check_rows([logged(0), logged(1), logged(2)], 3) == 3


@pytest.mark.parametrize("numbers", [[0, 1], [0, 2, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 3]], ids=str)
def test_benchmark_check_rejects_lost_or_swapped_or_repeated_or_extra_notifications(numbers: list[int]) -> None:
    with pytest.raises(Mismatch):
        check_rows([logged(number) for number in numbers], 3)


def test_benchmark_check_rejects_a_reply_with_another_id() -> None:
    reply = {"id": 8, "result": {"content": [{"type": "text", "text": "hi"}]}}
    assert text(reply, 8) == "hi"
    with pytest.raises(Mismatch, match="id of a reply"):
        text(reply, 7)


def test_benchmark_check_rejects_an_error_instead_of_a_result() -> None:
    with pytest.raises(Mismatch, match="the reply to 7"):
        text({"id": 7, "error": {"code": -1, "message": "no"}}, 7)


def test_benchmark_raises_stuck_error_if_expected_output_does_not_arrive_in_time() -> None:
    read, write = os.pipe()
    with pytest.raises(Stuck, match="a mark: nothing came"), within(0.01, "a mark"):
        select.select([read], [], [])
    os.close(read)
    os.close(write)


def test_benchmark_stores_the_progress_lines_of_a_handler_until_they_are_requested() -> None:
    read, write = os.pipe()
    marks = Marks(read)
    os.write(write, b"b1\nb2\ne1")
    assert marks.wait("b", 2) == [1, 2]
    os.write(write, b"7\n")
    assert marks.wait("e") == [17]
    marks.close()
    os.close(write)


def test_each_call_message_of_the_benchmark_is_unique_and_has_about_140_bytes() -> None:
    calls = [tool_call(number, "echo", {"text": echo(number)}) for number in range(1000, 1100)]
    assert len(set(calls)) == 100
    assert {len(call) // 10 for call in calls} == {14}


def test_benchmark_line_parser_keeps_an_incomplete_line_until_the_rest_arrives() -> None:
    framing = Lines()
    buffer = bytearray(framing.frame(b"one") + framing.frame(b"two")[:-1])
    assert framing.cut(buffer) == [b"one"]
    buffer += framing.frame(b"two")[-1:]
    assert framing.cut(buffer) == [b"two"]
    assert not buffer


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_benchmark_websocket_parser_reads_server_frames_with_each_length_encoding(size: int) -> None:
    if size < 126:
        head = bytes([0x81, size])
    else:
        head = b"\x81\x7e" + size.to_bytes(2) if size < 65_536 else b"\x81\x7f" + size.to_bytes(8)
    frame = head + b"x" * size
    buffer = bytearray(frame + frame[:-1])
    whole = [b"x" * size]
    assert Frames().cut(buffer) == whole
    assert bytes(buffer) == frame[:-1]
    buffer += frame[-1:]
    assert Frames().cut(buffer) == whole


def test_benchmark_websocket_client_masks_frames_with_zeros() -> None:
    assert Frames().frame(b"hello") == b"\x81\x85\x00\x00\x00\x00hello"
    assert Frames().frame(b"x" * 200)[:8] == b"\x81\xfe\x00\xc8\x00\x00\x00\x00"
    assert Frames().frame(b"x" * 70_000)[:14] == b"\x81\xff" + (70_000).to_bytes(8) + b"\x00\x00\x00\x00"


def test_benchmark_websocket_parser_raises_connection_error_for_a_frame_that_is_not_text() -> None:
    with pytest.raises(ConnectionError, match="0x88"):
        Frames().cut(bytearray(b"\x88\x00"))
