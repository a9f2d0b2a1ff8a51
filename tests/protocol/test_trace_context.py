"""Valid and invalid trace contexts (W3C Trace Context, W3C Baggage)."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp.types import TraceContext

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_traceparent_tracestate_and_baggage_are_kept_unchanged() -> None:
    said = {
        "traceparent": PARENT,
        "tracestate": "rojo=00f067aa0ba902b7, t@congo=t61rcWkgMzE",
        "baggage": "a=1;p,b=x%20y",
    }
    trace = TraceContext.of({**said, "progressToken": 1})
    assert trace == TraceContext(said["traceparent"], said["tracestate"], said["baggage"])


def test_traceparent_exposes_trace_id_parent_id_and_sampled_flag() -> None:
    trace = TraceContext(PARENT)
    assert (trace.trace_id, trace.parent_id, trace.is_sampled) == (TRACE, SPAN, True)
    assert TraceContext(f"00-{TRACE}-{SPAN}-02").is_sampled is False
    assert (TraceContext(baggage="a=1").trace_id, TraceContext().parent_id) == (None, None)


@pytest.mark.parametrize(
    "value", [PARENT, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01-what.is"]
)
def test_well_formed_traceparent_is_accepted(value: str) -> None:
    assert TraceContext.of({"traceparent": value}) == TraceContext(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01.more",
        f"01-{TRACE}-{SPAN}-01-" + "x" * 10_000,
        f"{PARENT}\n",
        f" {PARENT}",
        f"0-{TRACE}-{SPAN}-01",
        7,
        None,
        [PARENT],
        {"traceparent": PARENT},
    ],
)
def test_malformed_traceparent_is_ignored(value: Any) -> None:
    assert TraceContext.of({"traceparent": value, "tracestate": "rojo=1"}) is None
    assert TraceContext.of({"traceparent": value, "tracestate": "rojo=1", "baggage": "a=1"}) == TraceContext(
        baggage="a=1"
    )


@pytest.mark.parametrize(
    "value", ["a=1", "a=1,", "a=1 ,\tb=2", "0/x@y=with space inside", ",".join(f"k{n}=v" for n in range(32))]
)
def test_well_formed_tracestate_is_accepted(value: str) -> None:
    assert TraceContext.of({"traceparent": PARENT, "tracestate": value}) == TraceContext(PARENT, value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        ",",
        "a",
        "A=1",
        "a=1=2",
        "a=",
        "a=é",
        "a=1\n",
        "a=1,a=2",
        ",".join(f"k{n}=v" for n in range(33)),
        "a=" + "x" * 257,
        1,
        {},
    ],
)
def test_malformed_tracestate_is_dropped_but_the_traceparent_is_kept(value: Any) -> None:
    assert TraceContext.of({"traceparent": PARENT, "tracestate": value}) == TraceContext(PARENT)


@pytest.mark.parametrize(
    "value", ["a=", "a=1", " a = 1 ; p = q ; r , b=2", "userId=alice,serverNode=DF%2028,isProduction=false"]
)
def test_well_formed_baggage_is_accepted(value: str) -> None:
    assert TraceContext.of({"baggage": value}) == TraceContext(baggage=value)


@pytest.mark.parametrize(
    "value", ["", "a", "=1", "a=b c", 'a="1"', "a=1,", "a=1;;p", "a=\n", "é=1", "a=" + "x" * 8192, 1, ["a=1"]]
)
def test_malformed_or_too_long_baggage_is_dropped(value: Any) -> None:
    assert TraceContext.of({"baggage": value}) is None


def test_trace_context_that_the_application_puts_into_meta_takes_precedence() -> None:
    trace = TraceContext(PARENT, "a=1", "b=2")
    assert trace.inject_into({"x": 1}) == {"x": 1, "traceparent": PARENT, "tracestate": "a=1", "baggage": "b=2"}
    other = PARENT.replace("b7", "c8")
    assert trace.inject_into({"traceparent": other}) == {"traceparent": other, "baggage": "b=2"}
    assert trace.inject_into({"baggage": "c=3"}) == {"traceparent": PARENT, "tracestate": "a=1", "baggage": "c=3"}
