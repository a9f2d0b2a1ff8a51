"""What a release is made of: the wheel and the sdist are built, installed and run, and their page holds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from hashlib import sha256
from pathlib import Path

import pytest
from tests.cli.commands import TRIO_MCP
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
UV = (sys.executable, "-m", "uv")
SERVER = """
from trio_mcp import Server

server = Server("weather", "1.0.2", description="Weather for places")

@server.tool
async def forecast(place: str) -> str:
    return f"rain in {place}"
"""
UNREACHABLE = re.compile(
    "error sending request|not found in the package registry|No matching distribution found|Retrying"
)
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=4 * PATIENCE, check=False)


def build(source: Path, folder: Path, **environment: str) -> None:
    built = run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source, **environment)
    assert built.returncode == 0, built.stderr


def unpacked(release: Path, folder: Path) -> Path:
    """The source of the sdist."""
    (sdist,) = release.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        files.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


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
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(files.read(name))


@pytest.fixture(scope="session")
def page(metadata: Message) -> str:
    """The text of the package's page."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    return str(metadata.get_payload(decode=True), "utf-8")  # type: ignore[arg-type]


def test_wheel_contains_only_package_type_marker_inspector_page_scripts_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"trio_mcp", "pytest_trio_mcp.py"}
    assert "trio_mcp/py.typed" in names
    served = (ROOT / "src/trio_mcp/inspecting/page").iterdir()
    assert {f"trio_mcp/inspecting/page/{file.name}" for file in served} <= set(names)
    scripts = {str(file.relative_to(ROOT / "src")) for kind in ("lua", "sql") for file in ROOT.glob(f"src/**/*.{kind}")}
    assert {file.rpartition(".")[2] for file in scripts} == {"lua", "sql"}
    assert scripts <= set(names)
    assert "trio_mcp/recording/timeline.css" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_built_from_the_sdist_is_identical(release: Path, wheel: Path, tmp_path: Path) -> None:
    build(unpacked(release, tmp_path / "source"), tmp_path / "again")
    (again,) = (tmp_path / "again").glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_two_builds_of_the_package_from_one_source_are_identical(release: Path, tmp_path: Path) -> None:
    """Wherever it is, whenever its files were written, and whoever may read them."""
    sums: list[dict[str, str]] = []
    for number, mode in enumerate((0o644, 0o600)):
        source = unpacked(release, tmp_path / f"source {number}")
        for file in source.rglob("*.py"):
            file.chmod(mode)
            os.utime(file, (10**9 + number, 10**9 + number))
        folder = tmp_path / f"built {number}"
        build(source, folder, SOURCE_DATE_EPOCH="1893456000")
        sums.append({file.name: sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()})
    assert sums[0] == sums[1]
    assert {name.rpartition(".")[2] for name in sums[0]} == {"whl", "gz"}


def test_wheel_metadata_matches_pyproject(metadata: Message) -> None:
    trove_classifiers = pytest.importorskip("trove_classifiers")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = {name: metadata[name] for name in ("Name", "Version", "Summary", "License-Expression", "Requires-Python")}
    assert told == {
        "Name": "trio-mcp",
        "Version": project["version"],
        "Summary": project["description"],
        "License-Expression": "MIT",
        "Requires-Python": project["requires-python"],
    }
    assert f"Copyright (c) 2026 {metadata['Author']}\n" in (ROOT / "LICENSE").read_text()
    assert set(metadata.get_all("Classifier", [])) <= trove_classifiers.classifiers
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])


def test_changelog_starts_with_the_version_of_the_release(metadata: Message) -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0].startswith(f"{metadata['Version']} (")


def test_change_fragments_are_merged_into_a_changelog_section(tmp_path: Path) -> None:
    pytest.importorskip("towncrier", reason="needs what makes the changelog: pip install -e '.[dev]'")
    for file in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / file, tmp_path)
    before = (ROOT / "CHANGELOG.md").read_text()
    folder = shutil.copytree(ROOT / "changelog.d", tmp_path / "changelog.d")
    (folder / "+quick.added.md").write_text("A server may be quick: `Server(quick=True)`.\n")
    (folder / "+slow.fixed.md").write_text("A slow server is quick again.\n")
    made = run(
        *(sys.executable, "-m", "towncrier", "build", "--yes", "--version", "9.9.9", "--date", "2030-01-02"),
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    head, rest = before.split("<!-- releases, the newest first -->\n")
    new = (tmp_path / "CHANGELOG.md").read_text().removeprefix(head).removesuffix(rest)
    assert "## 9.9.9 (2030-01-02)\n\n### " in new
    kinds = dict(part.split("\n\n", 1) for part in new.split("### ")[1:])  # with the fragments that wait for a release
    assert "- A server may be quick: `Server(quick=True)`.\n" in kinds["Added"]
    assert "- A slow server is quick again.\n" in kinds["Fixed"]
    assert [file.name for file in folder.iterdir()] == [".gitignore"]  # it knows the kind of each fragment


def test_package_index_page_has_absolute_links_and_the_code_of_the_readme(page: str) -> None:
    readme = (ROOT / "README.md").read_text()
    assert CODE.findall(page) == CODE.findall(readme)
    links = re.findall(r"\]\(([^)]*)\)", CODE.sub("", page))
    assert links
    assert {link for link in links if not link.startswith("https://")} == set()
    assert "![" not in page
    [alternative] = re.findall(r"!\[([^\]]*)\]", readme)  # the text of the picture, which stands in its place
    assert f"\n{alternative}" in page


def test_installed_wheel_runs_the_demo_without_the_source(wheel: Path, tmp_path: Path) -> None:
    """Dependencies are those of this environment, whose own copy of the package stands behind the installed one."""
    installed = run(*UV, "pip", "install", "--no-deps", "--target", tmp_path / "installed", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    where = "import trio_mcp; print(trio_mcp.__file__)"
    found = run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert found.stdout.startswith(str(tmp_path / "installed")), found.stderr
    ran = run(sys.executable, "-m", "trio_mcp.cli", "demo", cwd=tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("runner", ["uvx", "pipx"])
def test_uvx_and_pipx_can_run_the_trio_mcp_command_from_the_wheel(wheel: Path, tmp_path: Path, runner: str) -> None:
    """In an environment of its own, with dependencies from a package index. `uvx` is `uv tool run`."""
    requirement = f"trio-mcp[cli] @ {wheel.as_uri()}"
    command = {
        "uvx": (*UV, "tool", "run", "--from", requirement, "trio-mcp", "demo"),
        "pipx": (sys.executable, "-m", "pipx", "run", "--spec", requirement, "trio-mcp", "demo"),
    }[runner]
    pytest.importorskip(command[2], reason="needs what a release is tried with: pip install -e '.[dev]'")
    own = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    ran = run(*command, cwd=tmp_path, **own)
    if ran.returncode and (unreachable := UNREACHABLE.search(ran.stderr)):
        pytest.skip(f"needs a package index: {unreachable[0]}")
    assert ran.returncode == 0, ran.stderr
    assert "finally" in ran.stdout


def test_unpacked_mcpb_bundle_runs_with_the_command_that_mcp_hosts_use(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("uv", reason="needs what hosts start bundles with: pip install -e '.[dev]'")
    server = tmp_path / "weather" / "app.py"
    server.parent.mkdir()
    server.write_text(SERVER)
    packed = run(*TRIO_MCP, "pack", server, "--name", "com.example/weather", cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr
    (bundle,) = tmp_path.rglob("*.mcpb")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle) as files:
        files.extractall(unpacked)
    started = json.loads((unpacked / "manifest.json").read_text())["server"]["mcp_config"]
    assert started["command"] == "uv"
    args = [arg.replace("${__dirname}", str(unpacked)) for arg in started["args"]]
    source = ["env", f"UV_FIND_LINKS={wheel.parent}"]  # until the package is in the index
    called = run(*TRIO_MCP, "call", "forecast", "place=Rome", "--", *source, *UV, *args, cwd=tmp_path)
    if called.returncode and (unreachable := UNREACHABLE.search(called.stderr)):
        pytest.skip(f"needs a package index: {unreachable[0]}")
    assert (called.returncode, called.stdout) == (0, "rain in Rome\n"), called.stderr
