"""The example of a gateway before five processes, one of which dies each second."""

from __future__ import annotations

import trio
from examples.five_members import NAMES, main
from tests.patience import PATIENCE


async def test_gateway_example_fails_only_the_calls_to_the_server_that_crashes() -> None:
    with trio.fail_after(PATIENCE):
        answers, refusals = await main(3.0)
    assert set(answers) == set(NAMES)
    assert min(answers[name] for name in NAMES[:4]) > answers["mortal"] > 0
    assert set(refusals) == {"mortal: 'mortal', a server behind this gateway, is gone"}
