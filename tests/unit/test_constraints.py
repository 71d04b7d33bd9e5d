from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Side
from pbgeval.ranking.constraints import CandidateSets

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
