"""The authorization server of ``examples/authorization``: its packages are got once, or words say what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from examples.authorization.provider import FILES, CannotInstall, installed, version
from tests.cli.commands import run

ROOT = Path(__file__).parent.parent
NODE = "echo new enough"
NPM = "mkdir node_modules && echo once >> installations"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all programs but those of the shell; the cache is empty."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def write(folder: Path, **programs: str) -> None:
    for name, script in programs.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        program.chmod(0o755)


def test_npm_packages_of_the_authorization_example_are_installed_once(programs: Path) -> None:
    write(programs, node=NODE, npm=NPM)
    folder = installed()
    assert folder == installed() == programs / "cache" / "trio-mcp" / version()
    assert (folder / "installations").read_text() == "once\n"
    assert all((folder / name).is_file() for name in FILES)


def test_interrupted_npm_installation_is_repeated(programs: Path) -> None:
    write(programs, node=NODE, npm=NPM)
    part = programs / "cache" / "trio-mcp" / f"{version()}.part"
    (part / "node_modules").mkdir(parents=True)
    assert (installed() / "installations").read_text() == "once\n"
    assert not part.exists()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({}, "node and npm cannot be found; install Node.js 22 or newer, with npm"),
        ({"node": NODE}, "npm cannot be found; install"),
        ({"node": "echo v18.19.0", "npm": NPM}, "Node.js 22 or newer is needed, and `node` is v18.19.0"),
        ({"node": "exit 1", "npm": NPM}, "and `node` is broken"),
        ({"node": NODE, "npm": "echo 'no registry' >&2; exit 3"}, "npm failed with status 3: no registry"),
    ],
)
def test_missing_node_or_npm_raises_cannot_install_that_says_what_to_do(
    programs: Path, there: dict[str, str], words: str
) -> None:
    write(programs, **there)
    with pytest.raises(CannotInstall) as caught:
        installed()
    assert words in str(caught.value)


def test_unwritable_cache_folder_raises_cannot_install(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(programs, node=NODE, npm=NPM)
    (programs / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(programs / "file"))
    with pytest.raises(CannotInstall, match="the cache cannot be written"):
        installed()


async def test_authorization_example_reports_that_node_is_missing(programs: Path) -> None:
    ended = await run([sys.executable, "-m", "examples.authorization"], cwd=ROOT)
    assert (ended.status, ended.stdout.count("\n")) == (1, 3)
    assert ended.stderr == ("trio-mcp demo: node and npm cannot be found; install Node.js 22 or newer, with npm\n")
