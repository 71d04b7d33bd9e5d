from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import pbgeval
from pbgeval.notation import distinct


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)), st.sampled_from([np.int64, np.int32]))
def test_distinct_integers_are_those_of_a_set_in_order(values: list[int], dtype: type) -> None:
    values = [value % 2**31 for value in values] if dtype is np.int32 else values
    array = np.array(values, dtype)
    found = distinct(array)

    assert (sorted(set(values)), found.dtype) == (found.tolist(), dtype)
    assert not np.shares_memory(found, array)


def test_nothing_uses_the_slow_unique() -> None:
    """With positions or counts numpy sorts; alone it hashes."""
    slow = re.compile(r"np\.unique\((?:[^()]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))*\)")
    found = []
    for path in Path(pbgeval.__file__).parent.rglob("*.py"):
        calls = slow.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.name}: {call}" for call in calls if "return_" not in call]

    assert found == []
