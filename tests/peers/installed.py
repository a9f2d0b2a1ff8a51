"""Installed: software of peers that the test environment does not have, kept in pytest's cache."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = [
    "OTHER_SDKS_ARE_MISSING",
    "WHY_SKIPPED",
    "install",
    "install_locked",
    "installed_once",
    "needs_other_sdks",
    "node_in",
    "python_with",
]

OTHER_SDKS_ARE_MISSING = any(find_spec(name) is None for name in ("mcp", "fastmcp"))
WHY_SKIPPED = "needs other SDKs: pip install -e '.[dev]'"
needs_other_sdks = pytest.mark.skipif(OTHER_SDKS_ARE_MISSING, reason=WHY_SKIPPED)

NODE = 22
"""Major version that the packages need whose lock has a Node for where it is missing."""
PATIENCE = 90.0
"""Seconds after which no package index is there; no measure of speed."""


def installed_once(config: pytest.Config, name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` in the cache, which ``make`` fills when it is not there. Others wait meanwhile."""
    cache = config.cache.mkdir("peers")
    made, making = cache / name, cache / f"{name}.part"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            # Complete under its final name or not there at all, also when this is interrupted.
            shutil.rmtree(making, ignore_errors=True)
            make(making)
            making.rename(made)
    return made


def install(what: str, command: Sequence[str | Path], cwd: Path | None = None) -> None:
    """Run an installer. Where it fails, ``what`` cannot be had, and the tests that need it are skipped."""
    try:
        subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} could not be installed: {command[0]} took longer than {PATIENCE:g} s")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{what} could not be installed: {error}: {(error.stderr or '')[-300:]}")


def python_with(config: pytest.Config, name: str, *packages: str) -> Path:
    """Return the interpreter of an environment that has only ``packages``, made once by the name ``name``.

    The name must say the versions: the environment is kept as long as its name is the same.
    """

    def make(path: Path) -> None:
        install(name, [sys.executable, "-m", "venv", path])
        uv = Path(sys.executable).with_name("uv")  # takes a tenth of pip's time
        pip = [uv, "pip", "install", "--python", path / "bin" / "python"]
        if not uv.exists():
            pip = [path / "bin" / "python", "-m", "pip", "install", "--no-input", "--retries=1"]
        install(name, [*pip, "--quiet", *packages])

    version = f"python-{sys.version_info.major}.{sys.version_info.minor}"
    return installed_once(config, f"{name}-{version}", make) / "bin" / "python"


def install_locked(what: str, lock: Path, path: Path) -> None:
    """Install the packages of ``lock``, and of the package.json beside it, into the new folder ``path``."""
    path.mkdir()
    for name in ("package.json", lock.name):
        shutil.copy(lock.parent / name, path)
    npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=1"]
    install(what, npm, cwd=path)


def node_in(packages: Path, what: str) -> str:
    """The Node that came with ``packages``, else the machine's own, when it is new enough for ``what``."""
    for node in packages.glob("node_modules/node-*/bin/node"):
        return str(node)
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < NODE:
        pytest.skip(f"{what} needs Node {NODE} or newer, and this is {version}")
    return "node"
