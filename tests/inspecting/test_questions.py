"""Elicitation forms in the web inspector."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp.inspecting.runs import PageFeed, PageQuestions
from trio_mcp.types import ElicitFormParams

OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ({"type": "string", "default": "x"}, {"type": "string", "default": "x"}),
        ({"type": "string", "enum": ["a"], "default": "zz"}, {"type": "string", "enum": ["a"]}),
        ({"type": "integer", "minimum": 1, "default": 0}, {"type": "integer", "minimum": 1}),
        (OPTIONAL | {"default": None}, OPTIONAL),
        (OPTIONAL | {"default": "x"}, OPTIONAL | {"default": "x"}),
        (True, True),
    ],
)
async def test_inspector_form_omits_default_values_that_violate_the_field_schema(
    field: Any, shown: Any, nursery: trio.Nursery
) -> None:
    questions = PageQuestions(PageFeed(list))
    schema = {"type": "object", "properties": {"it": field}}
    nursery.start_soon(questions.form, ElicitFormParams("?", schema))
    await wait_all_tasks_blocked()
    (question,) = questions.snapshot()
    assert question["data"]["requestedSchema"] == {"type": "object", "properties": {"it": shown}}
    assert schema["properties"] == {"it": field}
    nursery.cancel_scope.cancel()
