"""The trace that a request belongs to which is made here and now."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from trio_mcp.protocol.meta import BAGGAGE, TRACEPARENT, TraceContext
from trio_mcp.runtime.outbound import answering, present_trace
from trio_mcp.runtime.requests.scope import current_request

PARENT = f"00-{'1' * 32}-{'2' * 16}-01"
OTHER = f"00-{'3' * 32}-{'4' * 16}-01"


@attrs.define(eq=False)
class FakeScope:
    """Of a request, only the trace that it says it belongs to."""

    trace: TraceContext | None

    @property
    def request(self) -> FakeScope:
        return self


@contextmanager
def handling(trace: TraceContext | None) -> Generator[None]:
    scope: Any = FakeScope(trace)
    token = current_request.set(scope)
    yield
    current_request.reset(token)


def test_current_trace_context_is_none_before_any_request() -> None:
    assert present_trace() is None


@pytest.mark.parametrize("trace", [None, TraceContext(PARENT)])
def test_handler_sees_the_trace_context_of_its_request(trace: TraceContext | None) -> None:
    with handling(trace):
        assert present_trace() is trace
    assert present_trace() is None


def test_client_requests_sent_while_answering_a_server_request_carry_its_trace_context() -> None:
    with answering({TRACEPARENT: PARENT}):
        assert present_trace() == TraceContext(PARENT)
    assert present_trace() is None
    with answering({}):
        assert present_trace() is None


def test_trace_context_is_reset_even_if_the_answer_to_a_server_request_fails() -> None:
    with pytest.raises(LookupError), answering({TRACEPARENT: PARENT}):
        raise LookupError
    assert present_trace() is None


def test_request_received_while_answering_a_server_request_has_its_own_trace() -> None:
    with answering({TRACEPARENT: PARENT}), handling(TraceContext(OTHER)):
        assert present_trace() == TraceContext(OTHER)
        with answering({BAGGAGE: "a=1"}):
            told = present_trace()
            assert told is not None
            assert (told.traceparent, told.baggage) == (OTHER, "a=1")
    with answering({TRACEPARENT: PARENT}), handling(None):
        assert present_trace() is None


def test_server_request_without_a_trace_context_is_answered_in_the_outer_trace_context() -> None:
    with answering({TRACEPARENT: PARENT}):
        with answering({}):
            assert present_trace() == TraceContext(PARENT)
        with answering({TRACEPARENT: OTHER}):
            assert present_trace() == TraceContext(OTHER)
        assert present_trace() == TraceContext(PARENT)
