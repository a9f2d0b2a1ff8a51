"""The steps that each framework takes, told as JSON lines on standard output.

Frameworks differ in how they call a tool, and in what they give back. `take` has the rest: a call that is cancelled
once the handler runs, and whether the server was told.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ORDER = {"order": {"dish": "soup", "size": "small", "toppings": [{"name": "leek", "grams": 5}]}, "plates": 2}
LIMIT = 20.0
"""Seconds after which a step hangs; no measure of speed."""


def noted() -> list[str]:
    """What the server has noted."""
    return Path(os.environ["JOURNAL"]).read_text().splitlines()


def tell(step: str, saw: Any) -> None:
    """Tell what a step has seen."""
    print(json.dumps({"step": step, "saw": saw}), flush=True)


async def take(schemas: dict[str, Any], call: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
    """Take all steps, with the ``schemas`` of the tools that a model gets, and ``call``, which returns what it gets."""
    async with asyncio.timeout(LIMIT):
        tell("tools", sorted(schemas))
        tell("schema", schemas["order"])
        for name, arguments in (("order", ORDER), ("fail", {}), ("picture", {})):
            tell(name, await call(name, arguments))
        hanging = asyncio.create_task(call("hang", {}))
        while "hang began" not in noted():  # noqa: ASYNC110 - a file cannot be waited for, only looked at
            await asyncio.sleep(0.01)
        hanging.cancel()
        try:
            tell("cancelled", await hanging)
        except asyncio.CancelledError:
            tell("cancelled", "cancelled")
        tell("afterwards", await call("order", ORDER))
        # A cancel would have come before that call, on the same way.
        tell("handler", "ended" if "hang ended" in noted() else "runs on")
