"""The histogram of ranks is written by columns, with the bytes that its rows give one by one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.results.csv_tables import to_csv
from pbgeval.results.rank_rows import HistogramRows
from pbgeval.results.result import SavedTables, histogram_rows
from pbgeval.stats.bins import EXACT_BINS
from pbgeval.stats.rank_types import RankType
from tests.examples import examples

BINS = st.one_of(
    st.integers(1, 12),
    st.sampled_from([99, 100, 101, 999, 1000, 10**6 - 1, 10**6, EXACT_BINS - 1, EXACT_BINS, EXACT_BINS + 1]),
    st.integers(1, EXACT_BINS + (30 << 10)),
)
COUNTS = st.one_of(st.integers(1, 11), st.integers(1, 2**62))
PARTS = st.tuples(st.sampled_from(["head", "tail"]), st.sampled_from(RankType), st.dictionaries(BINS, COUNTS))


@settings(max_examples=examples(200))
@given(st.lists(PARTS, max_size=3))
def test_the_table_is_the_same_as_row_by_row(parts: list[tuple[str, RankType, dict[int, int]]]) -> None:
    rows = HistogramRows(
        tuple(
            (side, kind, np.array(sorted(of), np.int64), np.array([of[key] for key in sorted(of)], np.int64))
            for side, kind, of in parts
        )
    )
    assert rows.to_csv().decode() == to_csv(rows) == to_csv([*rows])
    assert len(rows) == len([*rows])

    with TemporaryDirectory() as folder:
        Path(folder, "rank_histogram.csv").write_bytes(rows.to_csv())
        for kind in RankType:
            saved = histogram_rows(SavedTables(Path(folder)), kind.value)
            assert [*saved] == [row for row in rows if row["rank_type"] == kind.value]
