"""What `docs/deployment.md` shows beside the proxies: commands, a unit, an image and probes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from trio_mcp.cli.group import trio_mcp

PAGE = (Path(__file__).parent.parent / "docs" / "deployment.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return text


def options_of_run() -> set[str]:
    command = trio_mcp.get_command(click.Context(trio_mcp), "run")
    assert command is not None
    return {option for parameter in command.params for option in parameter.opts}


def test_the_options_of_the_page_are_those_of_the_command() -> None:
    named = set(re.findall(r"--[a-z]+", block("sh").replace("--database", "") + block("systemd") + block("dockerfile")))
    table = PAGE.split("\n## Processes\n")[1].split("\n## ")[0]
    named |= set(re.findall(r"`(--[a-z]+)", table))
    assert named - {"--no"} <= options_of_run()


def test_the_image_pleases_its_linter(tmp_path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    (tmp_path / "Dockerfile").write_text(block("dockerfile"))
    done = subprocess.run([hadolint, tmp_path / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_unit_is_one_for_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = block("systemd").replace("/srv/mcp/.venv/bin/trio-mcp", sys.executable).replace("User=mcp\n", "")
    (tmp_path / "mcp.service").write_text(unit)
    done = subprocess.run([analyze, "verify", tmp_path / "mcp.service"], capture_output=True, text=True, check=False)
    assert "mcp.service" not in done.stderr, done.stderr
