"""What a release is made of: the wheel and the sdist are built, installed and run, and their page holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
UV = (sys.executable, "-m", "uv")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=4 * PATIENCE, check=False)


def build(source: Path, folder: Path) -> None:
    built = run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source)
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist."""
    pytest.importorskip("hatchling", reason="needs what builds a release: pip install -e '.[dev]'")
    folder = tmp_path_factory.mktemp("release")
    build(ROOT, folder)
    return folder


@pytest.fixture(scope="session")
def wheel(release: Path) -> Path:
    (file,) = release.glob("*.whl")
    return file


@pytest.fixture(scope="session")
def page(wheel: Path) -> str:
    """The text of the package's page."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        message = message_from_bytes(files.read(name))
    assert message["Description-Content-Type"] == "text/markdown"
    return str(message.get_payload(decode=True), "utf-8")  # type: ignore[arg-type]


def test_the_wheel_has_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"trio_mcp", "pytest_trio_mcp.py"}
    assert "trio_mcp/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_gives_the_same_wheel(release: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = release.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        files.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build(source, tmp_path / "again")
    (again,) = (tmp_path / "again").glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_links_of_the_page_lead_to_other_hosts_alone_and_its_code_is_that_of_the_readme(page: str) -> None:
    readme = (ROOT / "README.md").read_text()
    assert CODE.findall(page) == CODE.findall(readme)
    links = re.findall(r"\]\(([^)]*)\)", CODE.sub("", page))
    assert links
    assert {link for link in links if not link.startswith("https://")} == set()


def test_the_installed_wheel_runs_the_demo_without_the_source(wheel: Path, tmp_path: Path) -> None:
    """Dependencies are those of this environment, whose own copy of the package stands behind the installed one."""
    installed = run(*UV, "pip", "install", "--no-deps", "--target", tmp_path / "installed", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    where = "import trio_mcp; print(trio_mcp.__file__)"
    found = run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert found.stdout.startswith(str(tmp_path / "installed")), found.stderr
    ran = run(sys.executable, "-m", "trio_mcp.cli", "demo", cwd=tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert ran.returncode == 0, ran.stderr


def test_uvx_runs_the_command_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """`uvx` is `uv tool run`: in an environment of its own, with dependencies from a package index."""
    ran = run(*UV, "tool", "run", "--from", f"trio-mcp[cli] @ {wheel.as_uri()}", "trio-mcp", "demo", cwd=tmp_path)
    if ran.returncode and re.search("error sending request|not found in the package registry", ran.stderr):
        pytest.skip(f"needs a package index: {ran.stderr.splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr
