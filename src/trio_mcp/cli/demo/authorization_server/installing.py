"""install and installed: the packages of the authorization server, got by npm."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
FILES: Final = ("package.json", "package-lock.json", "server.js")
PATIENCE: Final = 90.0
"""Seconds after which no package registry is there; no measure of speed."""
_NODE: Final = 22
_NPM: Final = (
    "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=1",
)  # fmt: skip


class CannotInstall(Exception):
    """Node or npm is missing, or the packages cannot be had. The message says what to do."""


def version() -> str:
    """Return a name for what is installed, which changes with every file."""
    digest = hashlib.sha256(b"\0".join((HERE / name).read_bytes() for name in FILES))
    return f"authorization-server-{digest.hexdigest()[:16]}"


def install(folder: Path) -> None:
    """Install the server and its packages into the new ``folder``. Raises `CannotInstall`."""
    _check_node()
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    try:
        subprocess.run(_NPM, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=True)  # noqa: S603 - no shell
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"npm took longer than {PATIENCE:g} s: is there a package registry?") from None
    except subprocess.CalledProcessError as error:
        raise CannotInstall(f"npm failed with status {error.returncode}: {error.stderr.strip()[-300:]}") from None


def place() -> Path:
    """Return the folder in the user's cache where the server is, or will be."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trio-mcp" / version()


def installed() -> Path:
    """Return the folder of the server in the user's cache, which is filled when there is none. Other processes wait
    meanwhile. Raises `CannotInstall`."""
    _check_node()
    made = place()
    cache, making = made.parent, made.with_suffix(".part")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "installing.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                # Complete under its final name or not there at all, also when this is interrupted.
                shutil.rmtree(making, ignore_errors=True)
                install(making)
                making.rename(made)
    except OSError as error:
        raise CannotInstall(f"the cache cannot be written: {error}") from None
    return made


def _check_node() -> None:
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        raise CannotInstall(f"{' and '.join(missing)} cannot be found; install Node.js {_NODE} or newer, with npm")
    # Asked for what the packages need, since the newest of the older Nodes have the same.
    command = ["node", "--print", "URL.parse && require('crypto').hash ? 'new enough' : process.version"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - no shell
    if told != "new enough":
        raise CannotInstall(f"Node.js {_NODE} or newer is needed, and `node` is {told or 'broken'}")
