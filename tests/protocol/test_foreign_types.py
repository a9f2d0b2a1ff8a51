"""Foreign types: classes that msgspec does not know, as schemas and as JSON data."""

from __future__ import annotations

from fractions import Fraction
from numbers import Integral
from pathlib import PurePosixPath
from typing import Any

import pytest

from trio_mcp.protocol.foreign_types import read_foreign, schema_of_foreign, write_foreign


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (PurePosixPath, {"type": "string"}),
        (Fraction, {"type": "number"}),
        (Integral, {"type": "integer"}),
    ],
)
def test_standard_library_class_has_the_schema_of_its_json_representation(kind: Any, schema: dict[str, Any]) -> None:
    assert schema_of_foreign(kind, read=False) == schema


def test_numpy_classes_have_the_schemas_of_their_json_representations() -> None:
    numpy = pytest.importorskip("numpy", reason="needs numpy: pip install -e '.[test]'")
    for kind, schema in [
        (numpy.bool_, {"type": "boolean"}),
        (numpy.int8, {"type": "integer"}),
        (numpy.float32, {"type": "number"}),
        (numpy.ndarray, {"type": "array", "items": {}}),
    ]:
        assert schema_of_foreign(kind, read=False) == schema
    assert write_foreign(numpy.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert write_foreign(numpy.float32(0.5)) == 0.5


def test_path_object_is_read_and_written_as_a_string() -> None:
    assert schema_of_foreign(PurePosixPath, read=True) == {"type": "string"}
    assert read_foreign(PurePosixPath, "/a/b") == PurePosixPath("/a/b")
    assert write_foreign(PurePosixPath("/a/b")) == "/a/b"
    with pytest.raises(TypeError, match="expected PurePosixPath"):
        read_foreign(PurePosixPath, 3)


def test_fraction_can_be_written_but_not_read() -> None:
    assert write_foreign(Fraction(1, 2)) == 0.5
    with pytest.raises(TypeError, match="Fraction can be a result, but not an argument"):
        schema_of_foreign(Fraction, read=True)
    with pytest.raises(TypeError, match="expected Fraction"):
        read_foreign(Fraction, 0.5)


@pytest.mark.parametrize("read", [False, True])
def test_class_without_a_json_form_raises_type_error_when_its_schema_or_value_is_written(read: bool) -> None:
    class Frame:
        pass

    with pytest.raises(TypeError, match="Frame has no JSON form"):
        schema_of_foreign(Frame, read=read)
    with pytest.raises(TypeError, match="Frame has no JSON form"):
        write_foreign(Frame())
