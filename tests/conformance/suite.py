"""Suite: the official conformance suite, which runs on Node, and what its scenarios came to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import attrs
import trio
from tests.peers.installed import node_in

__all__ = [
    "HERE",
    "LEG_LIMIT",
    "LOCK",
    "OLDEST_REVISION",
    "REVISIONS",
    "Role",
    "Skipped",
    "Suite",
    "expected_failures",
    "is_skip",
    "judge",
]

Role: TypeAlias = Literal["server", "client"]

HERE = Path(__file__).parent
LOCK = HERE / "package-lock.json"
EXPECTED = HERE / "expected-failures.yml"
SKIPS = HERE / "skipped.yml"
REVISIONS = ["2025-11-25", "2026-07-28"]
OLDEST_REVISION = "2025-03-26"
"""The suite has scenarios for this revision, and none that are required."""
CLIENT_LIMIT = 60_000
"""Milliseconds that a client may take: it starts slowly where much else runs."""
LEG_LIMIT = 170.0
"""Seconds after which a part of the suite hangs; no measure of speed."""


class Skipped(UserWarning):
    """Scenarios that the suite counts as passed, and whose checks it skips."""


@attrs.frozen
class Suite:
    """The suite, installed in a folder."""

    packages: Path

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Run one command of the suite. The exit status, and what was printed. All its processes end with it."""
        script = self.packages / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
        done = await trio.run_process(
            [node_in(self.packages, "the conformance suite"), script, *arguments],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, "NODE_COMPILE_CACHE": str(self.packages / "compiled")},  # it starts a hundred times
            start_new_session=True,
            deliver_cancel=kill_group,
        )
        return done.returncode, re.sub(r"\x1b\[\d+m", "", done.stdout.decode(errors="replace"))

    async def required(self, revision: str, role: Role) -> list[str]:
        """The scenarios of a revision, those that are never scored included."""
        status, text = await self.run("list", "--requirements", revision)
        assert status == 0, text
        names: list[str] = []
        section = ""
        for line in text.splitlines():
            if line.endswith(":"):
                section = line.partition(" ")[0].lower()
            elif (scored := re.fullmatch(r"  - (\S+)", line)) and section == role:
                names.append(scored[1])
            elif unscored := re.fullmatch(rf"    - (\S+) \[{role}\]", line):
                names.append(unscored[1])
        return names

    async def written_for(self, revision: str, role: Role) -> list[str]:
        """The scenarios of a revision, whether there are requirements or not."""
        status, text = await self.run("list", f"--{role}", "--spec-version", revision)
        assert status == 0, text
        return re.findall(r"^  - (\S+) \[", text, re.MULTILINE)

    async def extensions(self, role: Role) -> list[str]:
        """The scenarios that belong to no revision."""
        status, text = await self.run("list", f"--{role}")
        assert status == 0, text
        return re.findall(r"^  - (\S+) \[extension\]$", text, re.MULTILINE)

    async def drive_server(self, url: str, results: Path, *selection: str) -> dict[str, list[str]]:
        """Drive a server. What is wrong or was skipped, by scenario; nothing where it passes. Warnings count."""
        _, text = await self.run("server", "--url", url, "-o", str(results), *selection)
        faults = faults_by_scenario(results)
        assert faults, text
        return faults

    async def drive_client(self, command: Sequence[str], scenario: str, *selection: str) -> str:
        """Drive a client. What is printed where it fails, by its checks or its exit status; what was skipped where it
        does not; nothing where it passes."""
        words = ("--command", " ".join(command), "--scenario", scenario, "--timeout", str(CLIENT_LIMIT), *selection)
        with TemporaryDirectory() as results:
            status, text = await self.run("client", "-o", results, *words)
            found = faults_below(Path(results))
        return "\n".join(filter(is_skip, found)) if status == 0 else f"exit status {status}\n{text}"


async def kill_group(process: trio.Process) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def faults_by_scenario(results: Path) -> dict[str, list[str]]:
    """What is wrong by the results that were stored, each in a folder of its scenario and the time."""
    faults: dict[str, list[str]] = {}
    for checks in results.rglob("checks.json"):
        name = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT.*Z", checks.parent.relative_to(results).as_posix())
        assert name is not None, checks
        faults[name[1]] = faults_in(checks)
    return faults


def faults_below(results: Path) -> list[str]:
    return [fault for checks in results.rglob("checks.json") for fault in faults_in(checks)]


def faults_in(checks: Path) -> list[str]:
    """What is wrong, or was skipped, by the checks of one scenario."""
    return [
        f"{check['status']} {check['id']}: {check.get('errorMessage') or check['description']}"
        for check in json.loads(checks.read_text())
        if check["status"] in ("FAILURE", "WARNING", "SKIPPED")
    ]


def is_skip(fault: str) -> bool:
    """Whether the suite did not check this at all, which it counts as passed."""
    return fault.startswith("SKIPPED ")


def expected_failures(role: Role) -> set[str]:
    """The scenarios that may fail: the list of a role in the file, whose form is the suite's own."""
    return listed(EXPECTED, role)


def known_skips(role: Role) -> set[str]:
    """The scenarios that the suite skips in part or as a whole."""
    return listed(SKIPS, role)


def listed(file: Path, role: Role) -> set[str]:
    section = re.search(rf"^{role}:\n((?:  - \S+\n)*)", file.read_text(), re.MULTILINE)
    assert section is not None, file
    return set(re.findall(r"^  - (\S+)$", section[1], re.MULTILINE))


def judge(role: Role, faults: dict[str, list[str]]) -> None:
    """Fail for every scenario that fails and is not expected to, or passes and is expected to fail; and for one that
    the suite skips without being known for it, or does not skip any more. Warn of those that it skips."""
    expected = expected_failures(role) & faults.keys()
    failed = {name: [fault for fault in found if not is_skip(fault)] for name, found in faults.items()}
    unexpected = {name: found for name, found in failed.items() if found and name not in expected}
    stale = sorted(name for name in expected if not failed[name])
    assert not unexpected, "\n\n".join("\n".join([name, *found]) for name, found in unexpected.items())
    assert not stale, f"take out of {EXPECTED.name}, they pass: {stale}"
    skipped = {name for name, found in faults.items() if any(map(is_skip, found))}
    known = known_skips(role) & faults.keys()
    assert skipped == known, (
        f"{SKIPS.name}: not listed {sorted(skipped - known)}, not skipped {sorted(known - skipped)}"
    )
    if skipped:
        warnings.warn(f"{role}: {len(skipped)} of {len(faults)} skipped: {sorted(skipped)}", Skipped, stacklevel=2)
