"""Errors for users who run trio-mcp with asyncio."""

from __future__ import annotations

import trio

__all__ = ["check_opened_under_trio", "check_served_under_trio"]


def check_served_under_trio(name: str) -> None:
    """Raise `RuntimeError` with the correct code unless trio runs the ``serve_*`` function ``name``."""
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            f"{name} is run by trio only. Write\n"
            f"    wrong:  asyncio.run({name}(server))\n"
            f"    right:  trio.run({name}, server)"
        )


def check_opened_under_trio(name: str) -> None:
    """Raise `RuntimeError` with the correct code unless trio runs the function that enters ``name``, an ``open_*``."""
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            f"{name} is entered under trio only. Run the function that contains async with {name}(...)\n"
            "    wrong:  asyncio.run(main())\n"
            "    right:  trio.run(main)"
        )
