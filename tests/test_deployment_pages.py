"""The commands, unit, image, compose file and manifests in `docs/deployment` are valid, and fit the command."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import click
import pytest
from tests.pages import Page

from trio_mcp import Limits
from trio_mcp.cli.group import trio_mcp

PAGES = Page("deployment").text
WORKERS = Page("deployment/workers.md").text


def block(language: str, pages: str = PAGES) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", pages, flags=re.DOTALL)
    return text


def linter(name: str) -> str:
    """The path of a program of Python's environment."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def options_of_run() -> set[str]:
    command = trio_mcp.get_command(click.Context(trio_mcp), "run")
    assert command is not None
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def test_documented_options_exist_in_trio_mcp_run() -> None:
    shown = block("sh", WORKERS).replace("--database", "") + block("shell") + block("systemd") + block("dockerfile")
    named = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", shown))
    table = WORKERS.split("\n## Options of trio-mcp run\n")[1].split("\n## ")[0]
    named |= set(re.findall(r"`(--[a-z]+(?:-[a-z]+)*)", table))
    assert named - {"--no-cache-dir"} <= options_of_run()


def test_hadolint_accepts_the_documented_dockerfile(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(block("dockerfile"))
    done = subprocess.run([linter("hadolint"), tmp_path / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_systemd_accepts_the_documented_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = block("systemd").replace("/srv/mcp/.venv/bin/trio-mcp", sys.executable).replace("User=mcp\n", "")
    (tmp_path / "mcp.service").write_text(unit)
    done = subprocess.run([analyze, "verify", tmp_path / "mcp.service"], capture_output=True, text=True, check=False)
    assert "mcp.service" not in done.stderr, done.stderr


def loaded(language: str) -> list[dict[str, Any]]:
    """The documents of a file of the page."""
    yaml = pytest.importorskip("yaml")
    return cast("list[dict[str, Any]]", list(yaml.safe_load_all(block(language))))


def options_in(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def test_documented_compose_file_matches_the_compose_schema(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(block("yaml-compose"))
    command = [linter("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_names_of_services_in_the_documented_compose_file_are_consistent() -> None:
    (compose,) = loaded("yaml-compose")
    services = compose["services"]
    replicas = {name: service for name, service in services.items() if name.startswith("mcp-")}
    assert len(replicas) == 3
    for service in replicas.values():
        assert options_in(service["command"]) <= options_of_run()
        assert "@redis:6379" in service["environment"]["TRIO_MCP_SHARED"]
        assert service["networks"]["default"]["ipv4_address"].startswith("10.5.0.")
        assert "/readyz" in str(service["healthcheck"]["test"])
        assert set(service["depends_on"]) <= set(services)
    assert len({service["networks"]["default"]["ipv4_address"] for service in replicas.values()}) == 3
    assert set(services["nginx"]["depends_on"]) == set(replicas)
    told = " ".join(services["redis"]["command"])
    assert all(word in told for word in ("--appendonly yes", "--appendfsync everysec", "--maxmemory-policy noeviction"))


def test_documented_kubernetes_manifests_match_the_schema(tmp_path: Path) -> None:
    (tmp_path / "mcp.yaml").write_text(block("yaml-kubernetes"))
    command = [linter("kubernetes-validate"), "--strict", "--no-warn", tmp_path / "mcp.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_in_the_documented_kubernetes_manifests_are_consistent() -> None:
    of = {each["kind"]: each for each in loaded("yaml-kubernetes")}
    deployment = of["Deployment"]["spec"]
    labels, pod = deployment["template"]["metadata"]["labels"], deployment["template"]["spec"]
    selectors = [deployment["selector"]["matchLabels"], of["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]]
    spread = [each["labelSelector"]["matchLabels"] for each in pod["topologySpreadConstraints"]]
    assert [labels] * 4 == [*selectors, of["Service"]["spec"]["selector"], *spread]
    (container,) = pod["containers"]
    assert options_in(container["args"]) <= options_of_run()
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "startup")} == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    (port,) = container["ports"]
    assert {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("liveness", "readiness")} == {port["name"]}
    assert of["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    (variable,) = container["env"]
    secret = variable["valueFrom"]["secretKeyRef"]
    assert (variable["name"], secret["name"]) == ("TRIO_MCP_SHARED", of["Secret"]["metadata"]["name"])
    assert secret["key"] in of["Secret"]["stringData"]


def test_documented_stop_grace_periods_are_longer_than_the_documented_drain_timeout() -> None:
    named = re.findall(r"Limits\(drain_delay=(\d+), drain_timeout=(\d+)\)", PAGES)
    assert set(named) == {("5", "20")}
    least = 5 + 20 + math.ceil(Limits().shutdown_grace) + 5
    (compose,) = loaded("yaml-compose")
    of = {each["kind"]: each for each in loaded("yaml-kubernetes")}
    assert of["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= least
    assert int(compose["services"]["mcp-1"]["stop_grace_period"].removesuffix("s")) >= least
