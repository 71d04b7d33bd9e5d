from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.notation import ENDS, EntityNumbering, Side
from pbgeval.ranking import keys
from pbgeval.ranking.known_answers import KnownPairs, PairStore
from pbgeval.storage.writing import ScratchFolder
from tests.examples import examples

SIZES = {("item", 0): 4, ("item", 1): 0, ("item", 2): 3, ("user", 0): 5}
NUMBERING = EntityNumbering.from_sizes(SIZES)
SLOT_OF = [0] * 4 + [2] * 3 + [3] * 5  # by number: slot 1 is empty
FIRST_OF = [0, 4, 4, 7]

calls = st.lists(
    st.tuples(
        st.sampled_from(ENDS),
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, len(SLOT_OF) - 1)), max_size=12),
        st.integers(0, 2),  # the worker that adds them
    ),
    max_size=12,
)


def add(store: PairStore, hidden: Side, pairs: list[tuple[int, int]]) -> None:
    key_P, answer_P = np.array(pairs, np.int64).reshape(-1, 2).T
    store.add(hidden, key_P, answer_P)


def slow_rows(of: list[tuple[Side, list[tuple[int, int]], int]], hidden: Side, slot: int) -> set[tuple[int, int]]:
    """The (row, key) of a side and slot."""
    pairs = [pair for side, added, _ in of if side is hidden for pair in added]
    return {(answer - FIRST_OF[slot], key) for key, answer in pairs if SLOT_OF[answer] == slot}


def rows_and_keys(pairs: KnownPairs) -> list[tuple[int, int]]:
    return [(packed >> 31, packed % 2**31) for packed in pairs.packed_P.tolist()]


@settings(max_examples=examples(30))
@given(calls, st.sampled_from([0, 40, 200, 10**6]), st.integers(0, 2))
def test_any_worker_reads_the_pairs_of_all(added, budget_bytes, reader):
    with tempfile.TemporaryDirectory() as folder:
        stores = [PairStore(NUMBERING, budget_bytes, ScratchFolder(Path(folder), worker, 3)) for worker in range(3)]
        for hidden, pairs, worker in added:
            add(stores[worker], hidden, pairs)
            assert stores[worker].num_bytes <= budget_bytes
        for store in stores:
            store.flush()
            assert store.num_bytes == 0
        for side in ENDS:
            for slot in range(len(SIZES)):
                assert sorted(slow_rows(added, side, slot)) == rows_and_keys(stores[reader].pairs(side, slot))


def test_a_store_reads_what_it_spilled_and_what_it_still_has(tmp_path):
    store = PairStore(NUMBERING, 80, ScratchFolder(tmp_path, 0, 1))

    for key in range(20):
        add(store, Side.LHS, [(key, 0)])
    assert (tmp_path / "pairs-LHS-0.0").exists()
    assert 0 < store.num_bytes <= 80
    assert [(0, key) for key in range(20)] == rows_and_keys(store.pairs(Side.LHS, 0))
    store.flush()
    assert [(0, key) for key in range(20)] == rows_and_keys(store.pairs(Side.LHS, 0))


def test_repetitions_are_dropped_before_anything_is_spilled(tmp_path):
    store = PairStore(NUMBERING, 800, ScratchFolder(tmp_path, 0, 1))
    for _ in range(1000):
        add(store, Side.RHS, [(1, 2), (0, 11), (1, 3)])

    assert (list(tmp_path.iterdir()), rows_and_keys(store.pairs(Side.RHS, 0))) == ([], [(2, 1), (3, 1)])


def test_a_store_sorts_seldom_though_its_distinct_pairs_exceed_the_budget(monkeypatch):
    sorted_sizes: list[int] = []
    original = keys.sort_distinct
    monkeypatch.setattr(
        keys, "sort_distinct", lambda values, **how: sorted_sizes.append(len(values)) or original(values, **how)
    )
    store = PairStore(EntityNumbering.from_sizes({("all", 0): 1 << 20}), 800, None)

    for start in range(0, 100_000, 100):
        store.add(Side.RHS, np.zeros(100, np.int64), np.arange(start, start + 100))

    assert len(store.pairs(Side.RHS, 0).packed_P) == 100_000
    assert sum(sorted_sizes) < 3 * 100_000


def test_the_largest_keys_and_rows_fit_and_larger_ones_are_refused():
    store = PairStore(EntityNumbering.from_sizes({("a", 0): 10, ("b", 0): 2**31 + 1}), 10**6, None)
    most = 2**31 - 1

    add(store, Side.LHS, [(most, 10 + most)])
    assert [(most, most)] == rows_and_keys(store.pairs(Side.LHS, 1))
    known = store.pairs(Side.LHS, 1).in_rows(most, most + 1)
    assert [[most], [most]] == [known.key_P.tolist(), known.entity_id_P.tolist()]
    for pairs, message in (
        ([(0, 0), (most + 1, 0)], "expected keys 0 to 2^31 - 1, found 0 to 2147483648"),
        ([(0, 10 + most + 1)], "slot 1: expected rows 0 to 2^31 - 1, found 2147483648"),
        ([(0, -1)], "expected entities 0 to 2147483658"),
        ([(0, 10 + 2**31 + 1)], "expected entities 0 to 2147483658"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            add(store, Side.LHS, pairs)
