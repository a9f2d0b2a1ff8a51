"""Values of classes of other libraries in results: known ones, and those that a server has an encoder for."""

from __future__ import annotations

import dataclasses
import datetime
import json
import uuid
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest

from trio_mcp import Server, open_memory
from trio_mcp.protocol.user_types import schema_of
from trio_mcp.server.calling.results import Encoders, result_maker, to_plain
from trio_mcp.server.calling.signature import UserFunction

DAY = datetime.date(2026, 7, 28)


class Frame:
    """As of a library for tables."""

    def __init__(self, *rows: Any) -> None:
        self.rows = rows


class Special(Frame):
    pass


@attrs.frozen
class Row:
    value: int


@attrs.frozen
class Report:
    frame: Frame
    more: list[Frame] | None = None


def rows_of(frame: Frame) -> list[Row]:
    return [Row(value) for value in frame.rows]


@pytest.mark.parametrize(
    ("kind", "value", "schema", "plain"),
    [
        (Decimal, Decimal("1.50"), {"type": "string"}, "1.50"),
        (uuid.UUID, uuid.UUID(int=1), {"type": "string", "format": "uuid"}, "00000000-0000-0000-0000-000000000001"),
        (Path, Path("/a/b"), {"type": "string"}, "/a/b"),
        (datetime.date, DAY, {"type": "string", "format": "date"}, "2026-07-28"),
        (datetime.timedelta, datetime.timedelta(hours=1), {"type": "string"}, "PT3600S"),
        (Fraction, Fraction(1, 2), {"type": "number"}, 0.5),
    ],
)
def test_standard_library_values_can_be_encoded_as_json_and_have_a_schema(
    kind: Any, value: Any, schema: dict[str, Any], plain: Any
) -> None:
    output, make = result_maker(kind, None)
    assert output is not None
    assert output["properties"]["result"] == schema
    assert make(value).structured_content == {"result": plain}
    assert to_plain({"inside": [value]}) == {"inside": [plain]}


def test_numpy_scalars_and_arrays_are_encoded_as_numbers_and_lists() -> None:
    numpy = pytest.importorskip("numpy", reason="needs numpy: pip install -e '.[test]'")
    from numpy.typing import NDArray

    for kind, value, schema, plain in [
        (numpy.float32, numpy.float32(0.5), {"type": "number"}, 0.5),
        (numpy.int64, numpy.int64(3), {"type": "integer"}, 3),
        (numpy.bool_, numpy.bool_(True), {"type": "boolean"}, True),
        (numpy.ndarray, numpy.array([[1, 2], [3, 4]]), {"type": "array", "items": {}}, [[1, 2], [3, 4]]),
        (NDArray[numpy.float64], numpy.array([0.5]), {"type": "array", "items": {}}, [0.5]),
        (list[numpy.ndarray], [numpy.array(1)], {"type": "array", "items": {"type": "array", "items": {}}}, [1]),
    ]:
        output, make = result_maker(kind, None)
        assert output is not None
        assert output["properties"]["result"] == schema
        assert make(value).structured_content == {"result": plain}
    assert to_plain({"at": numpy.datetime64("2026-07-28")}) == {"at": "2026-07-28"}
    assert to_plain(Row(numpy.int8(3))) == {"value": 3}
    for wrong in (numpy.array([1j]), numpy.array([object()])):
        with pytest.raises(TypeError, match=r"(complex|object) has no JSON form"):
            to_plain(wrong)


def test_numpy_array_parameter_raises_at_registration_with_instructions() -> None:
    numpy = pytest.importorskip("numpy", reason="needs numpy: pip install -e '.[test]'")

    async def mean(values: Any) -> float:
        return 0.0

    mean.__annotations__["values"] = numpy.ndarray
    with pytest.raises(TypeError, match=r"'values': ndarray can be a result, but not an argument: .*list\[float\]"):
        UserFunction.of(mean)


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [
        (Frame, Frame(1, 2), [{"value": 1}, {"value": 2}]),
        (Frame, Special(3), [{"value": 3}]),
        (Special, Special(3), [{"value": 3}]),
        (Report, Report(Frame(1), [Frame(), Frame(2)]), {"frame": [{"value": 1}], "more": [[], [{"value": 2}]]}),
        (dict[str, Frame], {"a": Frame(1)}, {"a": [{"value": 1}]}),
        (Frame | None, None, None),
        (Any, {"a": Frame(1)}, {"a": [{"value": 1}]}),
    ],
)
def test_custom_encoder_is_used_for_nested_values_of_its_class(kind: Any, value: Any, plain: Any) -> None:
    encoders = Encoders({Frame: rows_of})
    output, make = result_maker(kind, None, encoders)
    result = make(value)
    if output is None:
        assert json.loads(result.content[0].text) == plain  # type: ignore[union-attr]
    else:
        structured = result.structured_content
        assert (structured if kind in (Report, dict[str, Frame]) else structured["result"]) == plain
    if kind is Frame:
        assert output is not None
        assert output["properties"]["result"]["items"] in ({"$ref": "#/$defs/Row"}, schema_of(Row))


def test_custom_encoder_schema_is_the_schema_of_its_return_annotation() -> None:
    def total(frame: Frame) -> float:
        return float(sum(frame.rows))

    def untold(frame: Frame):  # type: ignore[no-untyped-def]
        return 1

    assert schema_of(Frame, read=False, encoders=Encoders({Frame: total})) == {"type": "number"}
    assert schema_of(Frame, read=False, encoders=Encoders({Frame: str})) == {"type": "string"}
    assert schema_of(Frame, read=False, encoders=Encoders({Frame: untold})) == {"description": "Frame"}
    nested = schema_of(Report, read=False, encoders=Encoders({Frame: rows_of}))
    assert set(nested.get("$defs", {})) <= {"Row"}


def test_encoder_with_an_unresolvable_annotation_raises_at_tool_registration() -> None:
    def rows(frame: Frame) -> Nowhere: ...  # type: ignore[name-defined] # noqa: F821

    async def frame() -> Frame: ...

    with pytest.raises(TypeError, match="the encoder of Frame: an annotation could not be resolved: name 'Nowhere'"):
        Server("s", encoders={Frame: rows}).tool(frame)


def test_custom_encoder_takes_precedence_over_a_built_in_encoder() -> None:
    encoders = Encoders({Path: lambda path: path.name})
    assert to_plain([Path("/a/b")], encoders) == ["b"]
    assert to_plain([Path("/a/b")]) == ["/a/b"]


@pytest.mark.parametrize("kind", [Row, dict, str, Decimal, dataclasses.make_dataclass("D", []), Literal["a"]])
def test_custom_encoder_for_a_class_that_json_already_supports_raises(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"must not have an encoder|encoders must be a dict of functions by class"):
        Server("s", encoders={kind: str})


async def waiting(frame: Frame) -> int:
    return 1


@pytest.mark.parametrize("encoders", [{"Frame": str}, {Frame: "rows"}, {Frame: waiting}])
def test_invalid_encoder_raises_at_server_creation(encoders: Any) -> None:
    with pytest.raises(TypeError, match=r"right:  encoders=\{Frame: encode_frame\}|is async: write a plain function"):
        Server("s", encoders=encoders)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_server_encoders_apply_to_tools_and_resources(era: Literal["legacy", "modern"]) -> None:
    server = Server("s", encoders={Frame: rows_of})

    @server.tool
    async def frame() -> Frame:
        return Frame(1)

    @server.resource("frame://all")
    async def all_rows() -> Frame:
        return Frame(2)

    async with open_memory(server, era=era) as client:
        assert (await client.call_tool("frame")).structured_content == {"result": [{"value": 1}]}
        (contents,) = (await client.read_resource("frame://all")).contents
        assert json.loads(contents.text) == [{"value": 2}]  # type: ignore[union-attr]


def test_return_class_that_cannot_be_encoded_as_json_raises_at_registration_and_suggests_remedies() -> None:
    async def frame() -> Frame:
        return Frame()

    remedies = r"the return annotation of frame cannot be used: Frame has no JSON form\. Write a class of attrs, a .*"
    with pytest.raises(TypeError, match=remedies + r"Server\(\.\.\., encoders=\{Frame: function\}\)"):
        Server("s").tool(frame)


async def test_value_that_cannot_be_encoded_as_json_is_logged_with_remedies_that_the_client_does_not_see(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("s")

    @server.tool
    async def frame():  # type: ignore[no-untyped-def]
        return {"frame": Frame()}

    async with open_memory(server) as client:
        assert (await client.call_tool("frame")).text == "internal error in tool frame"
    assert "encoders={Frame: function}" in caplog.text
