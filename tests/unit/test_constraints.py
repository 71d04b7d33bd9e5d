from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Side
from pbgeval.ranking.chunks import concatenated_ranges
from pbgeval.ranking.constraints import CandidateSets, is_among

NUM_ENTITIES, NUM_RELATIONS = 7, 3
numbers = st.sets(st.integers(0, NUM_ENTITIES - 1))
seen = st.sets(st.tuples(st.integers(0, NUM_RELATIONS - 1), st.integers(0, NUM_ENTITIES - 1)))


def array(of) -> np.ndarray:
    return np.array(sorted(of), np.int64)


@given(st.none() | numbers, st.dictionaries(st.sampled_from(Side), numbers), st.none() | st.tuples(seen, seen))
def test_an_entity_competes_where_every_set_holds_it(allowed, of_side, observed):
    codes = None
    if observed is not None:
        codes = {
            side: array(relation * NUM_ENTITIES + number for relation, number in pairs)
            for side, pairs in zip(Side, observed, strict=True)
        }
    sets = CandidateSets(
        NUM_ENTITIES,
        None if allowed is None else array(allowed),
        {side: array(of) for side, of in of_side.items()},
        codes,
    )

    def competes(side: Side, relation: int, number: int) -> bool:
        return (
            (allowed is None or number in allowed)
            and (side not in of_side or number in of_side[side])
            and (observed is None or (relation, number) in observed[side.value])
        )

    assert (observed is not None) == sets.by_relation
    assert (allowed is None and not of_side and observed is None) == sets.unconstrained
    for side in Side:
        for relation in range(NUM_RELATIONS):
            expected = [number for number in range(NUM_ENTITIES) if competes(side, relation, number)]
            found = sets.of(side, relation)
            if found is None:
                assert expected == list(range(NUM_ENTITIES))
            else:
                assert expected == found.tolist()
            inside = sets.contains(side, np.full(NUM_ENTITIES, relation), np.arange(NUM_ENTITIES))
            assert expected == np.flatnonzero(inside).tolist()


@given(st.lists(st.integers(-3, 9), max_size=8), st.sets(st.integers(-3, 9)))
def test_values_are_among_a_set_or_not(values, of):
    expected = [value in of for value in values]

    assert expected == is_among(np.array(values, np.int64), array(of)).tolist()
    assert [expected] == is_among(np.array([values], np.int64), array(of)).tolist()


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=6))
def test_ranges_follow_each_other(ranges):
    begins, lengths = np.array(ranges, np.int64).reshape(-1, 2).T

    expected = [number for begin, length in ranges for number in range(begin, begin + length)]

    assert expected == concatenated_ranges(begins, lengths).tolist()
