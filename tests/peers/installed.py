"""Installed: software of peers that the test environment does not have, kept in pytest's cache."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["OTHER_SDKS_ARE_MISSING", "WHY_SKIPPED", "install", "installed_once", "needs_other_sdks"]

OTHER_SDKS_ARE_MISSING = any(find_spec(name) is None for name in ("mcp", "fastmcp"))
WHY_SKIPPED = "needs other SDKs: pip install -e '.[dev]'"
needs_other_sdks = pytest.mark.skipif(OTHER_SDKS_ARE_MISSING, reason=WHY_SKIPPED)

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
