from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import pytest

from trio_mcp.stores.record_codec import RecordCodec, decode_columns, decode_stored, decoded
from trio_mcp.stores.task_store import UnknownForm, UnreadableRecord
from trio_mcp.testing.stores.task_store_records import record

packed = msgspec.msgpack.decode


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (packed, b""),
        (packed, b"\xa1\xff"),
        (packed, b"\x91" * 100_000),
        (packed, b"\xdd\xff\xff\xff\xff"),
        (packed, b"\xc7\x0c\xff" + b"\xff" * 12),
        (packed, None),
        (packed, 1),
        (packed, "text"),
        (json.loads, "[" * 100_000),
        (json.loads, b"\xff"),
        (int, "9" * 5_000),
        (int, b"nan"),
        (lambda found: found[0][1], []),
        (lambda found: found["x"], {}),
        (lambda found: found.x, object()),
        (lambda found: float("1e308") ** found, 2),
        (decoded, b"\xff"),
        (decoded, "text"),
        (decoded, None),
    ],
)
def test_any_exception_in_a_decode_function_becomes_an_unreadable_record_error(
    decode: Callable[[Any], object], data: object
) -> None:
    with pytest.raises(UnreadableRecord) as caught:
        decode_stored("a thing", decode, data)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_decode_stored_returns_the_decoded_value_and_raises_store_errors_unchanged() -> None:
    assert decode_stored("a number", int, "7") == 7

    def fail(_: object) -> None:
        raise UnknownForm("of another version")

    with pytest.raises(UnknownForm, match="of another version"):
        decode_stored("a thing", fail, None)


@pytest.mark.parametrize("row", [(), (b"x",), (b"x", None), (b"x", "y"), (b"x", 1.5), None, b"xy"])
def test_stored_row_with_columns_of_wrong_types_raises_unreadable_record(row: Any) -> None:
    assert decode_columns("a row", (b"x", 1), tuple[bytes, int]) == (b"x", 1)
    with pytest.raises(UnreadableRecord, match="a row cannot be read"):
        decode_columns("a row", row, tuple[bytes, int])


def test_task_record_whose_column_has_a_wrong_type_is_refused() -> None:
    codec = RecordCodec()
    row = codec.encode(record("task"))
    assert codec.decode(row).id == "task"
    for name in ("id", "scope", "place", "epoch", "version", "leased_until", "mark", "form", "body"):
        for value in (None, 1.5, object(), [], "\udcff"):
            with pytest.raises(UnreadableRecord):
                codec.decode(attrs.evolve(row, **{name: value}))
