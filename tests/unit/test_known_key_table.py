from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking import keys as key_table
from pbgeval.ranking.keys import KeyTable

codes = st.one_of(st.integers(0, 20), st.integers(0, 2**63 - 1), st.integers(0, 40).map(lambda i: i << 57))


@given(st.lists(codes, unique=True).map(sorted), st.lists(codes), st.integers(1, 4))
def test_positions_equal_those_of_a_dictionary(present, asked, rows_at_once):
    asked = asked + present
    position = {code: i for i, code in enumerate(present)}
    table = KeyTable.of_codes(np.array(present, np.int64))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_table, "ROWS_AT_ONCE", rows_at_once)
        found = table.index_of(np.array(asked, np.int64))

    assert np.int64 == found.dtype
    assert [position.get(code, -1) for code in asked] == found.tolist()


@pytest.mark.parametrize("stride", [1, 1 << 12, 1 << 32, 3_000_017])
def test_codes_in_any_regular_distance_are_found(stride):
    present = np.arange(20_000, dtype=np.int64) * stride
    table = KeyTable.of_codes(present)

    assert list(range(20_000)) == table.index_of(present).tolist()
    assert {-1} == set(table.index_of(present + stride * 20_000).tolist())
