"""Questions: the requests of a handler to its client, by a call of its context or in its return value, checked in one
place."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from ...jsonrpc.codec import encode_value
from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...protocol.converters import structure_params, unstructure
from ...protocol.fields import JSONObject
from ...protocol.meta import check_meta_keys
from ...protocol.methods import METHODS
from ...protocol.revisions import Revision
from ...protocol.types.elicitation import (
    ElicitFormParams,
    ElicitParams,
    ElicitURLParams,
    check_form_schema,
    check_url_question,
)
from ...protocol.types.input_required import InputRequest, capability_for, for_elicitation, for_sampling
from ...protocol.types.sampling import CreateMessageParams

Asked: TypeAlias = CreateMessageParams | ElicitFormParams | ElicitURLParams | InputRequest


AS_TASK: Final = "a question is no task by a parameter `task`: have the client run it as one by task_ttl=60.0, say"
"""What to write instead of a wish for a task among the parameters of a question, whose answer would be a task."""


def needed_for(asked: Asked) -> tuple[str, ...]:
    """Return the capabilities that a client must have declared to be asked this, in the order of their check."""
    match asked:
        case InputRequest():
            return capability_for(asked)
        case CreateMessageParams():
            has_tools = asked.tools is not None or asked.tool_choice is not None
            return for_sampling(tools=has_tools, context=asked.include_context)
        case ElicitFormParams():
            return for_elicitation("form")
        case ElicitURLParams():
            return for_elicitation("url")


def question(asked: Asked, revision: Revision) -> InputRequest:
    """Return the request for this question in ``revision``.

    Raises `CodedError` (-32602) for a form that is not flat and for a URL that nobody should be sent to, `ValueError`
    for invalid keys of ``_meta``, `NotExpressible` for a question that the revision cannot express, and
    `NotSerializable`. The parameters of an `InputRequest` are checked alike, and stay unchanged.
    """
    has_wish = "task" in (asked.params or {}) if isinstance(asked, InputRequest) else asked.task is not None
    if has_wish:
        raise CodedError(INVALID_PARAMS, f"Invalid params: {AS_TASK}")
    if isinstance(asked, InputRequest):
        encode_value(asked.params)
        params: Any = structure_params(asked.params, METHODS[asked.method].params, revision)
        if asked.method != "roots/list":  # roots/list has no parameters of its own
            said(params, revision)
        return asked
    method = "sampling/createMessage" if isinstance(asked, CreateMessageParams) else "elicitation/create"
    return InputRequest(method, said(asked, revision))


def said(params: CreateMessageParams | ElicitParams, revision: Revision) -> JSONObject:
    """Return the parameters of a question in the form of ``revision``. Raises as `question`."""
    check_meta_keys(params.meta)
    if isinstance(params, ElicitFormParams):
        check_form_schema(params.requested_schema)
    elif isinstance(params, ElicitURLParams):
        check_url_question(params)
    return unstructure(params, revision)
