"""The official conformance suite finds nothing wrong with our server, scored or not, but for what `EXPECTED` lists."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.conformance.suite import LEG_LIMIT, REVISIONS, Suite, judge

pytestmark = pytest.mark.filterwarnings("default::tests.conformance.suite.Skipped")


@pytest.mark.parametrize("revision", REVISIONS)
async def test_server_passes_the_conformance_suite_of_each_revision(
    suite: Suite, server_url: str, revision: str, tmp_path: Path
) -> None:
    with trio.fail_after(LEG_LIMIT):
        names = await suite.required(revision, "server")
        faults = await suite.drive_server(server_url, tmp_path, "--requirements", revision)
    judge("server", {name: faults.get(name, ["there is no result"]) for name in names})


async def test_server_passes_the_conformance_suite_of_extensions(suite: Suite, server_url: str, tmp_path: Path) -> None:
    faults: dict[str, list[str]] = {}
    with trio.fail_after(LEG_LIMIT):
        for name in await suite.extensions("server"):
            faults |= await suite.drive_server(server_url, tmp_path / name, "--scenario", name)
    judge("server", faults)
