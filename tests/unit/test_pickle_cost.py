"""A small pickle that would take years or gigabytes to read is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.bombs import opened

REASONS = (
    "found: more objects, or more work, than tensors and plain values need: nothing was run; ",
    "found: a call of what is no function: nothing was run; ",
    "found: text in another encoding than that of bytes in a pickle: nothing was run; ",
    "found: a call whose arguments are no tuple: nothing was run; ",
    "found: a pickle that calls torch.",
    "found: an integer of 7,999,993 bits: nothing was run; ",
    "found more than 4,194,304 names, or 64 MB of them, in dicts that hold others again; ",
)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_pickles_of_years_and_gigabytes_are_refused_within_limits_of_time_and_memory(tmp_path: Path) -> None:
    from tests import pickle_bombs  # not where tests are collected: to make them takes a second

    done, lines = opened(pickle_bombs, tmp_path)

    assert (done.returncode, list(dict.fromkeys(name for name, *_ in lines))) == (0, list(pickle_bombs.PICKLES)), (
        done.stderr
    )
    assert [line for line in lines if not any(reason in line[2] for reason in REASONS)] == []
