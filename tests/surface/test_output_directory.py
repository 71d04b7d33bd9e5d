"""The output directory: whose it may be, what is in it after each end of a run, and that nothing else is touched."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from unittest import mock

import pytest

from pbgeval import evaluation as driver
from pbgeval.cluster.team import Team
from tests.conftest import has_root_and_apt
from tests.examples import crossed
from tests.kit.case import TinyCase
from tests.kit.commands import flags, metrics_of, numbers_of, run_command, snapshot, umask, writes_nothing

OUR_FILES = {
    *("metrics.json", "metrics.jsonl", "buckets.csv", "rank_histogram.csv", "relations.csv", "units.jsonl"),
    *("files.txt", "ranks", "run.json", "summary.json"),
}


def run(case: TinyCase, *arguments: str, output: str = "output") -> int:
    return run_command(case, "--workers", "1", "--quiet", "--output", output, *arguments).status


def refused(case: TinyCase, *arguments: str, output: str = "output") -> str:
    with writes_nothing(case.root):
        return run_command(case, "--workers", "1", "--output", output, *arguments).fault


def test_a_bug_in_a_group_leaves_it_to_the_next_run(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "is_worker_of_a_group", lambda: True)
    monkeypatch.setattr(Team, "join", Team)
    bug = mock.patch.object(driver, "do_work", side_effect=RuntimeError("a bug of ours"))
    with bug, pytest.raises(RuntimeError, match=r"^a bug of ours$"):
        run_command(case, "--quiet", "--output", "output")

    assert {path.name for path in (case.root / "output").iterdir()} == {"metrics.json"}
    assert run_command(case, "--quiet", "--output", "output").status == 0


def test_by_default_it_is_in_the_working_directory_and_named_by_what_was_done(case: TinyCase, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with writes_nothing(case.root):
        assert run_command(case, "--workers", "1", "--quiet", cwd=elsewhere).printed == ""

    (output,) = (elsewhere / "results").iterdir()
    digest = metrics_of(output)["provenance"]["digest"]
    assert (f"eval-mixed-raw-{digest[:4]}", 32) == (output.name, len(digest))


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["candidates=all", "filter_paths=edges"], "all-filtered"),
        (["candidates=partition", "train_paths=edges"], "partition-filtered"),
        (["candidates=sampled"], "sampled-raw"),
    ],
)
def test_its_name_tells_candidates_and_filter(case: TinyCase, settings: list[str], told: str) -> None:
    assert run_command(case, "--workers", "1", "--quiet", *flags(settings)).status == 0

    (output,) = (case.root / "results").iterdir()
    digest = metrics_of(output)["provenance"]["digest"]
    assert output.name == f"eval-{told}-{digest[:4]}"


@pytest.mark.one_case
@pytest.mark.parametrize("complete", [True, False])
def test_a_run_whose_name_another_has_gets_a_longer_one_and_finds_it_again(case: TinyCase, complete: bool) -> None:
    def evaluated(*arguments: str) -> str:
        done = run_command(case, "--workers", "1", *arguments)
        assert done.status == 0
        return done.err

    evaluated()
    (output,) = (case.root / "results").iterdir()
    document = metrics_of(output)
    digest = document["provenance"]["digest"]
    document["provenance"]["digest"] = digest[:4] + "f" * 28  # of another run, whose name begins alike
    (output / "metrics.json").write_text(json.dumps(document | {"complete": complete}))
    others = snapshot(output)
    evaluated()
    evaluated("--overwrite")
    again = evaluated()

    longer = f"{output.name[:-4]}{digest[:8]}"
    assert {path.name for path in (case.root / "results").iterdir()} == {output.name, longer}
    assert again.startswith(f"results/{longer}: already complete")
    assert snapshot(output) == others
    output.rename(case.root / "elsewhere")
    assert evaluated().startswith(f"results/{longer}: already complete")  # though the short name is free now


def test_a_finished_run_prints_its_table_and_computes_nothing(case: TinyCase) -> None:
    first = run_command(case, "--workers", "1", "--output", "output")
    with writes_nothing(case.root):
        again = run_command(case, "--workers", "2", "--output", "output")  # run options do not make another run

    assert (0, first.out) == (again.status, again.out)
    assert again.err.startswith("output: already complete; showing the saved result; --overwrite ")
    assert run_command(case, "--quiet", "--output", "output").printed == ""


def test_that_of_another_run_is_refused_and_replaced_if_asked(case: TinyCase) -> None:
    assert run(case) == 0
    fault = refused(case, "-p", "seed=1")
    assert fault.startswith("output: expected this run (digest ")
    assert fault.endswith("choose another output, or --overwrite (in Python: overwrite=True) to replace it")
    assert run(case, "-p", "seed=1", "--overwrite") == 0
    assert run(case, "-p", "seed=1", output="fresh") == 0

    assert numbers_of(case.root / "fresh") == numbers_of(case.root / "output")


@pytest.mark.one_case
@pytest.mark.parametrize("arguments", [(), ("--overwrite",)])
def test_an_unfinished_one_goes_on_and_that_of_another_run_is_refused(
    case: TinyCase, arguments: tuple[str, ...]
) -> None:
    assert run(case) == 0
    path = case.root / "output" / "metrics.json"
    numbers = numbers_of(path.parent)
    path.write_text(json.dumps(metrics_of(path.parent) | {"complete": False}))
    fault = refused(case, "-p", "seed=5")
    assert fault.startswith("output: expected this run (digest ")
    assert "; differs in seed); choose another output" in fault
    fault = refused(case, "-p", "candidates=partition")  # a relation is the same
    assert ("candidates" in fault, "relations" in fault) == (True, False), fault

    assert run(case, *arguments) == 0
    assert metrics_of(path.parent)["complete"]
    assert numbers == numbers_of(path.parent)


@pytest.mark.skipif(not has_root_and_apt(), reason="needs to change its user")
@pytest.mark.parametrize("exists", [False, True], ids=["parent", "directory"])
def test_one_without_permission_to_write_is_refused(exists: bool, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8))
    if exists:
        (case.root / "output").mkdir()

    assert run(case, output="before") == 0  # imports what the other user may not read
    os.seteuid(65534)  # root may write anywhere
    try:
        fault = refused(case)
    finally:
        os.seteuid(0)
    where = "output/owner.json: cannot write this file" if exists else "output: cannot write into this directory"
    assert fault.startswith(where)
    assert fault.endswith(": Permission denied; choose another output")


def test_a_fault_leaves_all_as_it_was(case: TinyCase) -> None:
    """An empty directory, and no folder that was made for the output; a result that was to be replaced: tests/laws."""
    (case.root / "output").mkdir()
    case.spoil_embeddings("user", 1, 0, math.nan)

    with writes_nothing(case.root):
        assert run(case) == 1
        assert run(case, output="results/of/today") == 1
        assert run_command(case, "--workers", "1").status == 1


def test_the_working_directory_itself_can_be_it(case: TinyCase, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    assert run_command(case, "--workers", "1", "--quiet", "--output", ".", cwd=output).printed == ""

    assert {path.name for path in output.iterdir()} == OUR_FILES


@pytest.mark.parametrize("place", [".", "..", "../../../output"])
def test_the_working_directory_and_those_above_it_are_not_renamed(case: TinyCase, place: str) -> None:
    assert run(case) == 0
    (case.root / "output" / "ranks" / "mine").mkdir()
    inside = case.root / "output" if place == "." else case.root / "output" / "ranks"
    before = snapshot(case.root)

    arguments = ("--workers", "1", "--output", place, "-p", "seed=1", "--overwrite")
    fault = run_command(case, *arguments, cwd=inside / "mine" if place == "../../../output" else inside).fault

    assert fault.startswith(f"{place}: the working directory is in it, and --overwrite (in Python: overwrite=True) ")
    assert snapshot(case.root) == before


def test_one_that_cannot_be_renamed_stays_as_it_is(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which a volume is mounted, for example."""
    assert run(case) == 0
    before = snapshot(case.root)
    busy = mock.Mock(side_effect=OSError(errno.EBUSY, "Device or resource busy"))
    monkeypatch.setattr("pbgeval.results.output.rename_folder", busy)

    fault = run_command(case, "--workers", "1", "--output", "output", "-p", "seed=1", "--overwrite").fault

    expected = "output: cannot rename this folder to output.earlier: Device or resource busy; move it away, or choose"
    assert expected in fault
    assert snapshot(case.root) == before


def test_a_link_to_a_directory_can_be_it(case: TinyCase, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (case.root / "output").symlink_to(tmp_path / "real")

    assert run(case) == 0
    assert run(case, "-p", "seed=1", "--overwrite") == 0

    assert (case.root / "output").is_symlink()
    assert {path.name for path in (tmp_path / "real").iterdir()} == OUR_FILES


def test_its_files_can_be_read_by_whom_the_umask_allows(case: TinyCase) -> None:
    with umask(0o027):
        assert run(case) == 0

    assert {path.stat().st_mode & 0o777 for path in (case.root / "output").rglob("*") if path.is_file()} == {0o640}


def entries(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("arguments", [(), ("--overwrite",)])
def test_temporary_files_of_killed_workers_are_removed_and_not_listed(
    case: TinyCase, arguments: tuple[str, ...]
) -> None:
    assert run(case, "-p", "save_ranks=true") == 0
    output = case.root / "output"
    undisturbed, listed = entries(output), (output / "files.txt").read_text()
    (output / "metrics.json").write_text(json.dumps(metrics_of(output) | {"complete": False}))
    (output / "journal").mkdir()
    saved = next((output / "ranks").rglob("*.h5"))
    for path in (
        saved.with_name(f".{saved.name}.0123456789ab"),
        output / "journal" / ".host-12-abcdef-000001.unit.0123456789ab",
        *(output / f".{name}.0123456789ab" for name in ("run.json", "buckets.csv", "metrics.jsonl", "metrics.json")),
        *(output / f".owner.{name}.0123456789ab" for name in ("json", "heartbeat")),
        output / ".report.html.0123456789ab",
    ):
        path.write_bytes(b"half of it")
        os.utime(path, (1.0, 1.0))
    assert run(case, "-p", "save_ranks=true", *arguments) == 0

    assert entries(output) == undisturbed
    assert (output / "files.txt").read_text() == listed


@pytest.mark.parametrize(
    ("name", "is_complete", "overwrites"),
    crossed(["relations.csv", "files.txt", "owner.json"], [True, False], [False, True], quick=2, thorough=2),
)
def test_a_folder_with_the_name_of_a_file_of_a_run_is_refused_and_stays(
    case: TinyCase, name: str, is_complete: bool, overwrites: bool
) -> None:
    arguments = ("--overwrite",) if overwrites else ()
    another = ("-p", "save_ranks=true", *(("-p", "seed=1") if is_complete and not arguments else ()))
    assert run(case, "-p", "save_ranks=true") == 0
    output = case.root / "output"
    (output / "metrics.json").write_text(json.dumps(metrics_of(output) | {"complete": is_complete}))
    content = (output / name).read_bytes() if (output / name).exists() else b""
    (output / name).unlink(missing_ok=True)
    (output / name / "mine").mkdir(parents=True)

    for _ in range(2):
        fault = refused(case, *another, *arguments)
        assert fault.startswith(f"output: expected files, found folders: {name}; move them away")

    (output / name).rename(case.root / "moved")
    if content:
        (output / name).write_bytes(content)
    assert run(case, "-p", "save_ranks=true", "--overwrite") == 0
