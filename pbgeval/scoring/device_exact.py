"""Prepared rows on a GPU -> counts of exact arithmetic, but for a few cells that stay open (decision 0030).

A screen multiplies in float16. Tensor cores add up its products in float32, and a bound says how far they can be off.
Where all candidates of a segment lie beyond the bound, their order is known. The other segments are multiplied again in
float64, whose bound leaves little more open than ties. Both bounds hold for any order of additions, so counts do not
depend on tiles, on the order of programs or on the GPU.

Here, a score is query . candidate. Under a distance the query is twice its vector, and the squared length of the
candidate's vector is taken away, so that the score is higher than the comparator's by the query's squared length.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.scoring.deferred import holds
from pbgeval.scoring.device_lists import Marks
from pbgeval.scoring.device_pairs import Described
from pbgeval.scoring.device_scores import launch
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.true_scores import described

ALIGNMENT = 16
SEGMENT = 64  # candidates that are clear or marked together
SCREEN_ROWS = SCREEN_COLUMNS = 128
SCREEN_WARPS = 8
MAX_RESIDENT_COLUMNS = 256  # columns of queries that stay in shared memory; longer rows are read in steps
STEP = 64
MAX_TILES_PER_PROGRAM = 64
MIN_PROGRAMS = 1 << 10  # so that all of a GPU's processors are busy until the end
DECIDED_ROWS = DECIDED_COLUMNS = 64
DECIDED_WARPS = 4
LIMITED_ROWS = 256  # of a program
ROUNDED_ROWS, ROUNDED_COLUMNS = 16, 32
LISTED_QUERIES = 1024
MIN_SCREENED_CELLS = 1 << 22  # below, float64 takes no longer
PROBED_QUERIES, PROBED_COLUMNS = 128, 1 << 13
MAX_MARKED_SHARE = 1 / 16  # beyond this share of segments, rows are multiplied in two parts, which takes three products
MAX_LISTED_SHARE = 3 / 8  # of segments, beside the last and the true entity's; beyond, all are multiplied in float64
MAX_OPEN_CELLS = 1 << 22  # that are listed: 64 MB
# A tensor core adds 16 products and the sum so far, cut to 24 bits or more; this is twice what that is off.
UNIT_OF_SCREEN = 2.0**-22


@functools.cache
def _kernels() -> ModuleType:
    from pbgeval.scoring import exact_kernels

    return exact_kernels


@frozen(eq=False)
class HalfRows:
    """Rows times a power of two, in float16: two parts of as many columns, the second what the first has lost."""

    rows_ND: Tensor
    scale: Tensor  # float64, a power of two
    length_3N: Tensor  # at least so long, float64: scaled rows, their second parts, and what no part has

    @property
    def width(self) -> int:
        return self.rows_ND.shape[1] // 2

    @functools.cached_property
    def largest_3(self) -> Tensor:
        """The largest of each of the three lengths."""
        return self.length_3N.amax(1)


@frozen(eq=False)
class ExactRows:
    """Prepared rows as the kernels read them, on a grid of queries or candidates (B, N, D)."""

    rows_BND: Tensor  # float32: the factors of a score
    described: Described  # the rows of all grids; under a distance, with the squared lengths of their vectors
    is_distance: bool

    @classmethod
    def from_prepared(cls, comparator: ExactComparator, rows_BND: Tensor, *, of_queries: bool) -> ExactRows:
        """Take prepared rows of queries, whose last column is no factor, or of candidates."""
        factors_BND = rows_BND[..., :-1] if of_queries else rows_BND
        num_squared = factors_BND.shape[-1] - int(comparator.bias) if comparator.adds_squares else 0
        found = described(factors_BND.flatten(0, 1), num_squared)
        if of_queries and num_squared:
            factors_BND = factors_BND.clone()
            factors_BND[..., :num_squared] *= 2
            found = evolve(described(factors_BND.flatten(0, 1)), square_N=found.square_N)
        return cls(factors_BND, found, comparator.adds_squares)

    @functools.cached_property
    def largest_norm_B(self) -> Tensor:
        """The largest norm of each grid."""
        return self.described.norm_N.view(self.rows_BND.shape[:-1]).amax(-1)

    @functools.cached_property
    def largest_square_B(self) -> Tensor:
        """The largest squared length of each grid, under a distance."""
        return self.described.square_N.view(self.rows_BND.shape[:-1]).amax(-1)

    @functools.cached_property
    def transposed_DC(self) -> Tensor:
        """Candidates as columns, with zeros up to multiples of 16 columns and, in each grid, of 16 candidates."""
        _, num_rows, width = self.rows_BND.shape
        added = 0, -num_rows % ALIGNMENT, 0, 0, 0, -width % ALIGNMENT
        return F.pad(self.rows_BND.permute(2, 0, 1), added).contiguous().flatten(1)

    @functools.cached_property
    def half(self) -> HalfRows:
        """The rows of the one grid in float16."""
        rows_ND = self.rows_BND[0]
        (num_rows, num_columns), device = rows_ND.shape, rows_ND.device
        width = num_columns + -num_columns % _depth(num_columns)
        num_stored = num_rows + -num_rows % SCREEN_COLUMNS
        half_ND = torch.empty((num_stored, 2 * width), dtype=torch.float16, device=device)
        scale, length_3N = (torch.empty(of, dtype=torch.float64, device=device) for of in ((1,), (3, num_rows)))
        launch(
            _kernels().round_rows,
            -(-num_stored // ROUNDED_ROWS),
            rows_ND,
            self.largest_norm_B,
            self.described.norm_N,
            half_ND,
            scale,
            length_3N,
            num_rows,
            num_stored,
            rows_ND.stride(0),
            num_columns,
            width,
            ROWS=ROUNDED_ROWS,
            COLUMNS=ROUNDED_COLUMNS,
        )
        return HalfRows(half_ND, scale, length_3N)


def _depth(width: int) -> int:
    """Return how many columns of float16 rows stay in shared memory, or are multiplied at once."""
    return max(1 << (width - 1).bit_length(), 2 * ALIGNMENT) if width <= MAX_RESIDENT_COLUMNS else STEP


@frozen(eq=False)
class Target:
    """What the candidates of some queries are compared with."""

    score_Q: Tensor  # float64: of the true entity, without a query's constant
    error_Q: Tensor  # float64: it is off by at most this
    hash_Q: Tensor  # int64: of the true entity's prepared row
    own_Q: Tensor  # int64: the column of the true entity among its grid's candidates, -1 where it is none of them
    marks: Marks | None = None  # in place of `own_Q`: what each cell is


@frozen(eq=False)
class DecidedTiles:
    """Which tiles are multiplied in float64."""

    row_P: Tensor  # int32: the queries of tiles; not read where all are multiplied
    tile_N4: Tensor | None  # int32; None: every tile
    most: int
    number: Tensor  # int64, which is not read where all are multiplied


@frozen(eq=False)
class ExactCounts:
    """What was found, and the cells that are open and count as worse."""

    count_NQ: Tensor  # int32: better, tied and competing of each group of cells; all compete where no marks say else
    open: tuple[Tensor, Tensor]  # (query, column within the grid), int64: more than there are
    num_open: Tensor  # int64: how many there are, and a zero for `device_pairs.signs`


def are_listed(num_open: int) -> bool:
    """Tell whether all open cells are listed; if not, the caller asks for fewer candidates."""
    return num_open <= MAX_OPEN_CELLS


def limits_of(queries: ExactRows, candidates: ExactRows, target: Target, count_NQ: Tensor) -> Tensor:
    """Return what decides products in float64, and write the counts before any candidate: how many compete.

    Returns:
        Of each query, float64 (4, Q): the middle; how far from it scores do not decide; the score above which a
        candidate is better; and the one below which it is worse.
    """
    device, num_queries = target.score_Q.device, target.score_Q.numel()
    limit_4Q = torch.empty((4, num_queries), dtype=torch.float64, device=device)
    norm_B = candidates.largest_norm_B
    launch(
        _kernels().write_limits,
        -(-num_queries // LIMITED_ROWS),
        target.score_Q.contiguous(),
        target.error_Q.contiguous(),
        queries.described.norm_N,
        queries.described.square_N,
        norm_B,
        candidates.largest_square_B if queries.is_distance else norm_B,  # not read where there is no distance
        target.own_Q,
        count_NQ if target.marks is None else target.marks.number_4Q,  # not read where there are no marks
        limit_4Q,
        count_NQ,
        num_queries,
        queries.rows_BND.shape[1],
        candidates.rows_BND.shape[1],
        queries.rows_BND.shape[-1] + 8,
        count_NQ.shape[0] // 3,
        int(target.marks is not None),
        IS_DISTANCE=queries.is_distance,
        ROWS=LIMITED_ROWS,
    )
    return limit_4Q


def count(queries: ExactRows, candidates: ExactRows, target: Target, num_groups: int = 1) -> ExactCounts:
    """Count the candidates of each query's grid; the true entity itself does not compete.

    Args:
        queries: (B, K, D): the queries are those of all grids, one after the other.
        candidates: (B, C, D).
        target: of all queries.
        num_groups: of cells that are counted: all that compete, and those that marks tell apart. Without marks, nothing
            is counted of further groups.
    """
    num_grids, num_queries, _ = queries.rows_BND.shape
    num_columns, device = candidates.rows_BND.shape[1], queries.rows_BND.device
    shape = 3 * num_groups, num_grids * num_queries
    numbers = torch.zeros(5, dtype=torch.int64, device=device)
    num_open, of_marks = numbers[:2], numbers[2:]  # see `list_marked`
    open_P = torch.empty((2, min(shape[1] * num_columns, MAX_OPEN_CELLS)), dtype=torch.int64, device=device)
    if not open_P.numel():
        return ExactCounts(torch.zeros(shape, dtype=torch.int32, device=device), (open_P[0], open_P[1]), num_open)
    count_NQ = torch.empty(shape, dtype=torch.int32, device=device)
    limit_4Q = limits_of(queries, candidates, target, count_NQ)
    most = num_grids * -(-num_queries // DECIDED_ROWS) * -(-num_columns // DECIDED_COLUMNS)
    tiles = DecidedTiles(count_NQ, None, most, of_marks)
    is_large = num_queries * num_columns >= MIN_SCREENED_CELLS
    if num_grids == 1 and target.marks is None and is_large and _screens(device):
        mark_GQ = _screened(queries, candidates, limit_4Q, count_NQ[0], num_open[:1])
        marked = _tiles_of_marks(mark_GQ, num_columns, of_marks)
        if holds(_all_are_listed, of_marks[2:]):
            tiles = marked
        else:
            count_NQ[0].zero_()
    found = ExactCounts(count_NQ, (open_P[0], open_P[1]), num_open)
    _decide(queries, candidates, limit_4Q, target, tiles, found)
    return found


# Products in float16.


@frozen(eq=False)
class Screen:
    """Rows in float16, and what scores are compared with: see `screen_tiles`."""

    queries: HalfRows
    candidates: HalfRows
    square_C: Tensor | None  # of candidates, in whole tiles; None: there is no distance
    true_Q: Tensor
    error_2Q: Tensor  # for products of first parts, and of both

    def run(
        self,
        num_parts: int,
        sizes: tuple[int, int],
        found: tuple[Tensor, Tensor],
        probe: tuple[Tensor, int],
    ) -> None:
        """Screen the first so many queries and columns.

        Args:
            num_parts: 1, or 2: then three products are added up.
            sizes: how many queries and columns.
            found: the number of better candidates (Q,), to which those of clear segments are added, and the marks of
                the others, (segments of whole tiles, Q).
            probe: how many marks a probe has left, on the device, beyond how many of which one part is too few.
        """
        x, y, (num_queries, num_columns), width = self.queries, self.candidates, sizes, self.queries.width
        stays = num_parts == 1 and width <= MAX_RESIDENT_COLUMNS
        row_tiles, column_tiles = -(-num_queries // SCREEN_ROWS), -(-num_columns // SCREEN_COLUMNS)
        per_program = min(max(row_tiles * column_tiles // MIN_PROGRAMS, 1), MAX_TILES_PER_PROGRAM)
        options = screen_options(width, num_parts, stays=stays, is_distance=self.square_C is not None)
        launch(
            _kernels().screen_tiles,
            row_tiles * -(-column_tiles // per_program),
            x.rows_ND,
            y.rows_ND,
            self.true_Q if self.square_C is None else self.square_C,  # not read where there is none
            self.true_Q,
            self.error_2Q[num_parts - 1],
            *found,
            probe[0],
            num_queries,
            num_columns,
            per_program,
            width // options["TILE_DEPTH"],
            probe[1],
            **options,
        )


def _screened(queries: ExactRows, candidates: ExactRows, limit_4Q: Tensor, better_Q: Tensor, none: Tensor) -> Tensor:
    """Add the better candidates of clear segments; return the marks of the others, int8 (segments, Q).

    A probe says how many products are to be taken. The kernel is started for either number, and one returns at once.
    There are `none` before the probe.
    """
    num_queries, num_columns = better_Q.numel(), candidates.rows_BND.shape[1]
    screen = screen_of(queries, candidates, limit_4Q)
    few = min(PROBED_QUERIES, num_queries), min(PROBED_COLUMNS, num_columns)
    probed_GQ = empty_marks(few, better_Q.device)
    screen.run(1, few, (torch.empty_like(better_Q), probed_GQ), (none, 0))
    probed_GQ = probed_GQ[: -(-few[1] // SEGMENT)]
    probe = probed_GQ.sum(dtype=torch.int64), int(probed_GQ.numel() * MAX_MARKED_SHARE)
    mark_GQ = empty_marks((num_queries, num_columns), better_Q.device)
    for num_parts in (1, 2):
        screen.run(num_parts, (num_queries, num_columns), (better_Q, mark_GQ), probe)
    return mark_GQ[: -(-num_columns // SEGMENT)]


def empty_marks(sizes: tuple[int, int], device: torch.device) -> Tensor:
    """Return room for the marks of so many queries and columns, in whole tiles."""
    num_segments = -(-sizes[1] // SCREEN_COLUMNS) * (SCREEN_COLUMNS // SEGMENT)
    return torch.empty((num_segments, sizes[0]), dtype=torch.int8, device=device)


def screen_options(width: int, num_parts: int, *, stays: bool, is_distance: bool) -> dict[str, Any]:
    """Return what the screen is compiled for."""
    return {
        "PARTS": num_parts,
        "STAYS": stays,
        "IS_DISTANCE": is_distance,
        "TILE_ROWS": SCREEN_ROWS,
        "TILE_COLUMNS": SCREEN_COLUMNS,
        "TILE_DEPTH": width if stays else min(width, STEP),
        "SEGMENT": SEGMENT,
        "num_warps": SCREEN_WARPS,
        "num_stages": 2 if stays else 3,
    }


def screen_of(queries: ExactRows, candidates: ExactRows, limit_4Q: Tensor) -> Screen:
    """Return the rows of a screen, and the limits for it."""
    x, y, num_queries, device = queries.half, candidates.half, limit_4Q.shape[1], limit_4Q.device
    true_Q = torch.empty(num_queries, dtype=torch.float32, device=device)
    error_2Q = true_Q.new_empty((2, num_queries))
    square_C = true_Q.new_empty(len(y.rows_ND)) if candidates.is_distance else None
    num_stored = 0 if square_C is None else len(square_C)
    launch(
        _kernels().write_screen_limits,
        -(-max(num_queries, num_stored) // LIMITED_ROWS),
        limit_4Q,
        x.length_3N,
        y.largest_3,
        x.scale if square_C is None else candidates.largest_square_B,  # not read where there is no distance
        candidates.described.square_N,
        x.scale,
        y.scale,
        true_Q,
        error_2Q,
        true_Q if square_C is None else square_C,
        num_queries,
        candidates.rows_BND.shape[1],
        num_stored,
        x.width,
        IS_DISTANCE=candidates.is_distance,
        UNIT=UNIT_OF_SCREEN,
        ROWS=LIMITED_ROWS,
    )
    return Screen(x, y, square_C, true_Q, error_2Q)


# Products in float64.


def _decide(
    queries: ExactRows, candidates: ExactRows, limit_4Q: Tensor, target: Target, tiles: DecidedTiles, found: ExactCounts
) -> None:
    """Add what tiles decide to the counts, and list the cells that stay open."""
    marks, num_groups = target.marks, 0 if target.marks is None else target.marks.num_groups
    query_QD = F.pad(queries.rows_BND.flatten(0, 1), (0, -queries.rows_BND.shape[-1] % ALIGNMENT)).contiguous()
    launch(
        _kernels().decide_tiles,
        tiles.most,
        query_QD,
        candidates.transposed_DC,
        candidates.described.square_N,
        limit_4Q[2],
        limit_4Q[3],
        target.hash_Q.contiguous(),
        target.own_Q,
        candidates.described.hash_N,
        target.own_Q if marks is None else marks.mark_QC,  # either is not read where there are, or are no marks
        found.count_NQ,
        *found.open,
        found.num_open,
        tiles.row_P,
        tiles.row_P if tiles.tile_N4 is None else tiles.tile_N4,
        tiles.number,
        found.open[0].numel(),
        queries.rows_BND.shape[1],
        candidates.rows_BND.shape[1],
        candidates.transposed_DC.shape[1] // len(candidates.rows_BND),
        query_QD.shape[1] // ALIGNMENT,
        candidates.transposed_DC.shape[1] // ALIGNMENT,
        len(query_QD),
        **tile_options(is_distance=candidates.is_distance, num_groups=num_groups, every=tiles.tile_N4 is None),
    )


def tile_options(*, is_distance: bool, num_groups: int, every: bool) -> dict[str, int | bool]:
    """Return what the kernel in float64 is compiled for; no groups: without marks."""
    return {
        "IS_DISTANCE": is_distance,
        "NUM_GROUPS": num_groups,
        "EVERY": every,
        "TILE_ROWS": DECIDED_ROWS,
        "TILE_COLUMNS": DECIDED_COLUMNS,
        "TILE_DEPTH": ALIGNMENT,
        "num_warps": DECIDED_WARPS,
        "num_stages": 3,
    }


def _tiles_of_marks(mark_GQ: Tensor, num_columns: int, numbers: Tensor) -> DecidedTiles:
    """List tiles of at most 64 of a segment's marked queries, as far as there is room; `numbers` begin with zeros."""
    (num_segments, num_queries), device = mark_GQ.shape, mark_GQ.device
    most = min(2 * num_queries + int(mark_GQ.numel() * MAX_LISTED_SHARE), mark_GQ.numel())
    row_P = torch.empty(most, dtype=torch.int32, device=device)
    tile_N4 = torch.empty((most // DECIDED_ROWS + num_segments, 4), dtype=torch.int32, device=device)
    launch(
        _kernels().list_marked,
        num_segments,
        mark_GQ,
        row_P,
        tile_N4,
        numbers,
        num_queries,
        num_columns,
        most,
        SEGMENT=SEGMENT,
        TILE_ROWS=DECIDED_ROWS,
        QUERIES=LISTED_QUERIES,
    )
    return DecidedTiles(row_P, tile_N4, len(tile_N4), numbers)


def _all_are_listed(num_others: int) -> bool:
    return num_others == 0


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
        halves = [
            HalfRows(F.pad(of.half(), (0, HARD_COLUMNS)), one, described(of).norm_N[None])
            for of in (query_QD, candidate_ND)
        ]
        exact_QQ = query_QD.double() @ candidate_ND[:HARD_ROWS].double().mT
        half_Q = halves[0].length_3N[0] * halves[1].largest_3[0] * ((HARD_COLUMNS + ALIGNMENT) * UNIT_OF_SCREEN / 2)
        for true_Q in (exact_QQ.diagonal() + half_Q, exact_QQ.diagonal() - half_Q):
            better_Q = torch.zeros(HARD_ROWS, dtype=torch.int32, device=device)
            none_is_near_1Q = torch.full_like(true_Q[None], -1.0, dtype=torch.float32)
            screen = Screen(halves[0], halves[1], None, true_Q.float(), none_is_near_1Q)
            sizes = HARD_ROWS, HARD_ROWS
            screen.run(1, sizes, (better_Q, empty_marks(sizes, device)), (torch.zeros_like(better_Q[:1]), 0))
            gap_QQ = exact_QQ - true_Q.float().double().unsqueeze(1)
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
