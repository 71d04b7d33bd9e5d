from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.duplicates import DuplicateRows, row_hashes
from pbgeval.scoring.true_scores import TrueScores

values = st.sampled_from([-0.0, 0.0, 1.0, 1e-40, -2.5, 3e38])
dtypes = st.sampled_from([torch.float32, torch.float64])


def rows(min_size: int = 0):
    return st.lists(st.tuples(values, values), min_size=min_size, max_size=8)


def tensor(of, dtype) -> torch.Tensor:
    return torch.tensor(of, dtype=dtype).reshape(-1, 2)


@given(rows(), dtypes)
def test_equal_rows_have_equal_hashes_and_others_here_do_not(of, dtype):
    hashes = row_hashes(tensor(of, dtype)).tolist()

    for one, first in zip(hashes, of, strict=True):
        assert [first == other for other in of] == [one == two for two in hashes]


@given(rows(1), rows(1), dtypes, st.data())
def test_twins_are_the_candidates_with_the_true_vector_but_the_true_entity(candidates, true, dtype, data):
    own = [data.draw(st.sampled_from([-1, *(at for at, row in enumerate(candidates) if row == of)])) for of in true]
    expected = [
        (query, at)
        for query, of in enumerate(true)
        for at, row in enumerate(candidates)
        if row == of and at != own[query]
    ]

    query, column = DuplicateRows.from_rows(tensor(candidates, dtype)).of_queries(
        row_hashes(tensor(true, dtype)).numpy(), np.array(own)
    )

    assert expected == sorted(zip(query.tolist(), column.tolist(), strict=True))


@given(rows(), dtypes, st.data())
def test_true_scores_survive_packing_bit_by_bit(of, dtype, data):
    chance = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    other = torch.randn((len(of), 2), generator=chance, dtype=dtype)
    true = TrueScores.of_pairs(Comparator("dot"), other, tensor(of, dtype))

    packed = true.packed()
    back = TrueScores.unpacked(packed, torch.device("cpu"))

    assert (len(of), TrueScores.width(dtype)) == packed.shape
    assert packed.dtype == dtype
    for one, two in ((true.score_Q, back.score_Q), (true.kernel_Q, back.kernel_Q), (true.hash_Q, back.hash_Q)):
        assert one.numpy().tobytes() == two.contiguous().numpy().tobytes()
    for start in range(len(of)):
        part = TrueScores.unpacked(packed[start : start + 1], torch.device("cpu"))
        assert true.hash_Q[start : start + 1].tolist() == part.hash_Q.tolist()
