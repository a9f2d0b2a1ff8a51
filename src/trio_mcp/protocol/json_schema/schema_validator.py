"""JSON Schemas given as dicts: compiled once, then used to validate. jsonschema-rs does the work.

The dialect is the schema's own ``$schema``, by default 2020-12; drafts 4, 6, 7 and 2019-09 are known too. References to
other documents are never fetched (2026-07-28 basic, $ref Resolution: MUST NOT), regular expressions run in linear time,
values are checked up to a size at which checking takes a moment, and references multiply nothing (`SchemaGrowth`), so
that no peer can hold up the server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...jsonrpc.extent import MOST_LEVELS, is_too_deep
from ...jsonrpc.words import clean
from ..fields import JSONObject
from .schema_bounds import SchemaBounds
from .schema_evaluation import SchemaEvaluation, TooManyEvaluations
from .schema_faults import SchemaFaults
from .schema_growth import SchemaGrowth


class SchemaValidator:
    """A schema, ready to validate. Raises `ValueError` for an invalid schema, one that needs another document, and one
    whose references multiply."""

    def __init__(self, schema: JSONObject) -> None:
        import jsonschema_rs  # most servers never need it, and it takes its time to load

        def compiled(make: Callable[..., Any], schema: JSONObject = schema) -> Any:
            return make(schema, retriever=_never, pattern_options=jsonschema_rs.RegexOptions())

        self._schema = schema
        self._growth = SchemaGrowth(schema)
        self._compiled = partial(compiled, jsonschema_rs.validator_for)
        try:
            self._validator = self._compiled(schema)
        except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
            raise ValueError(f"not a usable JSON Schema: {clean(str(error).splitlines()[0])}") from None
        self._bounds = SchemaBounds(schema)
        self._faults = SchemaFaults(schema, lambda: compiled(jsonschema_rs.validator_map_for))

    def faults(self, value: Any) -> str | None:
        """Return the faults of ``value`` in one line; `None` for a valid value.

        The text names the first few faults, and fewer for a large value; see `SchemaFaults`. A value that is too large
        to be checked is a fault; see `SchemaBounds`.
        """
        if (fault := self._bounds.exceeded(value)) is not None:
            return fault
        if is_too_deep(value):  # the validator recurses
            return f"there are more than {MOST_LEVELS} levels of nesting"
        if self._growth.exceeded(value):
            return self._evaluated(value)
        return None if self._validator.is_valid(value) else self._faults.told(value)

    def _evaluated(self, value: Any) -> str | None:
        """Return what `faults` returns, for a value with too many ways through the schema."""
        try:
            evaluation = SchemaEvaluation(self._schema, self._compiled)
            if evaluation.fits(self._schema, value):
                return None
            return self._faults.place_of(value, evaluation.fits)
        except TooManyEvaluations:
            return "too large to be checked: the references of the schema multiply with each level of nesting"


def _never(uri: str) -> Any:
    raise ValueError(f"the schema refers to {clean(uri[:200])}, and other documents are never fetched")
