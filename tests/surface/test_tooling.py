"""The tools around the package: scripts, pinned versions, and what may not stand in a file of the repository."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from unittest import mock

import pytest
from packaging.requirements import Requirement

from pbgeval.storage import writing

REPOSITORY = Path(__file__).resolve().parents[2]

# Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"/(wor[k]|far[m]|roo[t])/|/hom[e]/\w+/")
REGISTRY_HOST = re.compile(
    r"py[p]i\.org|python[h]osted\.org|download\.py[t]orch\.org|ana[c]onda\.(org|com)|docker[.]io|gh[c]r\.io|qua[y]\.io"
)


def repository_files() -> list[Path]:
    """Files that are or would be committed."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [REPOSITORY / name for name in listing.stdout.splitlines() if (REPOSITORY / name).is_file()]


def constraints() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in pairs}


@pytest.mark.parametrize("name", ["scripts/test", "scripts/peers", ".ci/run"])
def test_a_command_is_an_executable_bash_script(name: str) -> None:
    path = REPOSITORY / name

    assert "#!/usr/bin/env bash" == path.read_text(encoding="utf-8").splitlines()[0]
    assert os.access(path, os.X_OK)


def test_every_script_without_a_suffix_is_executable_and_names_its_interpreter() -> None:
    scripts = [path for path in (REPOSITORY / "scripts").iterdir() if path.is_file() and not path.suffix]

    assert [] == [path.name for path in scripts if not os.access(path, os.X_OK)]
    assert [] == [path.name for path in scripts if not path.read_text(encoding="utf-8").startswith("#!/usr/bin/env ")]


def test_ci_runs_every_test_by_the_one_command() -> None:
    assert "scripts/test --all" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")


def test_the_constraints_pin_one_version_without_local_tag_of_every_dependency() -> None:
    pinned = constraints()
    setup = (REPOSITORY / "setup.py").read_text(encoding="utf-8")
    needed = re.findall(r'^ {4,}"([a-z0-9-]+)(?:>=[\d.]+)?",$', setup, flags=re.MULTILINE)

    assert "2.13.0" == pinned["torch"]
    assert {"torch", "typer", "pytest", "import-linter"} <= set(needed)
    assert [] == [name for name in needed if name not in pinned]
    assert [] == [name for name, version in pinned.items() if "+" in version]


def test_every_requirement_has_a_lowest_version_that_is_not_above_the_pinned_one() -> None:
    pinned = constraints()
    setup = (REPOSITORY / "setup.py").read_text(encoding="utf-8")
    texts = re.findall(r'"([^"\s]+)"(?=[,\]])', setup[setup.index("install_requires") : setup.index("entry_points")])
    lowest = {(of := Requirement(text)).name: (str(of.specifier), text) for text in texts}

    assert len(lowest) > 30
    assert [] == [text for bound, text in lowest.values() if not bound.startswith(">=")]
    assert [] == [text for name, (_, text) in lowest.items() if pinned[name] not in Requirement(text).specifier]


def test_pyproject_configures_tools_only() -> None:
    assert {"build-system", "tool"} == set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")))


def test_the_version_stands_in_one_place_and_in_the_changelog() -> None:
    version = runpy.run_path(str(REPOSITORY / "pbgeval" / "version.py"))["__version__"]

    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert "## [Unreleased]" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert version not in (REPOSITORY / "setup.py").read_text(encoding="utf-8")


def test_an_unknown_peer_is_refused_in_one_line_that_names_the_known_ones() -> None:
    done = subprocess.run([REPOSITORY / "scripts" / "peers", "x"], capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    peers = "torchbiggraph, pykeen, openbiolink, lightning, metrics, templates, sinks, foreign, objects"
    assert f"scripts/peers: unknown peer 'x': expected one of {peers}\n" == done.stderr


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY_HOST], ids=["machine path", "registry host"])
def test_no_file_names_a_path_of_one_machine_or_a_registry(pattern: re.Pattern[str]) -> None:
    found = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a data file
        found += [f"{path.relative_to(REPOSITORY)}: {match[0]}" for match in pattern.finditer(text)]

    assert [] == found


def test_runs_in_this_process_wait_for_no_disk() -> None:
    """What tests replace is asked at each call, so that it is no matter when a module was imported."""
    with mock.patch("os.fsync") as waited:
        writing.system.sync(7)
    waited.assert_called_once_with(7)
