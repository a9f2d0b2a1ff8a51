"""Environments: each peer lives in one of its own, which is made once and kept in the user's cache."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["FASTMCP", "OFFICIAL", "OURS", "compile_checkout", "python_of", "versions_of"]

_ROOT = Path(__file__).parent.parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "trio-mcp-benchmarks"

OURS = ("-e", str(_ROOT), "orjson")
"""This checkout, and what the floor needs, so that both run on the very same trio."""
OFFICIAL = ("mcp>=2.3,<3", "trio")
FASTMCP = ("fastmcp>=4.1,<5",)

_SHOWN = ("trio-mcp", "trio", "trio-websocket", "msgspec", "orjson", "mcp", "fastmcp", "anyio", "pydantic")


def python_of(requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment that has ``requirements``. Makes it when it is not there."""
    name = hashlib.sha256("\n".join([sys.version, _dependencies(requirements), *requirements]).encode()).hexdigest()
    place = _CACHE / name[:16]
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        print(f"making an environment for {' '.join(requirements)} in {place}", file=sys.stderr, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *requirements], check=True)
        (place / "complete").touch()
    return python


def compile_checkout() -> None:
    """Bring its bytecode up to date. pip has done so for all that is installed, and a start that compiles what was
    edited since is no start that users see."""
    compileall.compile_dir(_ROOT / "src", quiet=1)


def _dependencies(requirements: tuple[str, ...]) -> str:
    """What else decides on what is installed."""
    return (_ROOT / "pyproject.toml").read_text() if "-e" in requirements else ""


def versions_of(requirements: tuple[str, ...]) -> dict[str, str]:
    """What is installed there of what matters here."""
    listing = subprocess.run(
        [python_of(requirements), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        check=True,
        capture_output=True,
    )
    installed = {package["name"]: package["version"] for package in json.loads(listing.stdout)}
    return {name: installed[name] for name in _SHOWN if name in installed}
