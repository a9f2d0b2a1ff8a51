"""in_context: awaits a function with the context variables of another context."""

from __future__ import annotations

from contextvars import ContextVar, copy_context

import pytest
import trio

from trio_mcp.concurrency.contexts import in_context

variable: ContextVar[str] = ContextVar("variable", default="default")


async def work(value: str) -> str:
    """Set the variable, and return what it was before and what it is after a wait."""
    before = variable.get()
    variable.set(value)
    await trio.lowlevel.checkpoint()
    return f"{before}, {variable.get()}"


async def test_async_function_run_in_a_context_sets_variables_only_in_that_context() -> None:
    context = copy_context()
    assert await in_context(context, work("one")) == "default, one"
    assert await in_context(context, work("two")) == "one, two"
    assert variable.get() == "default"
    assert context[variable] == "two"


async def test_async_function_run_in_a_context_raises_its_exception_in_the_calling_task() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError(variable.get())

    context = copy_context()
    context.run(variable.set, "inside")
    with pytest.raises(LookupError, match="inside"):
        await in_context(context, fail())


async def test_async_function_run_in_a_context_is_cancelled_if_the_calling_task_is_cancelled() -> None:
    seen: list[str] = []

    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.append(variable.get())

    context = copy_context()
    context.run(variable.set, "inside")
    with trio.move_on_after(0) as scope:
        await in_context(context, hang())
    assert scope.cancelled_caught
    assert seen == ["inside"]
