"""Kinds of options that several commands have: one of a few words, and one that may be given several times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def choice(name: str, values: Sequence[str], default: str | None, help: str, **more: Any) -> Callable[[F], F]:
    """Return an option that has one of ``values``, in any case."""
    kind = click.Choice(values, case_sensitive=False)
    return click.option(name, type=kind, default=default, show_default=default is not None, help=help, **more)


def repeatable(name: str, parameter: str, metavar: str, help: str) -> Callable[[F], F]:
    """Return an option that may be given several times, whose values are in ``parameter``."""
    return click.option(name, parameter, multiple=True, metavar=metavar, help=f"{help} Repeatable.")
