"""JSON Schemas that come as dicts: checked once, then used to validate. jsonschema-rs does the work.

The dialect is the schema's own ``$schema``, 2020-12 without one; drafts 4, 6, 7 and 2019-09 are known too.
References to other documents are never fetched (2026-07-28 basic, $ref Resolution: MUST NOT), and regular
expressions run in linear time, so that no schema can hold up the server.
"""

from __future__ import annotations

from typing import Any

from .fields import JSONObject

__all__ = ["SchemaValidator"]

_FAULTS_TOLD = 5


class SchemaValidator:
    """One schema, ready to validate. Raises `ValueError` for a schema that is none, or that needs another
    document."""

    def __init__(self, schema: JSONObject) -> None:
        import jsonschema_rs  # most servers never need it, and it takes its time to load

        try:
            self._validator: Any = jsonschema_rs.validator_for(
                schema, retriever=_never, pattern_options=jsonschema_rs.RegexOptions()
            )
        except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
            raise ValueError(f"not a usable JSON Schema: {str(error).splitlines()[0]}") from None

    def faults(self, value: Any) -> str | None:
        """What is wrong with ``value`` in one line, `None` when nothing is."""
        if self._validator.is_valid(value):
            return None
        told: list[str] = []
        for error in self._validator.iter_errors(value):
            place = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in error.instance_path)
            told.append(f"{error.message}" + (f" at {place.removeprefix('.')}" if place else ""))
            if len(told) == _FAULTS_TOLD:
                break
        return "; ".join(told)


def _never(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, and other documents are never fetched")
