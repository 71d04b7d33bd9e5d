"""Prepared rows on a GPU -> counts of exact arithmetic, but for a few cells that stay open (decision 0030).

A screen multiplies in float16. Tensor cores add up its products in float32, and a bound says how far they can be off.
Where all candidates of a segment lie beyond the bound, their order is known. The other segments are multiplied again in
float64, whose bound leaves little more open than ties. Both bounds hold for any order of additions, so counts do not
depend on tiles, on the order of programs or on the GPU.

Here, a score is query . candidate + constant. Under dot and cos the constant is zero. Under a distance the query is
twice its vector and the constant is minus the squared length of the candidate's vector, so that the score is higher
than the comparator's by the query's squared length.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType

import torch
import torch.nn.functional as F
from attrs import field, frozen
from torch import Tensor

from pbgeval.scoring.device_lists import Marks
from pbgeval.scoring.device_scores import current
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.true_scores import row_hashes

SIXTEEN = 16
SEGMENT = 64  # candidates that are clear or marked together
SCREEN_ROWS = SCREEN_COLUMNS = 128
SCREEN_WARPS = 8
MAX_RESIDENT_COLUMNS = 256  # columns of queries that stay in shared memory; longer rows are read in steps
STEP = 64
MAX_TILES_PER_PROGRAM = 64
MIN_PROGRAMS = 1 << 10  # so that all of a GPU's processors are busy until the end
DECIDED_ROWS = DECIDED_COLUMNS = 64
DECIDED_WARPS = 4
MIN_SCREENED_CELLS = 1 << 22  # below, float64 takes no longer
PROBED_QUERIES, PROBED_COLUMNS = 128, 1 << 13
MAX_MARKED_SHARE = 1 / 16  # beyond this share of segments, rows are multiplied in two parts, which takes three products
BITS = 32  # of a word of open cells
MAX_OPEN_CELLS = 1 << 26
SLACK = 1.0 + 1e-9  # covers roundings of the bounds, which are computed in float64
# A tensor core adds 16 products and the sum so far, cut to 24 bits or more; this is twice what that is off.
UNIT_OF_SCREEN = 2.0**-22
UNIT_OF_FLOAT64 = 2.0**-52
MAX_SCREENED = 2.0**120  # scaled scores are cut at it, so that differences are finite in float32
HALF_EXPONENT = 15  # scaled rows are below 2^15, so that no float16 overflows


@functools.cache
def _kernels() -> ModuleType:
    from pbgeval.scoring import exact_kernels

    return exact_kernels


@frozen(eq=False)
class HalfRows:
    """Rows times a power of two, in float16: as they are, or in two parts."""

    rows_ND: Tensor
    scale: Tensor  # float64, a power of two
    norm_N: Tensor  # float64, of scaled rows: at least the length
    low_N: Tensor  # that of the second part, which is zero where there is one
    lost_N: Tensor  # that of what no part has


@frozen(eq=False)
class ExactRows:
    """Prepared rows as the kernels read them, on a grid of queries or candidates (B, N, D)."""

    rows_BND: Tensor  # float32: the factors of a score
    constant_BN: Tensor | None  # float64: what is added to a candidate's scores, under a distance
    square_BN: Tensor | None  # float64: the squared length of a vector, under a distance
    of_queries: bool
    _halves: dict[int, HalfRows] = field(factory=dict, init=False)

    @classmethod
    def from_prepared(cls, comparator: ExactComparator, rows_BND: Tensor, *, of_queries: bool) -> ExactRows:
        """Take prepared rows of queries, whose last column is no factor, or of candidates."""
        factors_BND = rows_BND[..., :-1] if of_queries else rows_BND
        if not comparator.is_distance:
            return cls(factors_BND, None, None, of_queries)
        size = factors_BND.shape[-1] - int(comparator.bias)
        square_BN = factors_BND[..., :size].double().square().sum(-1)
        if not of_queries:
            return cls(factors_BND, -square_BN, square_BN, of_queries)
        doubled_BND = factors_BND.clone()
        doubled_BND[..., :size] *= 2
        return cls(doubled_BND, None, square_BN, of_queries)

    @functools.cached_property
    def norm_BN(self) -> Tensor:
        """At least the length of each row of factors, float64."""
        return _norms(self.rows_BND)

    @functools.cached_property
    def hash_BN(self) -> Tensor:
        """A hash of each candidate's row."""
        return row_hashes(self.rows_BND.flatten(0, 1)).view(self.rows_BND.shape[:-1])

    @functools.cached_property
    def transposed_DC(self) -> Tensor:
        """Candidates as columns, with zeros up to multiples of 16 columns and, in each grid, of 16 candidates."""
        num_grids, num_rows, width = self.rows_BND.shape
        transposed_DBN = self.rows_BND.new_zeros((padded(width), num_grids, padded(num_rows)))
        transposed_DBN[:width, :, :num_rows] = self.rows_BND.permute(2, 0, 1)
        return transposed_DBN.flatten(1)

    def padded_BN(self, values_BN: Tensor) -> Tensor:
        """Return a number of each candidate, with zeros up to a multiple of 16 candidates in each grid."""
        return F.pad(values_BN, (0, -values_BN.shape[1] % SIXTEEN)).flatten()

    def half(self, num_parts: int) -> HalfRows:
        """Return the rows of the one grid in float16."""
        if num_parts not in self._halves:
            self._halves[num_parts] = self._rounded(num_parts)
        return self._halves[num_parts]

    def _rounded(self, num_parts: int) -> HalfRows:
        x_ND = self.rows_BND[0].double()
        largest = x_ND.abs().amax() if x_ND.numel() else x_ND.new_zeros(())
        fraction, _ = torch.frexp(largest)
        # The exact power of two below the largest number; an exponential would round on some hardware.
        scale = torch.where(largest > 0, fraction / largest, 1.0) * 2.0**HALF_EXPONENT
        x_ND = x_ND * scale
        norm_N = self.norm_BN[0] * scale
        parts_ND = [x_ND.half()]
        rest_ND = x_ND - parts_ND[0]
        low_N = torch.zeros_like(norm_N)
        if num_parts == 2:  # high . high + high . low + low . high
            low_ND = rest_ND.half()
            low_N, rest_ND = _norms(low_ND), rest_ND - low_ND
            high_ND = parts_ND[0]
            parts_ND = [low_ND, high_ND, high_ND] if self.of_queries else [high_ND, low_ND, high_ND]
        rows_ND = parts_ND[0] if num_parts == 1 else torch.cat(parts_ND, dim=1)
        step = _depth(rows_ND.shape[1])
        extra = 0 if self.of_queries else -rows_ND.shape[0] % SCREEN_COLUMNS
        rows_ND = F.pad(rows_ND, (0, -rows_ND.shape[1] % step, 0, extra)).contiguous()
        return HalfRows(rows_ND, scale, norm_N, low_N, _norms(rest_ND))


def padded(size: int) -> int:
    """Return the multiple of 16 that a size is padded to."""
    return size + -size % SIXTEEN


def _norms(x_ND: Tensor) -> Tensor:
    norm_N: Tensor = torch.linalg.vector_norm(x_ND, dim=-1, dtype=torch.float64)
    return norm_N * SLACK


def _depth(width: int) -> int:
    """Return how many columns of float16 rows are multiplied at once."""
    return max(1 << (width - 1).bit_length(), 2 * SIXTEEN) if width <= MAX_RESIDENT_COLUMNS else STEP


def _largest(x_BN: Tensor) -> Tensor:
    """Return the largest number of each grid, (B, 1)."""
    return x_BN.amax(-1, keepdim=True) if x_BN.shape[-1] else x_BN.new_zeros((*x_BN.shape[:-1], 1))


@frozen(eq=False)
class Target:
    """What the candidates of some queries are compared with."""

    score_Q: Tensor  # float64: of the true entity, without a query's constant
    error_Q: Tensor  # float64: it is off by at most this
    hash_Q: Tensor  # int64: of the true entity's prepared row
    own_Q: Tensor  # int64: the column of the true entity among its grid's candidates, -1 where it is none of them
    marks: Marks | None = None  # in place of `own_Q`: what each cell is


@frozen(eq=False)
class ExactCounts:
    """What was found, and the cells that are open and counted nowhere."""

    count_NQ: Tensor  # int32: better, tied and (still zero) competing, of each group of cells
    query_P: Tensor  # int64
    column_P: Tensor  # int64, within the grid


def middle_and_width(queries: ExactRows, candidates: ExactRows, target: Target) -> tuple[Tensor, Tensor]:
    """Return the score in float64 that decides for each query, and how far from it scores do not decide (Q,)."""
    offset_Q, magnitude_Q, error_Q = _magnitudes(queries, candidates)
    num_terms = queries.rows_BND.shape[-1] + 8
    middle_Q = target.score_Q + offset_Q
    error_Q = target.error_Q + error_Q + magnitude_Q * (num_terms * UNIT_OF_FLOAT64)
    # The last term covers the rounding of the line before.
    return middle_Q, error_Q * SLACK + middle_Q.abs() * 2.0**-50


def _magnitudes(queries: ExactRows, candidates: ExactRows) -> tuple[Tensor, Tensor, Tensor]:
    """Return three numbers of each query (Q,).

    By how much its scores are above the comparator's, how large the magnitudes of a score's terms are together at most,
    and the error of squared lengths.
    """
    magnitude_BQ = queries.norm_BN * _largest(candidates.norm_BN)
    if queries.square_BN is None or candidates.square_BN is None:
        zero_Q = torch.zeros_like(magnitude_BQ.flatten())
        return zero_Q, magnitude_BQ.flatten(), zero_Q
    squares_BQ = queries.square_BN + _largest(candidates.square_BN)
    error_BQ = squares_BQ * ((queries.rows_BND.shape[-1] + 8) * UNIT_OF_FLOAT64)
    return queries.square_BN.flatten(), (magnitude_BQ + squares_BQ).flatten(), error_BQ.flatten()


def count(queries: ExactRows, candidates: ExactRows, target: Target) -> ExactCounts:
    """Count the candidates of each query's grid; the true entity itself does not compete.

    Args:
        queries: (B, K, D): the queries are those of all grids, one after the other.
        candidates: (B, C, D).
        target: of all queries.
    """
    num_grids, num_queries, _ = queries.rows_BND.shape
    num_columns, device = candidates.rows_BND.shape[1], queries.rows_BND.device
    num_groups = 1 if target.marks is None else target.marks.num_groups
    count_NQ = torch.zeros((3 * num_groups, num_grids * num_queries), dtype=torch.int32, device=device)
    if not count_NQ.numel() or not num_columns:
        none_P = torch.zeros(0, dtype=torch.int64, device=device)
        return ExactCounts(count_NQ, none_P, none_P)
    limits = middle_and_width(queries, candidates, target)
    is_large = num_queries * num_columns >= MIN_SCREENED_CELLS
    if num_grids == 1 and target.marks is None and is_large and _screens(device):
        mark_GQ = _screened(queries, candidates, limits, count_NQ[0])
        row_P, tile_N4 = _tiles_of_marks(mark_GQ, num_columns)
    else:
        row_P, tile_N4 = _every_tile(num_grids, num_queries, num_columns, device)
    query_P, column_P = _decide(queries, candidates, limits, target, (row_P, tile_N4), count_NQ)
    return ExactCounts(count_NQ, query_P, column_P % padded(num_columns))


# Products in float16.


def _screened(
    queries: ExactRows, candidates: ExactRows, middle_and_width: tuple[Tensor, Tensor], better_Q: Tensor
) -> Tensor:
    """Add the better candidates of clear segments; return the marks of the others, int8 (segments, Q)."""
    num_queries, num_columns = better_Q.numel(), candidates.rows_BND.shape[1]

    def screened(num_parts: int, better_Q: Tensor, sizes: tuple[int, int]) -> Tensor:
        limits = screen_limits(queries, candidates, middle_and_width, num_parts)
        halves = queries.half(num_parts), candidates.half(num_parts)
        return _screen(halves, candidates.constant_BN, limits, better_Q, sizes)

    few = min(PROBED_QUERIES, num_queries), min(PROBED_COLUMNS, num_columns)
    share = screened(1, torch.zeros_like(better_Q), few).float().mean()
    return screened(2 if float(share) > MAX_MARKED_SHARE else 1, better_Q, (num_queries, num_columns))


def _screen(
    halves: tuple[HalfRows, HalfRows],
    constant_BN: Tensor | None,
    limits: tuple[Tensor, Tensor],
    better_Q: Tensor,
    sizes: tuple[int, int],
) -> Tensor:
    """Screen the first so many queries and columns, whose rows are padded to whole tiles."""
    (x, y), (true_Q, error_Q), (num_queries, num_columns) = halves, limits, sizes
    constant_C = true_Q  # not read
    if constant_BN is not None:
        constant_C = (constant_BN[0] * (x.scale * y.scale)).clamp(min=-MAX_SCREENED).float()
        constant_C = F.pad(constant_C, (0, -constant_C.numel() % SCREEN_COLUMNS))
    width = x.rows_ND.shape[1]
    stays = width <= MAX_RESIDENT_COLUMNS and _depth(width) == width
    row_tiles, column_tiles = -(-num_queries // SCREEN_ROWS), -(-num_columns // SCREEN_COLUMNS)
    per_program = min(max(row_tiles * column_tiles // MIN_PROGRAMS, 1), MAX_TILES_PER_PROGRAM)
    num_segments = column_tiles * (SCREEN_COLUMNS // SEGMENT)
    mark_GQ = torch.empty((num_segments, num_queries), dtype=torch.int8, device=better_Q.device)
    with current(better_Q.device):
        _kernels().screen_tiles[(row_tiles * -(-column_tiles // per_program),)](
            x.rows_ND,
            y.rows_ND,
            constant_C,
            true_Q,
            error_Q,
            better_Q,
            mark_GQ,
            num_queries,
            num_columns,
            per_program,
            1 if stays else width // STEP,
            **screen_options(width, stays=stays, has_constant=constant_BN is not None),
        )
    return mark_GQ[: -(-num_columns // SEGMENT)]


def screen_options(width: int, *, stays: bool, has_constant: bool) -> dict[str, int | bool]:
    """Return what the screen is compiled for."""
    return {
        "STAYS": stays,
        "HAS_CONSTANT": has_constant,
        "TILE_ROWS": SCREEN_ROWS,
        "TILE_COLUMNS": SCREEN_COLUMNS,
        "TILE_DEPTH": width if stays else STEP,
        "SEGMENT": SEGMENT,
        "num_warps": SCREEN_WARPS,
        "num_stages": 2 if stays else 3,
    }


def screen_limits(
    queries: ExactRows, candidates: ExactRows, middle_and_width: tuple[Tensor, Tensor], num_parts: int
) -> tuple[Tensor, Tensor]:
    """Return the score in float32 with which the screen compares, and how far from it scores do not decide (Q,)."""
    x, y = queries.half(num_parts), candidates.half(num_parts)
    scale = x.scale * y.scale
    middle_Q, width_Q = (of * scale for of in middle_and_width)
    norm, low, lost = (_largest(of) for of in (y.norm_N, y.low_N, y.lost_N))
    error_Q = x.lost_N * (norm + lost) + x.norm_N * lost + x.low_N * low  # of rows in float16
    magnitude_Q = (x.norm_N + 2 * x.low_N + 2 * x.lost_N) * (norm + 2 * low + 2 * lost)
    error_Q = error_Q + magnitude_Q * _error_of_sums(x.rows_ND.shape[1])
    if candidates.constant_BN is not None:  # it is rounded and cut, and two additions are rounded
        largest = _largest(candidates.constant_BN[0].abs()) * scale
        error_Q = error_Q + (magnitude_Q + largest + middle_Q.abs()) * UNIT_OF_SCREEN
        error_Q = error_Q + (largest - MAX_SCREENED).clamp(min=0.0)
    true_Q = middle_Q.clamp(-MAX_SCREENED, MAX_SCREENED).float()
    apart_Q = (error_Q + width_Q) * SLACK + (true_Q.double() - middle_Q).abs()
    return true_Q, torch.nextafter(apart_Q.float(), torch.full_like(true_Q, torch.inf))


# Products in float64.


def _decide(
    queries: ExactRows,
    candidates: ExactRows,
    middle_and_width: tuple[Tensor, Tensor],
    target: Target,
    tiles: tuple[Tensor, Tensor],
    count_NQ: Tensor,
) -> tuple[Tensor, Tensor]:
    """Add what tiles decide to the counts; return (query, column) of the cells that stay open, int64."""
    middle_Q, width_Q = middle_and_width
    length = padded(candidates.rows_BND.shape[1])
    row_P, tile_N4 = tiles
    marks, own_Q = target.marks, row_P  # which is not read where there are marks
    if marks is None:
        grid_Q = torch.arange(middle_Q.numel(), device=middle_Q.device) // queries.rows_BND.shape[1]
        own_Q = torch.where(target.own_Q >= 0, grid_Q * length + target.own_Q, -1).int()
    query_QD = F.pad(queries.rows_BND.flatten(0, 1), (0, -queries.rows_BND.shape[-1] % SIXTEEN)).contiguous()
    high_Q, low_Q = (_rounded(middle_Q, sign * width_Q) for sign in (1, -1))
    constant_C = None if candidates.constant_BN is None else candidates.padded_BN(candidates.constant_BN)
    open_NQw = torch.zeros(
        (tile_N4.shape[0], DECIDED_ROWS, DECIDED_COLUMNS // BITS), dtype=torch.int32, device=middle_Q.device
    )
    with current(middle_Q.device):
        _kernels().decide_tiles[(tile_N4.shape[0],)](
            query_QD,
            candidates.transposed_DC,
            high_Q if constant_C is None else constant_C,  # not read where there is none
            row_P,
            tile_N4,
            high_Q,
            low_Q,
            target.hash_Q.contiguous(),
            own_Q,
            candidates.padded_BN(candidates.hash_BN),
            row_P if marks is None else marks.mark_QC,  # not read where there are none
            count_NQ,
            open_NQw,
            query_QD.shape[1] // SIXTEEN,
            candidates.transposed_DC.shape[1] // SIXTEEN,
            middle_Q.numel(),
            candidates.rows_BND.shape[1],
            length,
            **tile_options(has_constant=constant_C is not None, num_groups=0 if marks is None else marks.num_groups),
        )
    return _open_cells(open_NQw, row_P, tile_N4)


def _open_cells(open_NQw: Tensor, row_P: Tensor, tile_N4: Tensor) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the bits that are set."""
    tile_P, row_of_tile_P, word_P = open_NQw.nonzero(as_tuple=True)
    if tile_P.numel() > MAX_OPEN_CELLS // BITS:
        raise TooManyCellsError
    bit_k = torch.arange(BITS, device=tile_P.device)
    at_P, bit_P = ((open_NQw[tile_P, row_of_tile_P, word_P].unsqueeze(1) >> bit_k) & 1).nonzero(as_tuple=True)
    tile_P, row_of_tile_P, word_P = tile_P[at_P], row_of_tile_P[at_P], word_P[at_P]
    query_P = row_P[tile_N4[tile_P, 0].long() + row_of_tile_P].long()
    return query_P, tile_N4[tile_P, 2].long() + word_P * BITS + bit_P


def _rounded(middle_Q: Tensor, apart_Q: Tensor) -> Tensor:
    """Return the sum, rounded away from the middle unless there is nothing to add."""
    return torch.where(apart_Q != 0, torch.nextafter(middle_Q + apart_Q, apart_Q * torch.inf), middle_Q)


def tile_options(*, has_constant: bool, num_groups: int) -> dict[str, int | bool]:
    """Return what the kernel in float64 is compiled for; no groups: without marks."""
    return {
        "HAS_CONSTANT": has_constant,
        "NUM_GROUPS": num_groups,
        "TILE_ROWS": DECIDED_ROWS,
        "TILE_COLUMNS": DECIDED_COLUMNS,
        "TILE_DEPTH": SIXTEEN,
        "num_warps": DECIDED_WARPS,
        "num_stages": 3,
    }


class TooManyCellsError(Exception):
    """More cells stay open than are decided at once; the caller asks for fewer candidates."""


def _every_tile(num_grids: int, num_queries: int, num_columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the queries in order, and the tiles of all grids, as `decide_tiles` reads them."""
    row_tiles, column_tiles = -(-num_queries // DECIDED_ROWS), -(-num_columns // DECIDED_COLUMNS)
    tile_N = torch.arange(num_grids * row_tiles * column_tiles, device=device)
    grid_N, row_N, column_N = (
        tile_N // (row_tiles * column_tiles),
        tile_N % row_tiles * DECIDED_ROWS,
        tile_N // row_tiles % column_tiles * DECIDED_COLUMNS,
    )
    begin_N = grid_N * padded(num_columns)
    columns = begin_N + column_N, begin_N + num_columns
    tile_N4 = torch.stack([grid_N * num_queries + row_N, (num_queries - row_N).clamp(max=DECIDED_ROWS), *columns], 1)
    return torch.arange(num_grids * num_queries, dtype=torch.int32, device=device), tile_N4.int()


def _tiles_of_marks(mark_GQ: Tensor, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return the marked queries of each segment, one segment after the other, and tiles of at most 64 of them."""
    segment_P, row_P = mark_GQ.nonzero(as_tuple=True)
    number_G = torch.zeros(mark_GQ.shape[0], dtype=torch.int64, device=mark_GQ.device)
    number_G.index_add_(0, segment_P, torch.ones_like(segment_P))
    tiles_G = (number_G + (DECIDED_ROWS - 1)) // DECIDED_ROWS
    last_G = tiles_G.cumsum(0)
    # At most so many tiles; those that are too many have no queries.
    tile_N = torch.arange(row_P.numel() // DECIDED_ROWS + mark_GQ.shape[0], device=mark_GQ.device)
    segment_N = torch.searchsorted(last_G, tile_N, right=True).clamp(max=mark_GQ.shape[0] - 1)
    place_N = (tile_N - (last_G - tiles_G)[segment_N]) * DECIDED_ROWS
    first_N = (number_G.cumsum(0) - number_G)[segment_N] + place_N
    rows_N = (number_G[segment_N] - place_N).clamp(0, DECIDED_ROWS)
    column_N = segment_N * SEGMENT
    tile_N4 = torch.stack([first_N, rows_N, column_N, (column_N + SEGMENT).clamp(max=num_columns)], 1)
    return row_P.int(), tile_N4.int()


def _error_of_sums(width: int) -> float:
    """Return how far sums of tensor cores may be off, as a share of their terms' magnitudes."""
    return (width + SIXTEEN) * UNIT_OF_SCREEN


# Whether a GPU adds as the bound of the screen says.

HARD_ROWS, HARD_COLUMNS = 64, 128


@functools.cache
def _devices_without_screen() -> set[str]:
    """Return the types of devices on which larger errors were found, one set for each process."""
    return set()


def _screens(device: torch.device) -> bool:
    return device.type not in _devices_without_screen()


def check_screen(device: torch.device) -> bool:
    """Try to find sums that are off by more than half of what the bound allows; where there are, go without a screen.

    The sums have a large term and many that lie just below its last bits, terms that cancel, and terms of all
    magnitudes, in all places. A true score half a bound above a sum, or below it, shows on which side the sum fell.
    """
    for query_QD, candidate_ND in _hard_rows(device):
        one = torch.ones((), dtype=torch.float64, device=device)
        none = torch.zeros(1, dtype=torch.float64, device=device)
        halves = [HalfRows(of.half(), one, _norms(of), none, none) for of in (query_QD, candidate_ND)]
        exact_QQ = query_QD.double() @ candidate_ND[:HARD_ROWS].double().mT
        half_Q = halves[0].norm_N * halves[1].norm_N.amax() * (_error_of_sums(HARD_COLUMNS) / 2)
        for true_Q in (exact_QQ.diagonal() + half_Q, exact_QQ.diagonal() - half_Q):
            better_Q = torch.zeros(HARD_ROWS, dtype=torch.int32, device=device)
            limits = true_Q.float(), torch.full_like(true_Q, -1.0, dtype=torch.float32)  # nothing is near
            _screen((halves[0], halves[1]), None, limits, better_Q, (HARD_ROWS, HARD_ROWS))
            gap_QQ = exact_QQ - limits[0].double().unsqueeze(1)
            surely_Q, possibly_Q = ((gap_QQ > of).sum(1) for of in (half_Q.unsqueeze(1), -half_Q.unsqueeze(1)))
            if not bool(((surely_Q <= better_Q) & (better_Q <= possibly_Q)).all()):
                _devices_without_screen().add(device.type)
                return False
    return True


def _hard_rows(device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield queries and as many candidates of numbers that float16 holds, padded to whole tiles."""
    shape, generator = (HARD_ROWS, HARD_COLUMNS), torch.Generator().manual_seed(0)
    place_Q = torch.arange(HARD_ROWS) * HARD_COLUMNS // HARD_ROWS
    large_QD = torch.zeros(shape).scatter_(1, place_Q.unsqueeze(1), 1.0)
    uniform_QD = torch.rand(shape, generator=generator)
    sign_QD = torch.randint(0, 2, shape, generator=generator) * 2.0 - 1.0
    below_QD = torch.where(large_QD > 0, large_QD, 2.0**-5 * (1 - 2.0**-10))
    cancelling_QD = large_QD - large_QD.roll(HARD_COLUMNS // 2, 1)
    any_QD = sign_QD * (1 + uniform_QD) * torch.exp2((uniform_QD * 38).floor() - 24)
    for candidate_QD in (
        below_QD * torch.where(large_QD > 0, 2.0**14, 1.0),
        below_QD * torch.where(large_QD > 0, 2.0**14, sign_QD),
        torch.where(cancelling_QD != 0, cancelling_QD * 2.0**14, 2.0**-5 * sign_QD),
        any_QD,
    ):
        for query_QD in (below_QD, any_QD.flip(0)):
            candidate_ND = F.pad(candidate_QD.half().float(), (0, 0, 0, SCREEN_COLUMNS - HARD_ROWS))
            yield query_QD.half().float().to(device), candidate_ND.to(device)
