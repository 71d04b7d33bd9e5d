"""A run that is held up while it writes, and meanwhile taken over and finished by another, spoils nothing of that.

A host that was cut off, or a process that was stopped, may go on at any moment: in the middle of writing a file, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from pbgeval import evaluation as driver
from pbgeval.storage import writing as files
from pbgeval.storage.writing import System
from tests.kit.case import TinyCase
from tests.kit.commands import Done, contents_and_times
from tests.kit.held_up import (
    CANDIDATES,
    SHARES,
    SteppingSystem,
    entries_after_each_unit,
    evaluate,
    share_of,
    steps_of_each_kind,
    write_case,
)

HOUSEKEEPING = ("journal", ".scratch", "owner.")


class HeldUp(SteppingSystem):
    """Lets something happen just before the k-th open, write, fsync or link."""

    def step(self, call: str, file: Path | int) -> None:
        if threading.current_thread() is threading.main_thread():  # a heartbeat comes when it comes
            super().step(call, file)


@pytest.fixture(autouse=True)
def _entries_often() -> Iterator[None]:
    with entries_after_each_unit():
        yield


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    return write_case(tmp_path_factory.mktemp("case"))


@pytest.fixture(autouse=True)
def _in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "5")  # its own job, started again elsewhere, takes a directory over at once


def run(case: TinyCase, output: Path, candidates: str, host: str, system: System) -> Done:
    with mock.patch.object(driver, "host_name", return_value=host), mock.patch.object(files, "system", system):
        return evaluate(case, output, candidates)


@pytest.mark.one_case
@SHARES
@pytest.mark.parametrize("candidates", CANDIDATES)
def test_what_others_have_finished_stays_as_it_is(candidates: str, share: str, case: TinyCase, tmp_path: Path) -> None:
    counting = HeldUp()
    assert run(case, tmp_path / "undisturbed", candidates, "first", counting).status == 0
    assert len(counting.kinds) > 60
    for k in share_of(steps_of_each_kind(counting.kinds), share, candidates):
        if counting.kinds[k - 1].startswith("rename"):
            continue  # a rename follows its check at once
        output = tmp_path / f"output-{k}"
        finished: dict[str, tuple[bytes, int]] = {}

        def take_over(output: Path = output, finished: dict[str, tuple[bytes, int]] = finished) -> None:
            second = run(case, output, candidates, "second", System())
            assert (second.status, second.err) == (0, "")
            # What the first one was about to write it removes itself.
            finished |= {
                name: of for name, of in contents_and_times(output).items() if not Path(name).name.startswith(".")
            }

        first = run(case, output, candidates, "first", HeldUp(k, take_over))
        assert first.status in (0, 1, 75), (k, first)
        assert finished, k
        left = contents_and_times(output)
        assert [name for name, content in left.items() if content != finished.get(name)] == [], k
        # Who is held up when the result is complete comes to its end, and tidies up.
        assert [name for name in finished.keys() - left.keys() if not name.startswith(HOUSEKEEPING)] == [], k
