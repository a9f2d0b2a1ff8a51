"""The few classes whose shape, not only their fields, differs between revisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import attrs

from ..revisions import Revision
from ..types.content import ToolResultContent, ToolUseContent
from ..types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, first_form
from ..types.sampling import CreateMessageResult, SamplingMessage
from ..types.tools import CallToolResult, Tool


class NotExpressible(ValueError):
    """A value that the revision of this request cannot express, audio in 2024-11-05 for example."""


Make = Callable[[Any], dict[str, Any]]


def as_is(make: Make, _: Revision) -> Make:
    return make


def _tool(make: Make, revision: Revision) -> Make:
    if revision.structured_content == "any":
        return make

    def unstructure_tool(tool: Tool) -> dict[str, Any]:
        data = make(tool)
        if (tool.output_schema or {}).get("type") != "object":
            data.pop("outputSchema", None)  # until 2025-11-25 its root is an object
        return data

    return unstructure_tool


def _call_result(make: Make, revision: Revision) -> Make:
    if revision.structured_content == "any":
        return make

    def unstructure_result(result: CallToolResult | ToolResultContent) -> dict[str, Any]:
        data = make(result)
        if not isinstance(result.structured_content, dict):
            data.pop("structuredContent", None)  # until 2025-11-25 it is an object
        return data

    return unstructure_result


def _message_content(make: Make, revision: Revision) -> Make:
    if revision.name >= ToolUseContent.SINCE:  # several blocks are possible since tools can be used
        return make

    def unstructure_message(message: Any) -> dict[str, Any]:
        content = message.content
        if not isinstance(content, list):
            return make(message)
        if len(cast("list[Any]", content)) != 1:
            raise NotExpressible(f"a message holds exactly one content block in revision {revision}")
        return make(attrs.evolve(message, content=content[0]))

    return unstructure_message


def _with_extras(make: Make, revision: Revision) -> Make:
    inner = _message_content(make, revision)

    def unstructure_result(result: CreateMessageResult) -> dict[str, Any]:
        data = inner(result)
        extra = data.pop("extra")
        return {**extra, **data}

    return unstructure_result


def _elicit_form(make: Make, revision: Revision) -> Make:
    if revision.name >= ElicitURLParams.SINCE:
        return make

    def unstructure_form(params: ElicitFormParams) -> dict[str, Any]:
        try:
            form = first_form(params.requested_schema)
        except ValueError as error:
            raise NotExpressible(f"{error}; this is revision {revision}") from None
        return make(attrs.evolve(params, requested_schema=form))

    return unstructure_form


def _elicit_url(make: Make, revision: Revision) -> Make:
    if "notifications/elicitation/complete" not in revision.methods:
        return make

    def unstructure_url(params: ElicitURLParams) -> dict[str, Any]:
        if params.elicitation_id is None:
            raise NotExpressible(f"a URL elicitation needs an elicitation id in revision {revision}")
        return make(params)

    return unstructure_url


def _elicit_result(make: Make, revision: Revision) -> Make:
    if revision.name >= ElicitURLParams.SINCE:
        return make

    def unstructure_result(result: ElicitResult) -> dict[str, Any]:
        for name, value in (result.content or {}).items():
            if isinstance(value, list):
                raise NotExpressible(f"field {name!r} is a list, which revision {revision} has no form for")
        return make(result)

    return unstructure_result


SHAPES: dict[Any, Callable[[Make, Revision], Make]] = {
    Tool: _tool,
    CallToolResult: _call_result,
    ToolResultContent: _call_result,
    SamplingMessage: _message_content,
    CreateMessageResult: _with_extras,
    ElicitFormParams: _elicit_form,
    ElicitURLParams: _elicit_url,
    ElicitResult: _elicit_result,
}
