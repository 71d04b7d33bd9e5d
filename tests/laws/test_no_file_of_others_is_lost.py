"""`--overwrite` renames the folder of a result, removes what the result lists, and nothing else; or puts it back.

"Others" are files of users: with any name, in any folder, put there at any time.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pbgeval import evaluation as driver
from pbgeval.cluster.claim import OWNER
from pbgeval.errors import OutputError
from pbgeval.ranking import unit_passes
from pbgeval.results.output import FILES, OutputDirectory
from pbgeval.storage import writing as files
from tests.kit.case import TinyCase
from tests.kit.commands import Done, flags, metrics_of, run_command, run_main, snapshot
from tests.kit.held_up import SteppingSystem, entries_after_each_unit, full_disk
from tests.null_owner import null_owner

OF_OTHERS = ("journal/2024.txt", "ranks/mine.csv", "sinks/a", "topk/b", "thesis.tex", ".scratch/notes", "ranks/0/x.h5")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """A finished result in `output` that has every kind of file."""
    case = TinyCase.write(tmp_path_factory.mktemp("case"), partition_sizes=(5, 4), num_tags=3, edges_per_bucket=4)
    assert run(case, "sinks=tensorboard", "save_ranks=True", "candidates=all", "save_topk=2").printed == ""
    assert run_main("report", "output", cwd=case.root).status == 0
    return case


@pytest.fixture
def case(finished: TinyCase, tmp_path: Path) -> TinyCase:
    shutil.copytree(finished.root, tmp_path / "case")
    return TinyCase(tmp_path / "case", finished.settings)


def run(case: TinyCase, *settings: str, overwrite: bool = False) -> Done:
    arguments = ["--workers", "1", "--quiet", "--output", "output", *(["--overwrite"] if overwrite else [])]
    return run_command(case, *arguments, *flags(settings))


def write_others(output: Path, names: tuple[str, ...] = OF_OTHERS) -> dict[str, tuple[bytes, int]]:
    for name in names:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(f"mine: {name}")
    return {name: snapshot(output)[name] for name in names}


def contents(output: Path) -> dict[str, bytes]:
    """What a result is: all but what `report --watch` and the like may touch; names of files and what they hold."""
    return {name: content for name, (content, _) in snapshot(output).items()}


@pytest.mark.parametrize(
    ("name", "overwrite"),
    [(name, at % 2 == 1) for at, name in enumerate(("files.txt", "relations.csv", "owner.json", "journal/my.unit"))],
)
def test_a_folder_that_never_was_a_result_is_refused_and_stays(name: str, overwrite: bool, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(5, 4), edges_per_bucket=4)
    write_others(case.root / "output", (name,))
    before = snapshot(case.root)

    done = run(case, overwrite=overwrite)

    assert (name in done.fault, "--overwrite" in done.fault, snapshot(case.root)) == (True, False, before)


@pytest.mark.parametrize("name", ["ranks", ".scratch", "relations.csv"])
def test_a_link_in_the_way_is_named_and_not_followed(name: str, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(5, 4), edges_per_bucket=4)
    write_others(
        tmp_path / "elsewhere", ("0/ranks_0_0.h5", "0123456789ab/keys", "metrics.json", "a-1-abcdef-000001.unit")
    )
    (case.root / "output").mkdir()
    (case.root / "output" / name).symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path)

    assert name in run(case, "seed=3", overwrite=True).fault
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["ranks", "sinks"])
def test_a_link_beside_a_result_is_not_followed(name: str, case: TinyCase, tmp_path: Path) -> None:
    output = case.root / "output"
    shutil.rmtree(output / "ranks")
    shutil.rmtree(output / "sinks")
    write_others(tmp_path / "elsewhere", ("0/ranks_0_0.h5", "tensorboard/events", "metrics.json"))
    (output / name).symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path / "elsewhere")

    assert run(case, "seed=3", overwrite=True).status == 0
    assert snapshot(tmp_path / "elsewhere") == before
    assert not (output / name).is_symlink()


def test_files_beside_a_result_move_along_when_it_is_replaced_again_and_again(case: TinyCase) -> None:
    output = case.root / "output"
    names = (*OF_OTHERS, "sinks/tensorboard/notes", "metrics.csv")
    for seed, earlier in ((1, "output.earlier"), (2, "output.earlier1")):
        others = write_others(output, names)
        arguments = ("--workers", "1", "--output", "output", "--overwrite", *flags([f"seed={seed}"]))
        told = f"warning: output: files beside the earlier result are kept in {case.root / earlier}"
        assert told in run_command(case, *arguments).err
        assert snapshot(case.root / earlier) == others
        assert {"topk", "journal", "sinks", "report.html", "thesis.tex"}.isdisjoint(os.listdir(output))
    assert snapshot(case.root / "output.earlier").keys() == set(names)


def test_without_files_of_others_nothing_of_an_earlier_result_is_left(case: TinyCase) -> None:
    assert run(case, "seed=1", overwrite=True).printed == ""
    assert [path.name for path in case.root.iterdir() if "earlier" in path.name] == []


def test_a_list_from_elsewhere_names_nothing_else(case: TinyCase, tmp_path: Path) -> None:
    output = case.root / "output"
    (tmp_path / "elsewhere").mkdir()
    write_others(tmp_path / "elsewhere", ("events", "relations.csv"))
    (output / "sinks" / "link").symlink_to(tmp_path / "elsewhere")
    names = [
        "thesis.tex",
        "../elsewhere/events",
        str(tmp_path / "elsewhere" / "events"),
        "sinks/../../elsewhere/events",
    ]
    with (output / FILES).open("a") as listed:
        listed.write("\n".join([*names, "sinks/../../../elsewhere/events", "sinks/link/events", ""]))
    mine = write_others(output, ("thesis.tex",))
    others = snapshot(tmp_path / "elsewhere")

    assert run(case, "seed=1", overwrite=True).status == 0

    assert snapshot(tmp_path / "elsewhere") == others
    assert snapshot(case.root / "output.earlier").items() >= mine.items()


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        (driver, "do_work", ZeroDivisionError),
        (unit_passes, "bucket_pass", MemoryError),
        (unit_passes, "bucket_pass", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)),
        (None, "", None),
    ],
    ids=["bug", "memory", "signal", "user"],
)
def test_a_run_that_fails_puts_the_result_back(module: Any, name: str, fault: Any, case: TinyCase) -> None:
    write_others(case.root / "output")
    before = snapshot(case.root / "output")
    if module is None:
        case.spoil_embeddings("user", 1, 0, math.nan)
    with (
        mock.patch.object(module, name, side_effect=fault) if module else nullcontext(),
        pytest.raises(ZeroDivisionError) if name == "do_work" else nullcontext(),
    ):
        assert run(case, "seed=1", overwrite=True).status in (1, 75)

    assert snapshot(case.root / "output") == before


class FullDisk(SteppingSystem):
    """Fails at the k-th call and at all that follow, but for renames, which need no room."""

    def step(self, call: str, file: Path | int) -> None:
        super().step(call, file)
        if len(self.kinds) >= self.k and call != "rename":
            full_disk()


@pytest.mark.parametrize("k", [1, 3, 5, 60, 70, 80])
def test_a_full_disk_costs_no_result(k: int, case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that has nothing in its journal yet; else it may go on, and the result waits until it is complete."""
    output = case.root / "output"
    write_others(output)
    before = snapshot(output)
    with monkeypatch.context() as patch, entries_after_each_unit():
        patch.setattr(files, "system", FullDisk(k))
        failed = run(case, "seed=1", "candidates=all", "save_ranks=True", overwrite=True)
    assert failed.status in (1, 75)
    if failed.status == 1 or not any((output / "journal").glob("*.unit")):
        assert snapshot(output) == before
        assert not (case.root / "output.earlier").exists()
    else:
        assert snapshot(case.root / "output.earlier") == before
        assert run(case, "seed=1", "candidates=all", "save_ranks=True").status == 0
        assert snapshot(case.root / "output.earlier") == before  # who resumes cannot know whose it is


def test_a_result_is_whole_after_a_kill_at_any_moment(case: TinyCase) -> None:
    """While it is put aside, before the other run has begun, and while it is put back: here or in the other folder."""
    output, earlier = case.root / "output", case.root / "output.earlier"
    write_others(output)
    before = contents(output)
    num_calls = num_aside = 0
    while killed_at(num_calls, lambda: replaced_and_put_back(output)):
        if earlier.exists():
            num_aside += 1
            shutil.rmtree(output, ignore_errors=True)
            earlier.rename(output)
        assert contents(output) == before, num_calls
        num_calls += 1
    assert (num_calls > 8, num_aside > 0) == (True, True)
    assert contents(output) == before


def replaced_and_put_back(output: Path) -> None:
    directory = OutputDirectory(output, null_owner())
    directory.claim({"another": 1}, lambda: None, overwrite=True)
    (output / "journal").mkdir(exist_ok=True)
    (output / "buckets.csv").write_text("of the other run")
    directory.release()


def killed_at(k: int, action: Callable[[], None]) -> bool:
    """Do something in a process that ends at once before its k-th change of the file system; tell whether it did."""
    process = os.fork()
    if process == 0:
        left = k

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def step(*arguments: Any, **named: Any) -> Any:
                nonlocal left
                if left == 0:
                    os._exit(9)
                left -= 1
                return call(*arguments, **named)

            return step

        try:
            for name in ("replace", "unlink", "rmdir", "mkdir", "write", "rename"):
                setattr(os, name, counted(getattr(os, name)))
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status in (0, 9)
    return status == 9


def test_another_result_that_comes_first_is_not_removed(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of unlike configs find an empty folder; one is done before the other becomes its owner."""
    output = case.root / "output"
    shutil.move(output, case.root / "done")
    directory = OutputDirectory(output, null_owner())
    acquire = directory.owner.acquire

    def late() -> None:
        shutil.copytree(case.root / "done", output, dirs_exist_ok=True)
        acquire()

    monkeypatch.setattr(directory.owner, "acquire", late)
    with pytest.raises(OutputError, match="found the output of another"):
        directory.claim({"another": 1}, lambda: None, overwrite=False)

    assert contents(output) == contents(case.root / "done")


@pytest.mark.parametrize("more", [(), ("--output", "output")])
def test_a_page_that_another_program_wrote_stays(case: TinyCase, more: tuple[str, ...]) -> None:
    output = case.root / "output"
    write_others(output, ("report.html", "queries.html"))

    fault = run_main("report", "output", *more, cwd=case.root).fault
    assert "report.html: this file is not a page of kgeval-dist; choose another file (--output)" in fault
    assert run(case, "seed=1", overwrite=True).status == 0
    for name in ("report.html", "queries.html"):
        assert (case.root / "output.earlier" / name).read_text() == f"mine: {name}"


def test_the_list_holds_all_files_and_no_others(case: TinyCase) -> None:
    output = case.root / "output"
    assert (output / FILES).read_text().splitlines() == sorted(contents(output).keys() - {"report.html"})
    assert (metrics_of(output)["complete"], (output / OWNER).exists()) == (True, False)
