"""Marks of the cells of sampled lists and counts by these marks, in Triton's interpreter, against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.draws import HOST, DrawStream, fractions
from pbgeval.scoring import device_lists
from pbgeval.scoring.device_lists import EXCLUDED, IN_TIME, KNOWN, KnownEntities
from tests.examples import crossed, examples

IN_ONE_TEST = settings(
    max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
ENTITIES = st.integers(0, 5) | st.sampled_from([1 << 31, (1 << 40) - 1])


def lists_of(data, *shape: int) -> torch.Tensor:
    number = torch.Size(shape).numel()
    return torch.tensor(data.draw(st.lists(ENTITIES, min_size=number, max_size=number)), dtype=torch.int64).view(shape)


def known_of(data, num_queries: int) -> tuple[torch.Tensor, set[tuple[int, int]]]:
    """The key of each query, and the pairs that are known; a key has none, few, or more than a list is long."""
    pairs = data.draw(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 40) | ENTITIES), max_size=60))
    keys = data.draw(st.lists(st.integers(-1, 4), min_size=num_queries, max_size=num_queries))
    return torch.tensor(keys), pairs


@IN_ONE_TEST
@given(st.data())
def test_cells_are_drawn_as_on_the_host(kernel_device, data):
    num_queries, num_columns, most = (data.draw(st.integers(1, of)) for of in (9, 70, 40))
    rate = data.draw(st.floats(0, 0.999)) * most / num_columns
    auc = AucSampling(min(rate, 0.9), data.draw(st.floats(0, 1)), 0)
    num_draws = math.floor(auc.competing_rate * num_columns) + 1
    words_QD = DrawStream(data.draw(st.integers(0, 99))).words_on(HOST, 3, num_queries * (num_draws + 2))
    words_QD = words_QD.view(num_queries, num_draws + 2)
    mark_QC = (torch.arange(num_queries * num_columns) % 5).to(torch.int8).view(num_queries, num_columns)
    marks = device_lists.Marks(mark_QC, torch.zeros((4, num_queries), dtype=torch.int32), 2)

    found = device_lists.draw(words_QD, marks, auc.competing_rate * num_columns, auc.true_rate)

    query_P, column_P = auc.cells(words_QD, num_columns)
    number_Q = torch.floor(fractions(words_QD[:, 1]) + auc.competing_rate * num_columns)
    kept = (torch.arange(num_draws) < number_Q[:, None]).flatten()
    assert found.query_P[kept].equal(query_P)
    assert found.column_P[kept].equal(column_P)
    assert found.mark_P.equal(torch.where(kept, mark_QC[found.query_P, found.column_P], EXCLUDED))
    assert found.true_is_kept_Q.equal(auc.true_is_kept(words_QD))


@IN_ONE_TEST
@given(st.data())
def test_marks_are_those_of_a_loop(kernel_device, data):
    num_lists, num_queries, num_draws = (data.draw(st.integers(low, most)) for low, most in ((1, 3), (1, 19), (0, 70)))
    begins_with_own, skips_copies, has_outside = (data.draw(st.booleans()) for _ in range(3))
    true_BQ, drawn_BN = lists_of(data, num_lists, num_queries), lists_of(data, num_lists, num_draws)
    ids_BC = torch.cat([true_BQ, drawn_BN], 1) if begins_with_own else drawn_BN
    num_rows, num_columns = num_lists * num_queries, ids_BC.shape[1]
    filters = [known_of(data, num_rows) for _ in range(data.draw(st.integers(0, 2)))]
    outside_QC = torch.arange(num_rows * num_columns).view(num_rows, num_columns) % 7 == 0 if has_outside else None
    on_device = [
        KnownEntities(key_Q, *torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2).t().contiguous())
        for key_Q, pairs in filters
    ]

    found = device_lists.marks(
        ids_BC, true_BQ, on_device, outside_QC, begins_with_own=begins_with_own, skips_copies=skips_copies
    )

    copies = 0
    for query in range(num_rows):
        of_list, true = query // num_queries, int(true_BQ.flatten()[query])
        for column, entity in enumerate(ids_BC[of_list].tolist()):
            is_own = begins_with_own and column == query % num_queries
            is_copy = skips_copies and entity == true and not is_own
            copies += is_copy
            expected = EXCLUDED * (is_own or is_copy or (has_outside and bool(outside_QC[query, column])))
            if not expected and entity != true:
                for bit, (key_Q, pairs) in zip((KNOWN, IN_TIME), filters, strict=False):
                    expected += bit * ((int(key_Q[query]), entity) in pairs)
            assert int(found.mark_QC[query, column]) == expected
    assert int(found.num_copies_Q.sum()) == copies
    counted = [(found.mark_QC & EXCLUDED) == 0, (found.mark_QC & KNOWN) != 0, (found.mark_QC & IN_TIME) != 0]
    assert torch.equal(found.number_4Q[:3].long(), torch.stack([of.sum(1) for of in counted]))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 20, 130)])
@pytest.mark.parametrize(
    ("reads_own", "num_filters", "dtype"), crossed([False, True], [0, 1, 2], [torch.float32, torch.float64], quick=2)
)
def test_scores_are_counted_by_their_marks(kernel_device, shape, reads_own, num_filters, dtype):
    num_lists, num_queries, num_columns = shape
    num_rows, generator = num_lists * num_queries, torch.Generator().manual_seed(num_filters)
    scores_QC = torch.randint(-3, 4, (num_rows, num_columns), generator=generator).to(dtype)
    mark_QC = torch.tensor([0, 0, 1, 2, 4, 6])[torch.randint(0, 6, scores_QC.shape, generator=generator)].to(torch.int8)
    marks = device_lists.Marks(mark_QC, torch.zeros((4, num_rows), dtype=torch.int32), num_filters)
    marks = marks.between(0, num_columns)
    high_Q = scores_QC[torch.arange(num_rows), torch.arange(num_rows) % num_queries]
    low_Q = high_Q if reads_own else high_Q - 1

    found = device_lists.count(scores_QC, marks, None if reads_own else (high_Q, low_Q), num_queries)

    better_QC = scores_QC > high_Q[:, None]
    tied_QC = (scores_QC >= low_Q[:, None]) & ~better_QC
    groups = [(mark_QC & EXCLUDED) == 0, (mark_QC & KNOWN) != 0, (mark_QC & IN_TIME) != 0][: 1 + num_filters]
    expected = [(of & group).sum(1) for group in groups for of in (better_QC, tied_QC, torch.ones_like(tied_QC))]
    assert torch.equal(found.count_NQ, torch.stack(expected))
    assert torch.equal(found.true_Q, high_Q)
    assert int(found.overflow) == 0
    for number in (torch.inf, -torch.inf, torch.nan):
        scores_QC[-1, -1] = number
        limits = None if reads_own else (high_Q, low_Q)
        assert int(device_lists.count(scores_QC, marks, limits, num_queries).overflow) == 1


@pytest.mark.parametrize("amount", [1, -1])
def test_decided_cells_are_added_to_their_groups(kernel_device, amount):
    generator = torch.Generator().manual_seed(1)
    query_P, sign_P = (
        torch.randint(0, 5, (700,), generator=generator),
        torch.randint(-1, 2, (700,), generator=generator),
    )
    mark_QC = torch.tensor([0, 1, 2, 4, 6], dtype=torch.int8)[torch.randint(0, 5, (5, 40), generator=generator)]
    marks = device_lists.Marks(mark_QC, torch.zeros((4, 5), dtype=torch.int32), 2)
    column_P = torch.randint(0, 40, (700,), generator=generator)
    number, mark_P = torch.tensor([650]), mark_QC[query_P, column_P]
    mark_P[650:], sign_P[650:] = EXCLUDED, 2
    for of, groups in (
        (marks, [(mark_P & EXCLUDED) == 0, (mark_P & KNOWN) != 0, (mark_P & IN_TIME) != 0]),
        (device_lists.ALL, [mark_P >= 0, mark_P < 0, mark_P < 0]),
        (device_lists.KNOWN, [mark_P < 0, mark_P >= 0, mark_P < 0]),
    ):
        count_NQ = torch.zeros((9, 5), dtype=torch.int32)

        cells, signs_P = (query_P, column_P), torch.where(torch.arange(700) < 650, sign_P, 1).to(torch.int8)
        device_lists.add_signs(count_NQ, cells, signs_P, of, number=number, amount=amount, competing=3)

        for group, is_here_P in enumerate(groups):
            for at, (added, which_P) in enumerate(((amount, sign_P == 1), (amount, sign_P == 0), (3, sign_P < 2))):
                expected = added * torch.bincount(query_P[is_here_P & which_P], minlength=5)
                assert torch.equal(count_NQ[3 * group + at].long(), expected)


@pytest.mark.parametrize("num_queries", [100, 50], ids=["one run of each", "two runs of each"])
@pytest.mark.parametrize("start", [0, 3, 299])
def test_known_answers_of_queries_are_expanded(kernel_device, start, num_queries):
    """Queries of one key share its answers; some have none."""
    generator = torch.Generator().manual_seed(3)
    length_Q, known_P = (
        torch.randint(0, 9, (100,), generator=generator),
        torch.randint(0, 70, (40,), generator=generator),
    )
    first_Q = torch.randint(0, 30, (100,), generator=generator)
    expected = [
        (run % num_queries, int(known_P[first + at]))
        for run, (first, length) in enumerate(zip(first_Q.tolist(), length_Q.tolist(), strict=True))
        for at in range(length)
    ][start : start + 80]
    known = device_lists.KnownOfQueries(num_queries, first_Q, length_Q.cumsum(0), known_P)

    query_P, column_P = known.cells(start, len(expected))

    assert list(zip(query_P.tolist(), column_P.tolist(), strict=True)) == expected


def test_cells_beyond_the_first_are_of_the_next_group(kernel_device):
    count_NQ, query_P = torch.zeros((9, 2), dtype=torch.int32), torch.tensor([0, 1, 0, 1, 1])
    signs_P = torch.tensor([1, 0, 1, -1, 0], dtype=torch.int8)

    device_lists.add_signs(count_NQ, (query_P, query_P), signs_P, device_lists.KNOWN, num_first=2, competing=1)

    assert count_NQ.tolist() == [[0, 0]] * 3 + [[1, 0], [0, 1], [1, 1]] + [[1, 0], [0, 1], [1, 2]]


def test_a_querys_own_column_is_not_counted(kernel_device):
    count_NQ, query_P = torch.zeros((6, 3), dtype=torch.int32), torch.tensor([0, 0, 1, 2])
    column_P, own_Q = torch.tensor([4, 5, 4, -1]), torch.tensor([5, 4, -1])
    signs_P = torch.tensor([1, 1, 1, 0], dtype=torch.int8)

    device_lists.add_signs(count_NQ, (query_P, column_P), signs_P, device_lists.KNOWN, competing=1, but_own_Q=own_Q)

    assert count_NQ.tolist() == [[0] * 3] * 3 + [[1, 0, 0], [0, 0, 0], [1, 0, 0]]
