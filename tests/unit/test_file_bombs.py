"""A small file that would take years or gigabytes to read is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.bombs import opened


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_files_of_years_and_gigabytes_are_refused_within_limits_of_time_and_memory(tmp_path: Path) -> None:
    from tests import file_bombs  # not where tests are collected: to make them takes a second

    done, lines = opened(file_bombs, tmp_path)

    assert (done.returncode, [name for name, *_ in lines]) == (0, [*file_bombs.BOMBS]), done.stderr
    assert [line for line in lines if len(line) != 2 or not _is_one_reason(line[1])] == []


def _is_one_reason(line: str) -> bool:
    """Whether a line names the file, and says what is wrong with it."""
    place, _, reason = line.partition(": ")
    return place.startswith(("FOLDER/", "eval.json")) and " | " not in line and not reason.rstrip().endswith(":")
