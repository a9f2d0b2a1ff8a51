"""The frames we make are those of RFC 6455, and the gauge sees every header however the bytes are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from trio_mcp.transports.websocket.stream import FrameGauge, close_frame, text_frames

LENGTHS = st.sampled_from([1, 2, 124, 125, 126, 127, 128, 65535, 65536, 65537])


def parsed(frames: bytes, *, by_client: bool) -> list[object]:
    """What wsproto makes of ``frames``."""
    connection = Connection(ConnectionType.CLIENT if by_client else ConnectionType.SERVER)
    connection.receive_data(frames)
    return list(connection.events())


@given(lengths=st.lists(LENGTHS, max_size=4), masked=st.booleans())
def test_each_message_is_sent_as_one_websocket_text_frame(lengths: list[int], masked: bool) -> None:
    messages = ["ü" * (length // 2) + "x" * (length % 2) for length in lengths]
    batch = "".join(f"{message}\n" for message in messages).encode()
    text, found = "", list[str]()
    for event in parsed(bytes(text_frames(batch, masked=masked)), by_client=not masked):
        assert isinstance(event, TextMessage)
        text += event.data
        if event.message_finished:
            found.append(text)
            text = ""
    assert found == messages


def test_websocket_client_masks_each_frame_with_a_different_key() -> None:
    one, two = (bytes(text_frames(b"same\n", masked=True)) for _ in range(2))
    assert one[:2] == two[:2]
    assert one[2:6] != two[2:6]


@pytest.mark.parametrize("masked", [False, True])
def test_websocket_close_frame_contains_the_code_and_a_truncated_reason(masked: bool) -> None:
    (event,) = parsed(close_frame(1009, "ü" * 100, masked=masked), by_client=not masked)
    assert event == CloseConnection(code=1009, reason="ü" * 61)


def client_frames(*events: object) -> bytes:
    connection = Connection(ConnectionType.CLIENT)
    return b"".join(bytes(connection.send(event)) for event in events)  # type: ignore[arg-type]


def violation(frames: bytes, step: int, limit: int = 1000) -> tuple[int, str] | None:
    gauge = FrameGauge(limit)
    for start in range(0, len(frames), step):
        gauge.feed(frames[start : start + step])
    return gauge.violation


@given(
    sizes=st.lists(st.integers(0, 1000), max_size=5),
    step=st.integers(1, 50),
    pieces=st.lists(st.integers(0, 300), max_size=3),
)
def test_websocket_messages_within_the_limit_are_accepted(sizes: list[int], step: int, pieces: list[int]) -> None:
    whole = [TextMessage(data="x" * size) for size in sizes]
    fragments = [TextMessage(data="y" * size, message_finished=False) for size in pieces]
    frames = client_frames(*whole, *fragments, Ping(payload=b"in between"), TextMessage(data="z"), *whole)
    gauge = FrameGauge(1000)
    for start in range(0, len(frames), step):
        gauge.feed(frames[start : start + step])
    assert gauge.violation is None
    assert not gauge.inside_frame


@given(step=st.integers(1, 50))
def test_websocket_message_over_the_limit_causes_close_code_1009_wherever_bytes_are_split(step: int) -> None:
    part = TextMessage(data="x" * 500, message_finished=False)
    for frames in (client_frames(TextMessage(data="x" * 1001)), client_frames(part, part, TextMessage(data="x"))):
        code, _ = violation(frames, step) or (0, "")
        assert code == 1009


@given(step=st.integers(1, 50))
def test_websocket_binary_message_causes_close_code_1003_wherever_the_bytes_are_split(step: int) -> None:
    frames = client_frames(TextMessage(data="x" * 200), Ping(payload=b"\x02"), BytesMessage(data=b"x"))
    assert (violation(frames, step) or (0, ""))[0] == 1003


@pytest.mark.parametrize("opcode", [8, 9, 10])
def test_oversized_websocket_control_frame_causes_close_code_1002_as_soon_as_its_header_arrives(opcode: int) -> None:
    announced = bytes((0x80 | opcode, 0x80 | 127)) + (1 << 40).to_bytes(8, "big") + bytes(4)
    assert (violation(announced, 1) or (0, ""))[0] == 1002
    assert violation(bytes((0x80 | opcode, 0x80 | 125)) + bytes(4), 1) is None


def test_oversized_websocket_message_is_rejected_as_soon_as_its_header_arrives() -> None:
    frames = client_frames(TextMessage(data="x" * 70_000))
    assert violation(frames[:14], 14) is not None
    assert violation(frames[:9], 9) is None  # its length is not all there


@given(data=st.binary(max_size=300), step=st.integers(1, 20))
def test_websocket_frames_are_checked_in_the_same_way_wherever_the_bytes_are_split(data: bytes, step: int) -> None:
    assert violation(data, step) == violation(data, len(data) or 1)
