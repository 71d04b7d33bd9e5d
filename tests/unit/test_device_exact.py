"""Exact ranks on a GPU: counts equal those in whole numbers, whatever is screened, marked or listed."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pbgeval.ranking.block import Block, CandidateRows, QueryRows
from pbgeval.ranking.gpu_backend import GpuBackend
from pbgeval.ranking.settings import Kept
from pbgeval.scoring import device_exact, device_lists
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.device_exact import ExactCounts, ExactRows, Target
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.true_scores import ExactTrue, row_hashes
from tests.examples import crossed

KINDS = [("dot", False), ("dot", True), ("cos", False), ("l2", False), ("squared_l2", False), ("squared_l2", True)]


def quarters(generator: torch.Generator, *shape: int) -> Tensor:
    """Numbers of which many scores are equal, some of rows that differ."""
    return torch.randint(-3, 4, shape, generator=generator).double() / 4


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def of_all_magnitudes(generator: torch.Generator, *shape: int) -> Tensor:
    """Numbers over 60 binades, whose sums cancel or lose what is small."""
    exponent = torch.randint(-30, 31, shape, generator=generator).double()
    return torch.randn(shape, generator=generator, dtype=torch.float64) * torch.exp2(exponent)


def subnormal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(-9, 10, shape, generator=generator).double() * 2.0**-148


def equal(_: torch.Generator, *shape: int) -> Tensor:
    return torch.full(shape, 0.75, dtype=torch.float64)


MAKES = (quarters, normal, of_all_magnitudes, subnormal, equal)


class Grids:
    """Prepared queries and candidates, and the sign of each cell in whole numbers."""

    def __init__(
        self,
        comparator: ExactComparator,
        make: Callable[..., Tensor],
        shape: tuple[int, int, int, int],
        device: str = "cpu",
        lengths: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        num_grids, num_queries, num_candidates, dimension = shape
        generator = torch.Generator().manual_seed(sum(shape))
        shift = 0.125 if comparator.name == "cos" else 0.0  # no row without a direction
        query_QD = make(generator, num_grids * num_queries, dimension) * lengths[0] + shift
        candidate_ND = make(generator, num_grids * num_candidates, dimension) * lengths[1] + shift
        if not shift:
            query_QD[:1] = 0.0
            candidate_ND[1:2] = 0.0
        self.query_BKD = comparator.prepare_queries(query_QD).view(num_grids, num_queries, -1)
        self.candidate_BCD = comparator.prepare_candidates(candidate_ND).view(num_grids, num_candidates, -1)
        if num_candidates > 5:
            self.candidate_BCD[:, 5] = self.candidate_BCD[:, 2]  # duplicates
        self.own_Q = torch.randint(-1, num_candidates, (num_grids * num_queries,), generator=generator)
        self.grid_Q = torch.arange(num_grids * num_queries) // num_queries
        self.true_QD = self.candidate_BCD[self.grid_Q, self.own_Q.clamp(min=0)]
        self.comparator, self.device = comparator, device

    # In whole numbers, which are slow to make: only where signs are asked for.

    @functools.cached_property
    def queries(self) -> list[list[int]]:
        return [whole(row_D[:-1]) for row_D in self.query_BKD.flatten(0, 1)]

    @functools.cached_property
    def candidates(self) -> list[list[list[int]]]:
        return [[*map(whole, of_grid)] for of_grid in self.candidate_BCD]

    @functools.cached_property
    def true_scores(self) -> list[int]:
        return [*map(self.score, self.queries, map(whole, self.true_QD))]

    def on_device(self) -> list[Tensor]:
        """Queries, candidates, and the row and the column of each query's true entity."""
        return [of.to(self.device) for of in (self.query_BKD, self.candidate_BCD, self.true_QD, self.own_Q)]

    def found(self) -> ExactCounts:
        """What the kernels find."""
        query_BKD, candidate_BCD, true_QD, own_Q = self.on_device()
        score_Q, error_Q = self.comparator.scores_in_float64(query_BKD.flatten(0, 1), true_QD)
        return device_exact.count(
            ExactRows.from_prepared(self.comparator, query_BKD, of_queries=True),
            ExactRows.from_prepared(self.comparator, candidate_BCD, of_queries=False),
            Target(score_Q, error_Q, row_hashes(true_QD), own_Q),
        )

    def counted(self) -> tuple[Tensor, Tensor]:
        """How many are better by the kernels, and how many tie once open cells are decided in whole numbers."""
        found = self.found()
        better_Q, tied_Q, num_competitors_Q = found.count_NQ.cpu().long()
        assert torch.equal(num_competitors_Q, self.candidate_BCD.shape[1] - (self.own_Q >= 0).long())
        open_cells = zip(*(of_P[: int(found.num_open[0])].tolist() for of_P in found.open), strict=True)
        for query, column in open_cells:
            sign = self.sign(query, column)
            better_Q[query] += sign > 0
            tied_Q[query] += sign == 0
        return better_Q, tied_Q

    def expected(self) -> tuple[Tensor, Tensor]:
        better_Q, tied_Q = torch.zeros_like(self.own_Q), torch.zeros_like(self.own_Q)
        for query in range(self.own_Q.numel()):
            for column in set(range(self.candidate_BCD.shape[1])) - {int(self.own_Q[query])}:
                sign = self.sign(query, column)
                better_Q[query] += sign > 0
                tied_Q[query] += sign == 0
        return better_Q, tied_Q

    def sign(self, query: int, column: int) -> int:
        score = self.score(self.queries[query], self.candidates[self.grid_Q[query]][column])
        return (score > self.true_scores[query]) - (score < self.true_scores[query])

    def score(self, query: list[int], candidate: list[int]) -> int:
        """The score without the query's constant, times 2^2148."""
        pairs = [*zip(query, candidate, strict=True)]
        if not self.comparator.adds_squares:
            return sum(x * y for x, y in pairs)
        added = 0
        if self.comparator.bias:
            (weight, bias), pairs = pairs[-1], pairs[:-1]
            added = weight * bias
        return added - sum((x - y) ** 2 for x, y in pairs)


def whole(row_D: Tensor) -> list[int]:
    """Return numbers of float64 exactly, times 2^1074."""
    return [
        numerator * (2**1074 // denominator) for numerator, denominator in map(float.as_integer_ratio, row_D.tolist())
    ]


@pytest.fixture(params=["screened", "in float64"])
def way(request: pytest.FixtureRequest, kernel_device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether small blocks are screened; returns the device."""
    monkeypatch.setattr(device_exact, "MIN_SCREENED_CELLS", 0 if request.param == "screened" else 1 << 60)
    return kernel_device


@pytest.mark.parametrize(
    ("name", "bias", "make"),
    [
        of
        for of in crossed(KINDS, MAKES, quick=2)
        if of.values[0] != "cos" or of.values[2] not in (of_all_magnitudes, subnormal)  # normalised rows have others
    ],
)
def test_counts_are_exact(way: str, name: str, bias: bool, make: Callable[..., Tensor]) -> None:
    grids = Grids(ExactComparator(name, bias), make, (1, 6, 70, 9), way)

    assert all(map(torch.equal, grids.counted(), grids.expected()))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bias"), [("dot", False), ("squared_l2", True)])
@pytest.mark.parametrize("shape", [(3, 5, 21, 6), (2, 1, 1, 17), (1, 3, 65, 300), (1, 1, 1, 1)])
def test_grids_and_rows_of_any_size_are_counted(
    way: str, name: str, bias: bool, shape: tuple[int, int, int, int]
) -> None:
    grids = Grids(ExactComparator(name, bias), quarters, shape, way)

    assert all(map(torch.equal, grids.counted(), grids.expected()))


@pytest.mark.parametrize("shape", [(1, 0, 5, 4), (1, 4, 0, 4), (2, 0, 0, 4)])
def test_nothing_is_counted_where_there_is_nothing(way: str, shape: tuple[int, int, int, int]) -> None:
    num_grids, num_queries, num_candidates, dimension = shape
    comparator = ExactComparator("dot")
    none_Q = torch.zeros(num_grids * num_queries, dtype=torch.int64, device=way)

    found = device_exact.count(
        ExactRows.from_prepared(
            comparator, torch.ones(num_grids, num_queries, dimension + 1, device=way), of_queries=True
        ),
        ExactRows.from_prepared(
            comparator, torch.ones(num_grids, num_candidates, dimension, device=way), of_queries=False
        ),
        Target(none_Q.double(), none_Q.double(), none_Q, none_Q),
    )

    assert not found.num_open.any()
    assert not found.count_NQ.sum()
    assert found.count_NQ.shape == (3, num_grids * num_queries)


def test_more_open_cells_than_there_is_room_for_are_counted_but_not_listed(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = Grids(ExactComparator("dot"), quarters, (1, 20, 70, 3), way)
    every = grids.found()
    monkeypatch.setattr(device_exact, "MAX_OPEN_CELLS", 7)

    few = grids.found()

    assert few.num_open[0] == every.num_open[0] > 7
    assert not device_exact.are_listed(int(few.num_open[0]))
    cells, listed = (
        set(zip(*(of_P[: int(every.num_open[0])].tolist() for of_P in of.open), strict=True)) for of in (every, few)
    )
    assert len(listed) == 7
    assert listed < cells
    assert torch.equal(few.count_NQ, every.count_NQ)


@pytest.mark.parametrize("lengths", [(1e-24, 1e13), (1e13, 1e-24), (1e-30, 1e-30), (1e17, 1e17)])
@pytest.mark.parametrize(("name", "bias"), [("dot", False), ("l2", False), ("squared_l2", True)])
def test_queries_may_be_vastly_longer_or_shorter_than_candidates(
    way: str, name: str, bias: bool, lengths: tuple[float, float]
) -> None:
    """Scaled constants and true scores may be beyond float32."""
    grids = Grids(ExactComparator(name, bias), normal, (1, 5, 70, 4), way, lengths)

    assert all(map(torch.equal, grids.counted(), grids.expected()))


def marks_of(
    own_Q: Tensor, shape: tuple[int, int], known: list[int], excluded: list[int], device: str
) -> device_lists.Marks:
    """The marks of cells: some columns are known answers of every query, some do not compete."""
    mark_QC = torch.zeros(shape, dtype=torch.int8)
    mark_QC[:, known] = device_lists.KNOWN
    mark_QC[:, excluded] = device_lists.EXCLUDED
    here = (own_Q >= 0).nonzero().squeeze(1)
    mark_QC[here, own_Q[here]] = device_lists.EXCLUDED
    number_4Q = torch.zeros((4, shape[0]), dtype=torch.int32, device=device)
    return device_lists.Marks(mark_QC.to(device), number_4Q, 1).between(0, shape[1])


@pytest.mark.parametrize(("num_grids", "with_marks"), [(1, False), (3, True)])
def test_too_many_open_cells_are_counted_in_halves(
    kernel_device: str, monkeypatch: pytest.MonkeyPatch, num_grids: int, with_marks: bool
) -> None:
    """Cells that do not compete and known answers go to the half that has their column."""
    grids = Grids(ExactComparator("dot"), quarters, (num_grids, 5, 70, 3), kernel_device)
    query_Q = torch.arange(num_grids * 5)
    known, excluded = (
        (query_Q.repeat_interleave(2), torch.tensor(columns).repeat(num_grids * 5)) for columns in ((8, 60), (3, 41))
    )
    own_Q = grids.own_Q.where(~torch.isin(grids.own_Q, torch.tensor([3, 8, 41, 60])), -1)
    marks = marks_of(own_Q, (num_grids * 5, 70), [8, 60], [3, 41], kernel_device) if with_marks else None
    query_BKD, candidate_BCD, true_QD, _ = grids.on_device()
    counted = []
    for most in (device_exact.MAX_OPEN_CELLS, num_grids * 5):  # as many as a column has
        monkeypatch.setattr(device_exact, "MAX_OPEN_CELLS", most)
        true = ExactTrue.from_pairs(grids.comparator, query_BKD.flatten(0, 1), true_QD)
        queries = QueryRows(query_BKD, query_Q, true, grids.comparator, each_own=True)
        candidates = CandidateRows(candidate_BCD, grids.comparator)
        block = Block(queries, candidates, own_Q, known, excluded, marks=marks)
        backend = GpuBackend(Comparator("dot", False), grids.comparator, query_BKD.device, torch.float32, Kept.NOTHING)
        counted.append(backend.count_decided(block).counts)
    for whole, halves in zip(*(of._parts for of in counted), strict=True):
        assert all(map(torch.equal, whole.columns, halves.columns))
    is_other = own_Q < 0
    assert torch.equal(counted[0].raw.num_competitors_Q.cpu(), 68 - (~is_other).long())
    assert torch.equal(counted[0].known.num_competitors_Q.cpu(), torch.full_like(own_Q, 2))


def test_rows_that_a_probe_marks_often_are_screened_in_two_parts(
    kernel_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer segments are marked then. Counts are the same. As many marks as may be are not too many."""
    marked, rooms, list_tiles, make_room = [], [], device_exact._tiles_of_marks, device_exact.empty_marks
    monkeypatch.setattr(device_exact, "MIN_SCREENED_CELLS", 0)
    monkeypatch.setattr(
        device_exact,
        "_tiles_of_marks",
        lambda mark_GQ, *rest: marked.append(int(mark_GQ.sum())) or list_tiles(mark_GQ, *rest),
    )
    monkeypatch.setattr(device_exact, "empty_marks", lambda *of: rooms.append(make_room(*of)) or rooms[-1])
    grids = Grids(ExactComparator("dot"), normal, (1, 6, 640, 40), kernel_device)
    expected = grids.expected()

    def count(share: float) -> None:
        monkeypatch.setattr(device_exact, "MAX_MARKED_SHARE", share)
        assert all(map(torch.equal, grids.counted(), expected))

    count(1.0)
    probed_GQ = rooms[0][: -(-min(device_exact.PROBED_COLUMNS, 640) // device_exact.SEGMENT)]
    assert probed_GQ.any()
    count(0.0)
    count((int(probed_GQ.sum()) + 0.5) / probed_GQ.numel())

    assert marked[0] == marked[2] > marked[1]


def test_more_marks_than_there_is_room_for_leave_all_to_float64(
    kernel_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_exact, "MIN_SCREENED_CELLS", 0)
    monkeypatch.setattr(device_exact, "MAX_LISTED_SHARE", -1.0 / 4)
    grids = Grids(ExactComparator("dot"), quarters, (1, 6, 512, 4), kernel_device)
    facts, listed = [], device_exact._all_are_listed
    monkeypatch.setattr(device_exact, "_all_are_listed", lambda others: facts.append(listed(others)) or facts[-1])

    assert all(map(torch.equal, grids.counted(), grids.expected()))
    assert facts == [False]


# The bound of the screen, with sums cut as a tensor core cuts them.


def sums_of_tensor_cores(x_QD: np.ndarray, y_CD: np.ndarray, bits: int = 24) -> np.ndarray:
    """Add products of float16 rows, 16 at a time with the sum so far, each cut to `bits` below the largest of them."""
    sum_QC = np.zeros((len(x_QD), len(y_CD)))
    for start in range(0, x_QD.shape[1], 16):
        terms_NQC = x_QD.T[start : start + 16, :, None] * y_CD.T[start : start + 16, None, :]
        terms_NQC = np.concatenate([terms_NQC, sum_QC[None]])
        unit_QC = np.exp2(np.frexp(np.abs(terms_NQC).max(0))[1] - bits)
        sum_QC = (np.trunc(terms_NQC / unit_QC) * unit_QC).sum(0)
        _, exponent_QC = np.frexp(sum_QC)
        sum_QC = np.trunc(np.ldexp(sum_QC, bits - exponent_QC))
        sum_QC = np.ldexp(sum_QC, exponent_QC - bits)
    return sum_QC


def differences(
    device: str, comparator: ExactComparator, make: Callable[..., Tensor], shape: tuple[int, int, int], num_parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """How far scores of the screen are off, and how far they may be, as shares of the bound: (Q, C) each."""
    grids = Grids(comparator, make, (1, *shape), device)
    query_BKD, candidate_BCD, true_QD, own_Q = grids.on_device()
    queries = ExactRows.from_prepared(comparator, query_BKD, of_queries=True)
    candidates = ExactRows.from_prepared(comparator, candidate_BCD, of_queries=False)
    score_Q, error_Q = comparator.scores_in_float64(query_BKD[0], true_QD)
    count_3Q = torch.empty((3, shape[0]), dtype=torch.int32, device=device)
    limits = device_exact.limits_of(queries, candidates, Target(score_Q, error_Q, own_Q, own_Q), count_3Q)
    screen = device_exact.screen_of(queries, candidates, limits)
    scale, apart_Q = float(screen.queries.scale * screen.candidates.scale), on_host(screen.error_2Q[num_parts - 1])
    high_QD, low_QD = np.split(on_host(screen.queries.rows_ND[: shape[0]]), 2, 1)
    high_CD, low_CD = np.split(on_host(screen.candidates.rows_ND[: shape[1]]), 2, 1)
    sums_QC = sums_of_tensor_cores(high_QD, high_CD)
    if num_parts == 2:
        sums_QC = sums_of_tensor_cores(
            np.concatenate([high_QD, low_QD, high_QD], 1), np.concatenate([high_CD, high_CD, low_CD], 1)
        )
    gap_QC = np.float32(sums_QC) - screen.true_Q.cpu().numpy()[:, None]
    exact_QC = on_host(queries.rows_BND[0]) @ on_host(candidates.rows_BND[0]).T
    if candidates.is_distance:
        square_C = on_host(candidates.described.square_N)
        gap_QC = gap_QC - np.float32(square_C * scale)
        exact_QC = exact_QC - square_C
    exact_QC = (exact_QC - on_host(limits[0])[:, None]) * scale
    return np.abs(gap_QC - exact_QC), np.broadcast_to(apart_Q[:, None], exact_QC.shape)


def on_host(x: Tensor) -> np.ndarray:
    """Return numbers in float64."""
    return x.double().cpu().numpy()


@pytest.mark.parametrize(("name", "bias", "make", "num_parts"), crossed(KINDS, MAKES, (1, 2), quick=2))
def test_sums_cut_by_tensor_cores_are_within_the_bound(
    kernel_device: str, name: str, bias: bool, make: Callable[..., Tensor], num_parts: int
) -> None:
    off_QC, bound_QC = differences(kernel_device, ExactComparator(name, bias), make, (40, 120, 33), num_parts)

    assert (off_QC <= bound_QC).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bias"), KINDS)
def test_the_bound_holds_for_a_million_cells(kernel_device: str, name: str, bias: bool) -> None:
    off_QC, bound_QC = differences(kernel_device, ExactComparator(name, bias), normal, (1000, 1000, 64), 1)

    assert (off_QC <= bound_QC).all()


@pytest.mark.slow
def test_the_bound_is_not_far_too_wide(kernel_device: str) -> None:
    """A thousand times wider would hold as well, and leave everything open."""
    off_QC, bound_QC = differences(kernel_device, ExactComparator("dot"), normal, (100, 300, 100), 1)

    assert off_QC.max() > bound_QC.max() / 50


def test_a_bound_that_is_too_narrow_is_found(kernel_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device(kernel_device)
    monkeypatch.setattr(device_exact, "_devices_without_screen", set().copy)
    assert device_exact.check_screen(device)

    found: set[str] = set()
    monkeypatch.setattr(device_exact, "_devices_without_screen", lambda: found)
    monkeypatch.setattr(device_exact, "UNIT_OF_SCREEN", 2.0**-30)
    assert not device_exact.check_screen(device)
    assert found == {device.type}
