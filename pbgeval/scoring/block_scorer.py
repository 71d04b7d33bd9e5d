"""Any model that scores queries by number -> what the passes expect: rows of vectors and a comparator of rows.

A row of a query is (known entity, relation, hidden side), one of a candidate (entity): numbers in float64. So lists,
blocks, exclusions, ties and statistics are those of every other model. If the model takes times, two more columns hold
the halves of the query's time: float64 has no room for all of it.

The model's kernels are not ours: what they round may depend on the block (law 2). Blocks have rows and columns that are
multiples of 32, true scores come from such blocks too, and a self-check compares blocks of other shapes, copies of
candidates, and two calls of one block. Where shapes differ, all blocks are cut in tiles of one shape.

A model that scores all entities at once (`RowScorer`) is asked once for each query of a block: its true score and those
of its competitors are read from one row, so they need no padding, and the self-check only asks some queries twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.errors import ScorerError, UnrankableError
from pbgeval.notation import Side
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.full_precision import CallerSettings
from pbgeval.scoring.operators import Parameters

WIDTH = 3  # columns of rows
WIDTH_WITH_TIME = 5
HALF_OF_TIME = 1 << 32
GRAIN = 32  # torch.cdist takes another kernel for up to 25 rows
TILE_ROWS, TILE_COLUMNS = 128, 512  # of the one block shape, where the self-check failed
LARGE_SHAPE = (256, 2048)
CONSISTENT = "consistent"
TILED = "tiles of one shape are used, which is slow"
INCONSISTENT = "even in tiles of one shape, so identical candidates may not tie (run.reproducible is false)"
NUM_CHECKED = 45  # candidates of the self-check, each twice
CHECKED_SHAPES = ((1, 1), (3, 17), (33, 32), (40, 90))
QUERIES_PER_CHECKED_ROW = 64  # of a model that scores all entities at once, the self-check takes under 2% of the time
MIN_CHECKED_ROWS, MAX_CHECKED_ROWS = 2, 32  # of each side, each asked twice

Columns: TypeAlias = tuple[Tensor, ...]  # of queries: known entity, relation and, where it is taken, time


class Scorer(Protocol):
    """A model that scores queries by number; higher is better.

    One whose attribute `scores_relations` is true also scores relations: for `Side.REL`, (known, ?, relation), the
    arguments are left entities, right entities and relations.

    One whose attribute `takes_time` is true gets one more argument, `time_Q`: the time of each query's edge, int64.
    Queries that differ in their times alone are then different queries.

    Examples:
        >>> import torch
        >>> import pbgeval
        >>> class NextEntity:
        ...     num_entities, num_relations = 5, 1
        ...     def scores(self, side, known_Q, relation_Q, candidate_C):
        ...         step = 1 if side is pbgeval.Side.RHS else -1
        ...         return -(known_Q[:, None] + step - candidate_C).abs().float()
        ...
        >>> pbgeval.evaluate_triples(NextEntity(), [(0, 0, 1)])["mrr"]
        1.0
    """

    @property
    def num_entities(self) -> int: ...
    @property
    def num_relations(self) -> int: ...

    def scores(self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, candidate_C: Tensor) -> Tensor:
        """Return the score (Q, C) of each query with each candidate instead of its hidden entity.

        Args:
            hidden: `Side.LHS` for (?, relation, known), `Side.RHS` for (known, relation, ?).
            known_Q: entities, int64, on `device_of` this scorer; so are the others.
            relation_Q: relations.
            candidate_C: entities; the same for all queries, in any order, copies among them.
        """


@runtime_checkable
class RowScorer(Scorer, Protocol):
    """A model that scores all entities for a query at once, and keeps the scores of the last queries."""

    @property
    def queries_per_block(self) -> int:
        """The largest number of queries whose scores are kept."""

    def paired_scores(self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, candidate_Q: Tensor) -> Tensor:
        """Return the score (Q,) of each query with its own candidate, as `scores` returns it."""

    def forget(self) -> None:
        """Drop the scores that are kept."""


def device_of(scorer: Scorer) -> torch.device:
    """Return where a scorer wants its numbers: its attribute `device`, else the CPU."""
    return torch.device(getattr(scorer, "device", "cpu"))


def takes_time(scorer: object) -> bool:
    """Return whether a scorer gets the times of queries: its attribute `takes_time`, else False."""
    return bool(getattr(scorer, "takes_time", False))


def module_of(scorer: object) -> torch.nn.Module | None:
    """Return the torch module behind a scorer: itself, or its attribute `module`; None: there is none."""
    found = scorer if isinstance(scorer, torch.nn.Module) else getattr(scorer, "module", None)
    return found if isinstance(found, torch.nn.Module) else None


def check_mode(module: torch.nn.Module | None, name: str, when: str = "") -> None:
    """Refuse a module whose scores depend on dropout or on the batch.

    Raises:
        ScorerError: it is in training mode.
    """
    if module is not None and module.training:
        raise ScorerError(f"{name}: the module is in training mode; call model.eval(){when}")


@contextmanager
def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode, and at the end each of its modules in the mode that it was in."""
    was_training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in was_training.items():
            part.training = mode


def name_of(scorer: Scorer) -> str:
    """Return the name of a scorer for messages: the user's function, or its method."""
    return str(getattr(scorer, "__name__", f"{type(scorer).__name__}.scores"))


def title_of_scorer(scorer: Scorer) -> str:
    """Return what a report calls the model: the user's function, or the class of its module or scorer."""
    return str(getattr(scorer, "__name__", type(scorer).__name__))


@define(eq=False)
class ScorerComparator:
    """A model that replaces a comparator: it scores rows that hold numbers."""

    scorer: Scorer
    one_block_shape: bool = False
    caller_settings: CallerSettings = field(factory=CallerSettings)  # of torch, under which the model is called

    name: ClassVar = "scorer"
    bias: ClassVar = False
    is_inner_product: ClassVar = False
    multiplies: ClassVar = False
    term: ClassVar = None

    @cached_property
    def by_rows(self) -> RowScorer | None:
        """The model, if it scores all entities at once."""
        return self.scorer if isinstance(self.scorer, RowScorer) else None

    def width(self, dimension: int) -> int:
        """Return the number of columns of queries' rows."""
        return WIDTH_WITH_TIME if takes_time(self.scorer) else WIDTH

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        """Return the scores (B, Q, C) of rows, float64.

        Raises:
            ScorerError: the model returns what are no scores of the block.
            UnrankableError: a score is not a number.
        """
        num_blocks, num_queries = query_BQD.shape[:2]
        scores_BQC = query_BQD.new_zeros((num_blocks, num_queries, candidate_BCD.shape[1]))
        together = num_blocks if self.by_rows is None else max(1, self.by_rows.queries_per_block // max(num_queries, 1))
        for index in range(num_blocks):
            if self.by_rows is not None and num_blocks > 1 and together > 1 and index % together == 0:
                # The queries of some blocks are scored together, and their scores kept while the blocks go by.
                self._block(query_BQD[index : index + together].flatten(0, 1), candidate_BCD[index, :1])
            scores_BQC[index] = self._block(query_BQD[index], candidate_BCD[index])
        return scores_BQC

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the score (Q,) of each query with its own candidate: diagonals of blocks, or cells of rows."""
        size = TILE_ROWS if self.one_block_shape else GRAIN
        size = size if self.by_rows is None else self.by_rows.queries_per_block
        pairs = zip(torch.split(query_QD, size), torch.split(candidate_QD, size), strict=True)
        return torch.cat([self._block(*of).diagonal() if self.by_rows is None else self._pairs(*of) for of in pairs])

    def real_scores(self, scores: Tensor) -> Tensor:
        """Return the scores as they are."""
        return scores

    def _pairs(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Read the scores of pairs from the rows of their queries."""
        assert self.by_rows is not None, "the caller has asked"
        if not len(query_QD):
            return query_QD.new_zeros(0)
        hidden, query_Q = _unpacked(query_QD.long())
        candidate_Q = candidate_QD[:, 0].long()
        found_Q = self._scores_by(self.by_rows.paired_scores, hidden, query_Q, candidate_Q, (len(candidate_Q),))
        found_Q = found_Q.to(query_QD.device, query_QD.dtype)
        _refuse_nan(found_Q, hidden, query_Q, candidate_Q)
        return found_Q

    def _block(self, query_QD: Tensor, candidate_CD: Tensor) -> Tensor:
        if not (len(query_QD) and len(candidate_CD)):
            return query_QD.new_zeros((len(query_QD), len(candidate_CD)))
        hidden, query_Q = _unpacked(query_QD.long())
        candidate_C = candidate_CD[:, 0].long()
        found_QC = self._padded(hidden, query_Q, candidate_C).to(query_QD.device, query_QD.dtype)
        _refuse_nan(found_QC, hidden, query_Q, candidate_C)
        return found_QC

    def _padded(self, hidden: Side, query_Q: Columns, candidate_C: Tensor) -> Tensor:
        """Ask the model for a block whose rows and columns are multiples of a size, or for tiles of one shape."""
        if self.by_rows is not None:
            return self._ask(hidden, query_Q, candidate_C)
        num_queries, num_candidates = query_Q[0].numel(), candidate_C.numel()
        rows, columns = (TILE_ROWS, TILE_COLUMNS) if self.one_block_shape else (GRAIN, GRAIN)
        query_Q = tuple(_padded(of_Q, rows) for of_Q in query_Q)
        candidate_C = _padded(candidate_C, columns)
        if not self.one_block_shape:
            return self._ask(hidden, query_Q, candidate_C)[:num_queries, :num_candidates]
        tiles = [
            torch.cat([self._ask(hidden, tile_Q, part) for part in torch.split(candidate_C, columns)], dim=1)
            for tile_Q in zip(*(torch.split(of_Q, rows) for of_Q in query_Q), strict=True)
        ]
        return torch.cat(tiles)[:num_queries, :num_candidates]

    def _ask(self, hidden: Side, query_Q: Columns, candidate_C: Tensor) -> Tensor:
        shape = query_Q[0].numel(), candidate_C.numel()
        return self._scores_by(self.scorer.scores, hidden, query_Q, candidate_C, shape)

    def _scores_by(
        self, score: Callable[..., object], hidden: Side, query_Q: Columns, candidate_N: Tensor, shape: tuple[int, ...]
    ) -> Tensor:
        """Return what a function of the model says of a block, or of pairs."""
        device = device_of(self.scorer)
        known_Q, relation_Q, *time_Q = (of_Q.to(device) for of_Q in query_Q)
        with torch.no_grad(), self.caller_settings.in_force():
            found = score(hidden, known_Q, relation_Q, candidate_N.to(device), *time_Q)
        of_what = "of pairs" if len(shape) == 1 else "(queries, candidates)"
        return checked_scores(found, f"{name_of(self.scorer)}: {hidden.label} scores {of_what}", shape)


def _unpacked(query_KD: Tensor) -> tuple[Side, Columns]:
    """Return the hidden side, and the known entity, the relation and, where it is taken, the time of each query."""
    known_K, relation_K, hidden_K, *halves = query_KD.unbind(1)
    times = (halves[0] * HALF_OF_TIME + halves[1],) if halves else ()
    return Side(int(hidden_K[0])), (known_K, relation_K, *times)


def advice_on_shape(found: tuple[int, ...], expected: tuple[int, ...]) -> str | None:
    """Return what may be wrong with a function whose scores have another shape; None: it is not known."""
    if found == ():
        return "one score per edge is expected, but this is one for all; sum over the last dimension only, .sum(-1)?"
    if len(found) > len(expected) and found[: len(expected)] == expected:
        return "one score per edge is expected; sum over the last dimension, .sum(-1)?"
    return None


def checked_scores(found: Any, where: str, shape: tuple[int, ...]) -> Tensor:  # noqa: ANN401 - whatever a model returns
    """Return the scores of a user's model as a tensor.

    Raises:
        ScorerError: they are no real numbers, or have another shape.
    """
    if isinstance(found, np.ndarray):
        try:  # torch takes no other order of bytes, nor an axis that runs backwards
            found = torch.from_numpy(np.require(found, found.dtype.newbyteorder("="), ["C", "W"]))
        except TypeError:
            raise ScorerError(f"{where}: expected real numbers, got {found.dtype}") from None
    if not isinstance(found, Tensor):
        raise ScorerError(f"{where}: expected a tensor or array of shape {shape}, got {type(found).__name__}")
    advice = advice_on_shape(tuple(found.shape), shape)
    hint = "" if advice is None else f"; {advice}"
    if tuple(found.shape) != shape:
        raise ScorerError(f"{where}: expected shape {shape}, got {tuple(found.shape)}{hint}")
    if found.dtype is torch.bool or found.is_complex():
        raise ScorerError(f"{where}: expected real numbers, got {found.dtype}")
    return found.detach()


RowComparator = Comparator | ScorerComparator  # what scores prepared rows
PairedScores = Callable[[Tensor, Tensor], Tensor]  # of prepared queries, each with its own candidate


def _refuse_nan(found: Tensor, hidden: Side, query_Q: Columns, candidate_N: Tensor) -> None:
    """Look for a score of a block, or of pairs, that is not a number."""
    if not bool(torch.isnan(found).any()):
        return
    place = torch.isnan(found).nonzero()[0].tolist()
    known, relation, *time = (int(of_Q[place[0]]) for of_Q in query_Q)
    entity = int(candidate_N[place[-1]])
    edges = (entity, relation, known), (known, relation, entity), (known, entity, relation)  # by the hidden side
    lhs, rel, rhs = edges[hidden.value]
    when = f", time {time[0]}" if time else ""
    raise UnrankableError(
        f"the model: expected a number as the score of lhs {lhs}, rel {rel}, rhs {rhs}{when} "
        f"({hidden.label} candidate {entity}), got NaN; this model cannot be ranked"
    )


def _padded(ids_N: Tensor, size: int) -> Tensor:
    missing = -ids_N.numel() % size
    return torch.cat([ids_N, ids_N[:1].expand(missing)]) if missing else ids_N


@frozen(eq=False)
class ScorerRelation:
    """All relations of a model that scores by number: what `RelationScorer` is to models of vectors."""

    comparator: ScorerComparator
    lhs_type: str
    rhs_type: str
    name: str = "all"
    weight: float = 1.0
    parameters: Mapping[Side, Parameters] = field(factory=dict, init=False)

    dynamic: ClassVar = True
    operator: ClassVar = "none"
    exact_comparator: ClassVar = None

    def entity_type(self, side: Side) -> str:
        return side.pick(self.lhs_type, self.rhs_type)

    @property
    def takes_time(self) -> bool:
        """Whether scores depend on the times of queries."""
        return takes_time(self.comparator.scorer)

    def queries(self, hidden: Side, known_ED: Tensor, rel_E: Tensor | None, time_E: Tensor | None = None) -> Tensor:
        """Return the rows of queries whose known entities are given as numbers (E, 1)."""
        assert rel_E is not None, "relations are dynamic"
        relation_E1 = rel_E.to(known_ED).unsqueeze(-1)
        columns = [known_ED, relation_E1, torch.full_like(relation_E1, hidden.value)]
        if self.takes_time:
            assert time_E is not None, "evaluated edges have times, or they were refused"
            columns += [of_E.to(known_ED).unsqueeze(-1) for of_E in (time_E // HALF_OF_TIME, time_E % HALF_OF_TIME)]
        return torch.cat(columns, dim=-1)

    def transforms_candidates(self, hidden: Side) -> bool:
        """Return False: a model gets entities as they are."""
        return False

    def candidates(self, hidden: Side, x_ED: Tensor) -> Tensor:
        """Return the rows of candidates: their numbers (E, 1)."""
        return x_ED

    def acts_on_candidates(self, hidden: Side) -> bool:
        """Return False: all relations meet the same candidates."""
        return False


NO_TIMES = torch.zeros(1, dtype=torch.int64)


def scorer_state(
    relation: ScorerRelation, sides: tuple[Side, ...], num_queries: int = 0, time_E: Tensor = NO_TIMES
) -> str:
    """Compare blocks of some shapes, copies within one, and pairs; where they differ, go on in tiles of one shape.

    Args:
        relation: the model.
        sides: that are hidden.
        num_queries: of the evaluation, on all sides; the check takes a small share of their time.
        time_E: some times of evaluated edges, at least one, for a model that takes them: it may know no others.

    Returns:
        Whether a score depends on its query and candidate alone; for a fingerprint.

    Raises:
        ScorerError: two calls with one block give other scores; or it is no block of scores.
    """
    if relation.comparator.by_rows is not None:
        _ask_twice(relation, relation.comparator.by_rows, sides, num_queries, time_E)
        return CONSISTENT
    if _is_consistent(relation, sides, time_E):
        return CONSISTENT
    relation.comparator.one_block_shape = True
    return TILED if _is_consistent(relation, sides, time_E) else INCONSISTENT


def _ask_twice(
    relation: ScorerRelation, scorer: RowScorer, sides: tuple[Side, ...], num_queries: int, time_E: Tensor
) -> None:
    """Check that some queries of each side have the same scores when they are asked again."""
    num_rows = num_queries // (QUERIES_PER_CHECKED_ROW * 2 * max(len(sides), 1))
    num_rows = min(max(num_rows, MIN_CHECKED_ROWS), MAX_CHECKED_ROWS, scorer.num_entities)
    known_Q1 = torch.linspace(0, scorer.num_entities - 1, num_rows, dtype=torch.float64).round().unsqueeze(1)
    for hidden in sides:
        others, num_answers = _extents(scorer, hidden)
        place_Q = torch.arange(num_rows)
        query_QD = relation.queries(hidden, known_Q1, place_Q % others, time_E[place_Q % time_E.numel()])
        every_ND = relation.candidates(hidden, torch.arange(num_answers, dtype=torch.float64).unsqueeze(1))
        found = []
        for _ in range(2):
            scorer.forget()
            found.append(relation.comparator.scores(query_QD[None], every_ND[None])[0])
        scorer.forget()
        _check_same(relation.comparator, *found)


def _extents(scorer: Scorer, hidden: Side) -> tuple[int, int]:
    """Return how many second parts of a query there are, and how many answers."""
    sizes = scorer.num_relations, scorer.num_entities
    return sizes if hidden is not Side.REL else (sizes[1], sizes[0])


def _check_same(comparator: ScorerComparator, first_QC: Tensor, second_QC: Tensor) -> None:
    if not torch.equal(first_QC, second_QC):
        raise ScorerError(
            f"{name_of(comparator.scorer)}: expected the same score of a query and a candidate each "
            "time, got another when asked again; is the model in training mode (dropout)? call model.eval()"
        )


def _is_consistent(relation: ScorerRelation, sides: tuple[Side, ...], time_E: Tensor) -> bool:
    scorer = relation.comparator.scorer
    is_empty = not scorer.num_entities or not scorer.num_relations
    return is_empty or all(torch.equal(*pair) for hidden in sides for pair in _compared(relation, hidden, time_E))


def _compared(relation: ScorerRelation, hidden: Side, time_E: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scores that should be the same: of copies, of blocks of other shapes, and of pairs."""
    comparator = relation.comparator
    known_Q1 = _some(comparator.scorer.num_entities)[: CHECKED_SHAPES[-1][0]]
    others, num_answers = _extents(comparator.scorer, hidden)
    place_Q = torch.arange(known_Q1.shape[0])
    query_QD = relation.queries(hidden, known_Q1, place_Q % others, time_E[place_Q % time_E.numel()])
    candidate_CD = relation.candidates(hidden, _some(num_answers).repeat(2, 1))
    whole_QC, again_QC = (comparator.scores(query_QD[None], candidate_CD[None])[0] for _ in range(2))
    _check_same(comparator, whole_QC, again_QC)
    yield whole_QC[:, :NUM_CHECKED], whole_QC[:, NUM_CHECKED:]
    # Copies that lie far apart in a block of about the size that passes ask for.
    times = [-(-size // rows.shape[0]) for size, rows in zip(LARGE_SHAPE, (query_QD, candidate_CD), strict=True)]
    large_QC = comparator.scores(query_QD.repeat(times[0], 1)[None], candidate_CD.repeat(times[1], 1)[None])[0]
    yield large_QC, whole_QC.repeat(*times)
    for rows, columns in CHECKED_SHAPES:
        yield comparator.scores(query_QD[None, :rows], candidate_CD[None, -columns:])[0], whole_QC[:rows, -columns:]
    size = query_QD.shape[0]
    yield comparator.paired_scores(query_QD, candidate_CD[:size]), whole_QC.diagonal()[:size]


def _some(size: int) -> Tensor:
    """Return ids below a size, of which some may repeat, float64 (NUM_CHECKED, 1)."""
    return torch.linspace(0, size - 1, NUM_CHECKED, dtype=torch.float64).round().unsqueeze(1)
