"""Digests of edges: the same however they are cut and ordered, others for any edge that is not the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.notation import Bucket
from pbgeval.ranking.edge_digests import ROWS_AT_A_TIME, EdgeDigests
from pbgeval.ranking.keys import EdgeColumns

LANES = 1 << 64
NUM_EDGES = 100_000
BUCKET = Bucket(1, 2)


def mixed(word: int) -> int:
    """SplitMix64."""
    word = (word + 0x9E3779B97F4A7C15) % LANES
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % LANES
    word = (word ^ word >> 27) * 0x94D049BB133111EB % LANES
    return word ^ word >> 31


FACTORS = [[mixed(8 * lane + place) | 1 for place in range(8)] for lane in range(2)]


def expected(edges: np.ndarray, numbers: list[int]) -> str:
    """Return the digest by Python's integers; `numbers` says which columns of an edge are hashed."""
    sums = [
        sum(mixed(sum(int(edge[at]) * of_lane[at] for at in numbers) % LANES) for edge in edges) % LANES
        for of_lane in FACTORS
    ]
    return "".join(f"{of:016x}" for of in sums)


def section(edges: np.ndarray, cuts: tuple[int, ...] = (), rows: np.ndarray | None = None) -> dict[str, list[str]]:
    """Return the digests of edges (E, 3) or, with times, (E, 4), that are added in parts, each packed by a worker."""
    total = EdgeDigests()
    rows = np.arange(len(edges)) if rows is None else rows
    for part in np.split(np.arange(len(edges)), cuts):
        of_worker = EdgeDigests()
        columns = EdgeColumns(*(edges[part, at] for at in range(edges.shape[1])))
        of_worker.add_edges(0, BUCKET, rows[part], columns, with_time=True)
        total.add_packed(of_worker.pack())
    return total.section(1, filtered=False)


@pytest.fixture(scope="module")
def edges() -> np.ndarray:
    source = np.random.default_rng(0)
    return np.stack([source.integers(0, high, NUM_EDGES) for high in (5000, 7, 5000)], axis=1)


@settings(max_examples=50)
@given(
    edges=st.lists(st.tuples(*[st.integers(0, 2**40)] * 2, st.integers(0, 2**40), st.integers(0, 2**63 - 1))),
    cut=st.integers(0, 5),
)
def test_digests_are_those_of_a_slow_reference(edges: list[tuple[int, ...]], cut: int) -> None:
    rows = np.arange(len(edges)) * 3
    found = section(np.array(edges, np.int64).reshape(-1, 4), (min(cut, len(edges)),), rows)

    every = np.array(
        [(*edge[:3], row, *BUCKET, edge[3]) for edge, row in zip(edges, rows.tolist(), strict=True)], object
    )
    assert found.pop("times", ["0" * 32]) == [expected(every, [0, 1, 2, 3, 4, 5, 6])]
    assert found == {"edges": [expected(every, [0, 1, 2])], "rows": [expected(every, [0, 1, 2, 3, 4, 5])]}


def test_edges_have_the_same_digest_in_any_order_and_parts(edges: np.ndarray) -> None:
    whole, order = section(edges), np.random.default_rng(1).permutation(NUM_EDGES)

    assert section(edges, (1, 7, ROWS_AT_A_TIME, ROWS_AT_A_TIME + 1, 60_000)) == whole
    assert section(edges[order], (5,), order) == whole  # as workers meet them
    assert section(edges[order])["edges"] == whole["edges"]
    assert section(edges[order])["rows"] != whole["rows"]  # another file


def test_one_edge_that_is_not_the_same_is_another_digest(edges: np.ndarray) -> None:
    changed = [edges.copy() for _ in range(6)]
    middle = NUM_EDGES // 2
    for at in range(3):
        changed[at][middle, at] += 1
    changed[3][[middle, middle + 1], 0] = changed[3][[middle + 1, middle], 0]  # two heads are exchanged
    changed[4][middle] = changed[4][middle + 1]  # one is repeated in the place of another
    changed[5] = changed[5][:, [2, 1, 0]]
    assert all((of != edges).any() for of in changed)
    changed += [np.concatenate([edges, edges[middle : middle + 1]]), np.delete(edges, middle, axis=0), edges[:0]]
    found = [section(of) for of in (edges, *changed)]

    for name in ("edges", "rows"):
        assert len({of[name][0] for of in found}) == 1 + len(changed)


def test_times_buckets_and_paths_are_told_apart(edges: np.ndarray) -> None:
    with_times = np.column_stack([edges[:100], np.arange(100)])
    exchanged = with_times.copy()
    exchanged[[0, 1], 3] = [1, 0]
    one, other, without = section(with_times), section(exchanged), section(edges[:100])

    assert (one["times"] == other["times"], one["rows"] == other["rows"]) == (False, True)
    assert without == {name: of for name, of in one.items() if name != "times"}
    digests = EdgeDigests()
    columns = EdgeColumns(*edges[:100].T)
    for path_index, bucket in enumerate([(0, 1), (1, 0), (1, 0)]):
        digests.add_edges(path_index, Bucket(*bucket), np.arange(100), columns, with_time=True)
    found = digests.section(3, filtered=True)
    assert found["edges"] == without["edges"] * 3
    assert (found["rows"][0] == found["rows"][1], found["rows"][1] == found["rows"][2]) == (False, True)
    assert found["known"] == "0" * 32


def test_known_answers_are_told_by_side_place_key_and_answer() -> None:
    found = []
    for place, key, answer in [((0, 1), 2, 3), ((1, 1), 2, 3), ((0, 2), 2, 3), ((0, 1), 3, 2), ((0, 1), 2, 4)]:
        digests = EdgeDigests()
        digests.add_known(place, np.array([key, 7]), np.array([answer, 8]))
        found.append(digests.section(0, filtered=True)["known"])

    assert len({*found}) == len(found)
