from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import ENDS, Side
from pbgeval.ranking import known_answers as semi_join
from pbgeval.ranking.keys import CodeCounts, EdgeColumns, KeyTable, QueryKeys
from pbgeval.ranking.known_answers import SemiJoin, observed_entities
from tests.kit.loops import use_loops

Edge = tuple[int, int, int]
NUM_ENTITIES = 6

edges = st.lists(st.tuples(st.integers(0, NUM_ENTITIES - 1), st.integers(0, 3), st.integers(0, NUM_ENTITIES - 1)))


def adding_to(pairs: list[tuple[Side, int, int]]) -> Callable[[Side, np.ndarray, np.ndarray], None]:
    """Return a sink that keeps what it is handed."""

    def add(hidden: Side, key_P: np.ndarray, answer_P: np.ndarray) -> None:
        assert (np.int64, np.int64) == (key_P.dtype, answer_P.dtype)
        pairs.extend((hidden, *pair) for pair in zip(key_P.tolist(), answer_P.tolist(), strict=True))

    return add


def columns(of: list[Edge]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lhs, rel, rhs = np.array(of, np.int64).reshape(-1, 3).T
    return lhs.copy(), rel.copy(), rhs.copy()


def keys_of(evaluated: list[Edge], num_entities: int = NUM_ENTITIES) -> dict[Side, QueryKeys]:
    return {side: QueryKeys.of_edges(side, EdgeColumns(*columns(evaluated)), num_entities) for side in ENDS}


def slow_keys(evaluated: list[Edge], hidden: Side) -> list[tuple[int, int]]:
    return sorted({(rel, rhs if hidden is Side.LHS else lhs) for lhs, rel, rhs in evaluated})


def slow_join(evaluated: list[Edge], known: list[Edge]) -> list[tuple[Side, int, int]]:
    pairs = []
    for side in ENDS:
        keys = slow_keys(evaluated, side)
        for lhs, rel, rhs in known:
            key, answer = ((rel, rhs), lhs) if side is Side.LHS else ((rel, lhs), rhs)
            if key in keys:
                pairs.append((side, keys.index(key), answer))
    return sorted(pairs, key=str)


def joined(
    evaluated: list[Edge], blocks: list[list[Edge]], step: int = 1 << 16, *, compiled: bool = False
) -> list[tuple[Side, int, int]]:
    pairs: list[tuple[Side, int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        use_loops(patch, compiled)
        patch.setattr(semi_join, "ROWS_PER_STEP", step)
        patch.setattr(semi_join, "STEPS_PER_HANDOVER", 2)
        join = SemiJoin(keys_of(evaluated), adding_to(pairs))
        for block in blocks:
            join.feed(EdgeColumns(*columns(block)))
    return sorted(pairs, key=str)


@pytest.mark.parametrize("compiled", [False, True])
@given(edges, edges, st.integers(1, 5), st.integers(1, 20))
def test_the_join_equals_a_search_whatever_the_blocks(compiled, evaluated, known, step, block_size):
    blocks = [known[start : start + block_size] for start in range(0, len(known), block_size)]

    assert slow_join(evaluated, known) == joined(evaluated, blocks, step, compiled=compiled)


def test_a_relation_beyond_the_evaluated_ones_never_looks_like_a_key():
    keys = keys_of([(5, 1, 6)], 1 << 40)[Side.RHS]
    overflowing = 1 + (1 << 24)  # its code is that of relation 1 again, modulo 2^64
    pairs: list[tuple[Side, int, int]] = []

    SemiJoin({Side.RHS: keys}, adding_to(pairs)).feed(EdgeColumns(*columns([(5, overflowing, 7), (5, 1, 8)])))

    assert pairs == [(Side.RHS, 0, 8)]
    assert keys.index_of(np.array([overflowing, 1]), np.array([5, 5])).tolist() == [-1, 0]


def test_keys_are_refused_where_codes_do_not_fit():
    largest = (1 << 63) - 1

    fits = QueryKeys.of_edges(Side.LHS, EdgeColumns(*columns([(0, 0, largest - 1)])), largest)
    assert [largest - 1] == fits.codes_K.tolist()
    with pytest.raises(ValueError, match=r"2 relations and 9223372036854775807 entities do not fit in int64"):
        QueryKeys.of_edges(Side.LHS, EdgeColumns(*columns([(0, 1, 0)])), largest)
    assert observed_entities(np.array([0]), largest, [])
    with pytest.raises(ValueError, match="do not fit in int64"):
        observed_entities(np.array([1]), largest, [])


@pytest.mark.parametrize("compiled", [False, True])
def test_few_edges_that_match_nothing_pass_a_table_of_bounded_size(compiled, monkeypatch, seed):
    random, num_entities = np.random.default_rng(seed), 1 << 40
    keys = QueryKeys(Side.RHS, num_entities, np.unique(random.integers(0, 9 * num_entities, 1 << 17)))
    looked_up, index_in_range = [], QueryKeys.index_in_range

    def counted(self: QueryKeys, rel_E: np.ndarray, known_E: np.ndarray) -> np.ndarray:
        looked_up.append(len(rel_E))
        return index_in_range(self, rel_E, known_E)

    use_loops(monkeypatch, compiled)
    monkeypatch.setattr(QueryKeys, "index_in_range", counted)
    lhs_n, rhs_n = random.integers(0, num_entities, (2, 20_000))
    SemiJoin({Side.RHS: keys}, adding_to([])).feed(EdgeColumns(lhs_n, random.integers(0, 9, 20_000), rhs_n))

    assert 0 < sum(looked_up) < 2 * 20_000 / semi_join._CELLS_PER_KEY
    assert semi_join._sieve(keys).nbytes == semi_join._MAX_CELLS


@pytest.mark.parametrize("edge", [(0, -1, 0), (0, 0, -1), (0, 0, NUM_ENTITIES)])
def test_numbers_out_of_range_are_refused(edge):
    edges = EdgeColumns(*columns([edge]))

    with pytest.raises(ValueError, match="expected"):
        QueryKeys.of_edges(Side.LHS, edges, NUM_ENTITIES)
    with pytest.raises(ValueError, match="expected"):
        keys_of([(0, 0, 0)])[Side.LHS].index_of(edges.rel_n, edges.rhs_n)


codes_near_and_far = st.integers(0, 20) | st.integers(0, (1 << 63) - 1)


@pytest.mark.parametrize("codes", [st.integers(0, 40), st.integers(1 << 62, (1 << 62) + 40), codes_near_and_far])
@given(st.data())
def test_a_table_finds_its_codes_and_no_others_whether_they_lie_close_together_or_not(codes, data):
    held = sorted(data.draw(st.sets(codes)))
    asked = data.draw(st.lists(codes | st.sampled_from([-1, -(1 << 63), (1 << 63) - 1])))
    table = KeyTable.of_codes(np.array(held, np.int64))

    found = table.index_of(np.array(asked, np.int64)).tolist()

    assert [held.index(code) if code in held else -1 for code in asked] == found


def test_codes_that_lie_close_together_have_a_cell_each():
    assert not KeyTable.of_codes(np.arange(0, 800, 8)).is_hashed
    assert KeyTable.of_codes(np.arange(0, 900, 9)).is_hashed


@given(st.lists(codes_near_and_far))
def test_codes_are_counted_whether_they_lie_close_together_or_not(codes):
    counted = CodeCounts.of_codes(np.array(codes, np.int64))

    assert counted.keys.tolist() == sorted(set(codes))
    assert counted.counts.tolist() == [codes.count(code) for code in sorted(set(codes))]
    assert (counted.keys.dtype, counted.counts.dtype) == (np.int64, np.int64)
