from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking.known_answers import KnownAnswers
from pbgeval.ranking.sampled import known_cells


def found(keys, true, lists, answers) -> list[tuple[int, int]]:
    """`answers`: by key."""
    pairs = sorted((key, row) for key, rows in answers.items() for row in rows)
    key_P, row_P = np.array(pairs, np.int64).reshape(-1, 2).T
    tables = (np.array(table, np.int64) for table in (keys, true, lists))
    query, candidate = known_cells(*tables, KnownAnswers(key_P, row_P))
    return list(zip(query.tolist(), candidate.tolist(), strict=True))


def slow(keys, true, lists, answers) -> list[tuple[int, int]]:
    return [
        (chunk * len(keys[0]) + at, place)
        for chunk, listed in enumerate(lists)
        for at, (key, own) in enumerate(zip(keys[chunk], true[chunk], strict=True))
        for place, candidate in enumerate(listed)
        if candidate in answers.get(key, ()) and candidate != own
    ]


@st.composite
def chunks(draw: st.DrawFn):
    num_chunks, num_queries, length = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    entity = draw(st.sampled_from([st.integers(0, 5), st.sampled_from([0, 1, 2**31 - 1])]))

    def table(of, width):
        return draw(st.lists(st.lists(of, min_size=width, max_size=width), min_size=num_chunks, max_size=num_chunks))

    answers = draw(st.dictionaries(st.integers(0, 4), st.sets(entity, max_size=8)))
    return table(st.integers(0, 4), num_queries), table(entity, num_queries), table(entity, length), answers


@given(chunks())
def test_every_known_answer_in_a_list_is_found_but_the_querys_own(of):
    assert slow(*of) == found(*of)


def test_a_hub_and_a_query_with_few_answers_in_one_chunk():
    """Key 0 has more answers than the list has candidates; candidate 3 is listed twice; key 2 has none."""
    keys, true, lists = [[0, 1, 2]], [[7, 3, 3]], [[3, 8, 3, 7]]
    answers = {0: set(range(10)), 1: {8, 3, 99}}

    assert found(keys, true, lists, answers) == [(0, 0), (0, 1), (0, 2), (1, 1)]


def test_without_known_answers_nothing_is_found():
    assert found([[0, 1]], [[0, 0]], [[1, 2]], {}) == []
