"""The wheel and the source distribution: what is in them, what they say of themselves, and that they work elsewhere."""

from __future__ import annotations

import email.message
import email.parser
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import pbgeval
from tests.installed_wheel import Built, InstalledWheel, build_wheel, requirements_of
from tests.kit.case import TinyCase
from tests.kit.commands import REPOSITORY, evaluated, numbers_of, start

pytestmark = pytest.mark.slow

DIST_INFO = f"pbgeval-{pbgeval.__version__}.dist-info"


def files_of_package() -> set[str]:
    """Return the files of pbgeval/ in the checkout."""
    paths = (path for path in (REPOSITORY / "pbgeval").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(REPOSITORY).as_posix() for path in paths}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def documents() -> set[Path]:
    """Return the pages and pictures of docs/, without those that are made of the code."""
    found = {path for path in (REPOSITORY / "docs").rglob("*") if path.suffix in {".md", ".png", ".svg"}}
    made = {path for path in found if path.parent.name == "reference" and path.name != "output_files.md"}
    return found - made


def metadata(wheel: Path, name: str = "METADATA") -> email.message.Message:
    return email.parser.Parser().parsestr(contents(wheel)[f"{DIST_INFO}/{name}"].decode())


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built: Built) -> None:
    found = contents(built.wheel)
    package = {name for name in found if not name.startswith(f"{DIST_INFO}/")}

    assert files_of_package() == package
    assert {"pbgeval/py.typed", "pbgeval/__main__.py", "pbgeval/scoring/chain_kernels.py"} < package
    examples = {"demo_graph/train.tsv.gz", "demo_graph/eval.py", "cluster_jobs/slurm.sbatch", "export_libkge.py"}
    assert {f"pbgeval/examples/{name}" for name in examples} < package
    page = {name for name in package if name.startswith("pbgeval/report/templates/") and not name.endswith(".py")}
    assert {PurePosixPath(name).suffix for name in page} == {".html", ".css", ".js"}
    assert [name for name in package if found[name] != (REPOSITORY / name).read_bytes()] == []


def test_the_wheel_says_what_it_is(built: Built) -> None:
    said = metadata(built.wheel)

    expected = {
        "Name": "pbgeval",
        "Version": pbgeval.__version__,
        "Requires-Python": ">=3.11",
        "Description-Content-Type": "text/markdown",
    }
    assert {name: said[name] for name in expected} == expected
    assert said["Summary"]
    assert (said["License-Expression"] or said["License"]) == "BSD-3-Clause"
    licenses = [data for name, data in contents(built.wheel).items() if name.endswith("/LICENSE")]
    assert [(REPOSITORY / "LICENSE").read_bytes()] == licenses
    assert (REPOSITORY / "PACKAGE.md").read_text(encoding="utf-8").strip() == str(said.get_payload()).strip()
    assert said["Keywords"].split(",")[0] == "knowledge graph embedding"
    classifiers = set(said.get_all("Classifier") or [])
    assert {"Typing :: Typed", "Environment :: Console", "Programming Language :: Python :: 3.11"} < classifiers
    assert (metadata(built.wheel, "WHEEL")["Root-Is-Purelib"], built.wheel.stem[-12:]) == ("true", "py3-none-any")
    entry_points = contents(built.wheel)[f"{DIST_INFO}/entry_points.txt"].decode()
    assert entry_points.split("\n")[:2] == ["[console_scripts]", "kgeval-dist = pbgeval.__main__:main"]


def test_the_source_distribution_makes_the_same_wheel(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        members = {
            PurePosixPath(*PurePosixPath(member.name).parts[1:]).as_posix(): archive.extractfile(member)
            for member in archive.getmembers()
            if member.isfile()
        }
        found = {name: file.read() for name, file in members.items() if file is not None}

    own = {"LICENSE", "README.md", "PACKAGE.md", "CHANGELOG.md", "CITATION.cff", "constraints.txt", "pyproject.toml"}
    own |= {"setup.py"} | {path.relative_to(REPOSITORY).as_posix() for path in documents()}
    made = {name for name in found if name in ("PKG-INFO", "setup.cfg") or name.startswith("pbgeval.egg-info/")}
    assert files_of_package() | own | {"MANIFEST.in"} == set(found) - made
    assert [name for name in own if found[name] != (REPOSITORY / name).read_bytes()] == []
    assert contents(built.wheel) == contents(build_wheel(built.sdist, tmp_path / "again"))


def test_an_installed_wheel_evaluates_like_the_checkout(installed: InstalledWheel, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", filter_paths=["edges"], candidates="all")
    arguments = ["--workers", "2", "--quiet", "--output", tmp_path / "out"]
    (tmp_path / "elsewhere").mkdir()
    done = installed.run("--config", case.config, *arguments, cwd=tmp_path / "elsewhere", program="kgeval-dist")

    assert done.printed == ""
    evaluated(case)
    assert numbers_of(case.root / "output") == numbers_of(tmp_path / "out")


def test_an_environment_with_the_lowest_versions_keeps_them(built: Built, tmp_path: Path) -> None:
    """Only what pip reads of installed packages is there, so that nothing is fetched."""
    environment = tmp_path / "environment"
    start([sys.executable, "-m", "venv", "--without-pip", environment], tmp_path)
    [site_packages] = environment.glob("lib/python*/site-packages")
    for requirement in requirements_of(built.wheel):
        [lowest] = requirement.specifier
        found = site_packages / f"{requirement.name}-{lowest.version}.dist-info"
        found.mkdir()
        text = f"Metadata-Version: 2.1\nName: {requirement.name}\nVersion: {lowest.version}\n"
        (found / "METADATA").write_text(text, encoding="utf-8")
    install = ["install", "--dry-run", "--no-index", "--disable-pip-version-check", built.wheel]
    done = start([sys.executable, "-m", "pip", "--python", environment / "bin" / "python", *install], tmp_path)

    assert done.out.splitlines()[-1] == f"Would install {DIST_INFO.removesuffix('.dist-info')}", done


def test_a_program_that_uses_an_installed_wheel_is_checked_against_its_types(
    installed: InstalledWheel, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(
        "from pbgeval import EvalConfig, Report, evaluate\n"
        "report: Report = evaluate(EvalConfig(candidates='all'))\n"
        "reveal_type(report['mrr'])\n"
        "evaluate(3)\n",
        encoding="utf-8",
    )
    # Types of libraries as large as torch take minutes, and are not what is asked for.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\ncache_dir = /dev/null\n"
        "[mypy-torch.*,numpy.*,numba.*,h5py.*,rich.*,typer.*]\nfollow_imports = skip\n",
        encoding="utf-8",
    )
    done = start([sys.executable, "-m", "mypy", "--python-executable", installed.python, "program.py"], tmp_path)

    assert len(done.out.splitlines()) == 3, done
    revealed, refused, _ = done.out.splitlines()
    assert "program.py:3: note: Revealed type is " in revealed
    assert "Any" not in revealed
    assert 'program.py:4: error: Argument 1 to "evaluate" has incompatible type "int"; expected' in refused
