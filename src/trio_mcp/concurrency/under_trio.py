"""Errors for users who run trio-mcp with asyncio."""

from __future__ import annotations

import trio


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


def check_mounted_under_trio() -> None:
    """Raise `RuntimeError` with the correct command unless trio runs the server of an ASGI application."""
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "http_app is run by trio only, and this ASGI server runs asyncio. Start the application with\n"
            "    wrong:  uvicorn module:app\n"
            "    right:  hypercorn --worker-class trio module:app"
        )
