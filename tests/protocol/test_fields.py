"""Wire names of fields, and their first and last revision."""

from __future__ import annotations

import attrs
import pytest

from trio_mcp.protocol.fields import history_of, since, wire_name


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("name", "name"),
        ("mime_type", "mimeType"),
        ("uri_template", "uriTemplate"),
        ("read_only_hint", "readOnlyHint"),
        ("ttl_ms", "ttlMs"),
        ("meta", "_meta"),
    ],
)
def test_name_of_a_message_field_in_json_is_in_camel_case(name: str, wire: str) -> None:
    assert wire_name(name) == wire


def test_definition_of_a_message_field_states_the_first_and_last_protocol_revision() -> None:
    @attrs.frozen
    class Pennant:
        always: int = 0
        late: int | None = since("2025-06-18")
        between: int = since("2025-06-18", until="2025-11-25", default=3)

    fields = attrs.fields_dict(Pennant)
    assert history_of(fields["always"]) == (None, None)
    assert history_of(fields["late"]) == ("2025-06-18", None)
    assert history_of(fields["between"]) == ("2025-06-18", "2025-11-25")
    assert Pennant() == Pennant(0, None, 3)
