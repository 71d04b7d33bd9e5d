from __future__ import annotations

import numpy as np

from pbgeval.ranking.known_answers import KnownAnswers
from pbgeval.ranking.sampled import known_cells


def found(keys, true, lists, answers) -> list[tuple[int, int]]:
    """`answers`: by key."""
    pairs = sorted((key, row) for key, rows in answers.items() for row in rows)
    key_P, row_P = np.array(pairs, np.int64).reshape(-1, 2).T
    tables = (np.array(table, np.int64) for table in (keys, true, lists))
    query, candidate = known_cells(*tables, KnownAnswers(key_P, row_P))
    return list(zip(query.tolist(), candidate.tolist(), strict=True))


def test_a_hub_and_a_query_with_few_answers_in_one_chunk():
    """Key 0 has more answers than the list has candidates; candidate 3 is listed twice; key 2 has none."""
    keys, true, lists = [[0, 1, 2]], [[7, 3, 3]], [[3, 8, 3, 7]]
    answers = {0: set(range(10)), 1: {8, 3, 99}}

    assert found(keys, true, lists, answers) == [(0, 0), (0, 1), (0, 2), (1, 1)]


def test_without_known_answers_nothing_is_found():
    assert found([[0, 1]], [[0, 0]], [[1, 2]], {}) == []
