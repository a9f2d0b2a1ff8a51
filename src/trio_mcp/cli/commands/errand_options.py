"""errand_options: the options of the commands that make one request to a server, and the way these run."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec

import click

from .target_options import connection_options, words_after_dashes

if TYPE_CHECKING:
    from ..errands.errand import Errand, ErrandOptions
    from ..signing_in import SignIn

P = ParamSpec("P")

_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "off")


def errand_options(errand: Callable[P, Errand[Any]]) -> Callable[..., int]:
    """Make the function of a command from a function that returns the errand, given the arguments and options of its
    own.

    The command has an argument ``target``, and gets --log-level and the options of `connection_options` after its own.
    Senseless arguments and options are reported as click does.
    """

    @wraps(errand)
    def run(
        target: str,
        log_level: str,
        config: Path | None,
        era: Any,
        timeout: float | None,
        stderr: bool,
        sign_in: SignIn,
        *own: P.args,
        **named: P.kwargs,
    ) -> int:
        from ..errands.arguments import WrongArgument
        from ..errands.errand import NotOffered, run_errand
        from ..targets import NoTarget

        try:
            options = _options_typed(target, config, era, timeout, log_level, sign_in, stderr=stderr)
            return run_errand(options, errand(*own, **named))
        except (NoTarget, NotOffered, WrongArgument) as error:
            raise click.UsageError(str(error)) from None

    level = click.option(
        "--log-level",
        type=click.Choice(_LEVELS, case_sensitive=False),
        default="info",
        show_default=True,
        help="Lowest level of the server's log messages to show.",
    )
    return level(connection_options(run))


def _options_typed(
    target: str,
    config: Path | None,
    era: Any,
    timeout: float | None,
    log_level: str,
    sign_in: SignIn,
    *,
    stderr: bool,
) -> ErrandOptions:
    """Return TARGET and all these options, parsed. Raises `NoTarget`."""
    from ..errands.errand import ErrandOptions
    from ..errands.overheard import Overheard
    from ..targets import target_typed
    from ..terminal.printable import CopiedToStderr

    overheard = None if stderr else Overheard()
    return ErrandOptions(
        target=target_typed(words_after_dashes(target), config, overheard or CopiedToStderr(), sign_in),
        overheard=overheard,
        log_level=None if log_level.lower() == "off" else log_level.lower(),
        era=era,
        timeout=timeout,
    )
