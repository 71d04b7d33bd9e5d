"""Make scorers of users' functions and torch modules.

edge_scorer(score, ...)          score(lhs, rel, rhs): numbers of shapes that broadcast -> scores of that shape
batch_scorer(score_batch, ...)   score_batch(edges (b, 3)) -> (head scores (b, N), tail scores (b, N))
side_scorer(score_side, ...)     score_side(hidden side, edges (b, 3)) -> scores (b, N) of the hidden side

With takes_time=True, `score` has a fourth argument, and `edges` a fourth column: the time.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.cluster.resources import torch_device
from pbgeval.errors import EvalError, ScorerError, lack_of_memory
from pbgeval.notation import Side, T
from pbgeval.scoring.block_scorer import advice_on_shape, check_mode, checked_scores
from pbgeval.storage.text import one_line

CELLS_PER_CALL = 1 << 17  # scores asked for at a time: a function of vectors makes an array of so many times D numbers
ROWS_PER_BATCH = 128
CACHED_CELLS = 1 << 27  # scores against all entities that are kept for the next block of candidates


def in_parts(
    score: Callable[..., Tensor],
    known_Q: Tensor,
    relation_Q: Tensor,
    candidate_C: Tensor,
    cells: int,
    *time_Q: Tensor,
) -> Tensor:
    """Score all pairs (Q, C), a limited number of cells per call; `time_Q` is given where times are taken."""
    if candidate_C.numel() > cells:
        parts_c = torch.split(candidate_C, cells)
        return torch.cat([in_parts(score, known_Q, relation_Q, part_c, cells, *time_Q) for part_c in parts_c], dim=1)
    rows = cells // candidate_C.numel()
    parts = zip(*(torch.split(of_Q, rows) for of_Q in (known_Q, relation_Q, *time_Q)), strict=True)
    return torch.cat([score(known, relation, candidate_C, *time) for known, relation, *time in parts])


@define(eq=False)
class ByFunction:
    """What gets its scores from a user's function or module."""

    source: Any  # callable; of PyKEEN, a model
    # Changes with the model, if its maker sets it. None: no two runs are of the same model, as its weights may change.
    digest: str | None = field(default=None, init=False)

    @property
    def __name__(self) -> str:
        """What messages call it: as the function."""
        return _name(self.source)

    @property
    def module(self) -> torch.nn.Module | None:
        """The torch module that scores; None: a plain function does."""
        return _module_of(self.source)


@frozen(eq=False)
class EdgeFunctionScorer(ByFunction):
    """A function of (lhs, rel, rhs) or (lhs, rel, rhs, time)."""

    scores_relations: ClassVar = True
    num_entities: int
    num_relations: int
    broadcasts: bool
    cells_per_call: int
    device: torch.device
    takes_time: bool

    def scores(self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, candidate_C: Tensor, *time_Q: Tensor) -> Tensor:
        """Return the score (Q, C) of each query with each candidate.

        Raises:
            ScorerError: the function fails, or returns another shape or no real numbers.
        """
        return in_parts(partial(self._part, hidden), known_Q, relation_Q, candidate_C, self.cells_per_call, *time_Q)

    def _part(self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, candidate_C: Tensor, *time_Q: Tensor) -> Tensor:
        columns = [*(of_Q.unsqueeze(1) for of_Q in (known_Q, relation_Q, *time_Q)), candidate_C.unsqueeze(0)]
        shape = (known_Q.numel(), candidate_C.numel())
        if not self.broadcasts:
            columns = [ids.expand(shape).reshape(-1) for ids in columns]
        known, relation, *time, candidate = columns
        # By the hidden side; where it is the relation, `relation` are the right entities.
        edges = (candidate, relation, known), (known, relation, candidate), (known, candidate, relation)
        lhs, relation, rhs = edges[hidden.value]
        option = f"{shape[0] * shape[1]:,} at once (lower cells_per_call of edge_scorer, now {self.cells_per_call})"
        found = _called(self.source, f"{hidden.label} scores", lhs, relation, rhs, *time, takes_less=option)
        expected = shape if self.broadcasts else (shape[0] * shape[1],)
        if _shape(found) not in (expected, (*expected, 1)):
            shapes = f"{tuple(lhs.shape)}, {tuple(relation.shape)}, {tuple(rhs.shape)}"
            advice: str | None = "return a torch tensor"
            if isinstance(found, Tensor):
                of_vectors = "if it takes vectors only, set broadcasts=False" if self.broadcasts else None
                advice = advice_on_shape(tuple(found.shape), expected) or of_vectors
            raise ScorerError(
                f"{_name(self.source)}: expected {expected} scores of ids {shapes}, got {_shape(found)}"
                f"{'' if advice is None else f'; {advice}'}"
            )
        return checked_scores(found.reshape(shape), _name(self.source), shape)


@define(eq=False)
class BatchScorer(ByFunction):
    """A function of a side and a batch of edges that scores all entities at that side."""

    num_entities: int
    num_relations: int
    batch_size: int
    device: torch.device
    scores_relations: bool
    takes_time: bool
    # The last hidden side, times (t,), codes of distinct queries (K,) and their scores (K, N).
    _last: tuple[Side, Tensor, Tensor, Tensor] | None = field(default=None, init=False)

    @property
    def queries_per_block(self) -> int:
        """The queries whose scores fit the cache, so that each query is scored once."""
        return max(1, min(1024, CACHED_CELLS // max(self.num_entities, 1)))

    def scores(self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, candidate_C: Tensor, *time_Q: Tensor) -> Tensor:
        """Return the score (Q, C) of each query with each candidate.

        Raises:
            ScorerError: the function fails, or returns other shapes or no real numbers.
        """
        row_Q, scores_KN = self._all(hidden, known_Q, relation_Q, *time_Q)
        return scores_KN.index_select(1, candidate_C).index_select(0, row_Q)

    def paired_scores(
        self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, candidate_Q: Tensor, *time_Q: Tensor
    ) -> Tensor:
        """Return the score (Q,) of each query with its own candidate, as `scores` returns it.

        Raises:
            ScorerError: as `scores`.
        """
        row_Q, scores_KN = self._all(hidden, known_Q, relation_Q, *time_Q)
        return scores_KN[row_Q, candidate_Q]

    def forget(self) -> None:
        """Drop cached scores because the model has changed."""
        self._last = None

    def _all(self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, *time_Q: Tensor) -> tuple[Tensor, Tensor]:
        """Return each query's row and the scores (K, answers) of distinct queries, cached.

        Queries that are not all among the last ones are scored together, whatever is known of some of them: the
        batches, and with them the last bits of scores, depend on these queries alone.
        """
        pair_Q = relation_Q * self.num_entities + known_Q
        when_Q = time_Q[0] if time_Q else torch.zeros_like(pair_Q)
        if self._last is not None and self._last[0] is hidden:
            _, times_t, codes_K, scores_KN = self._last
            codes_Q = _query_codes(pair_Q, when_Q, times_t)
            row_Q = torch.searchsorted(codes_K, codes_Q).clamp_(max=codes_K.numel() - 1)
            if torch.equal(codes_K[row_Q], codes_Q):
                return row_Q, scores_KN
        self._last = None  # its memory goes before the next ones come
        times_t = torch.unique(when_Q)
        codes_K, row_Q = torch.unique(_query_codes(pair_Q, when_Q, times_t), return_inverse=True)
        pair_K, time_K = codes_K // times_t.numel(), times_t[codes_K % times_t.numel()]
        known_K, relation_K = pair_K % self.num_entities, pair_K // self.num_entities
        unknown_K = torch.zeros_like(known_K)  # what is asked for; a score must not depend on it
        # By the hidden side; where it is the relation, `relation` are the right entities.
        edges = (unknown_K, relation_K, known_K), (known_K, relation_K, unknown_K), (known_K, unknown_K, relation_K)
        columns = [*edges[hidden.value], *([time_K] if self.takes_time else [])]
        first, *others = torch.split(torch.stack(columns, dim=1), self.batch_size)
        scores_KN = self._of_side(hidden, first)
        if others:  # each is copied to its place at once, so that there are never two of all
            of_first, scores_KN = scores_KN, scores_KN.new_empty((codes_K.numel(), scores_KN.shape[1]))
            scores_KN[: self.batch_size] = of_first
            for at, batch in zip(range(self.batch_size, codes_K.numel(), self.batch_size), others, strict=True):
                scores_KN[at : at + batch.shape[0]] = self._of_side(hidden, batch)
        self._last = (hidden, times_t, codes_K, scores_KN)
        return row_Q, scores_KN

    def _of_side(self, hidden: Side, batch: Tensor) -> Tensor:
        expected = (batch.shape[0], self.num_relations if hidden is Side.REL else self.num_entities)
        option = f"{expected} at once (lower the scorer's batch_size, now {self.batch_size})"
        found = _called(self.source, f"{hidden.label} scores", hidden, batch, takes_less=option)
        return checked_scores(found, f"{_name(self.source)}: {hidden.label} scores (batch, candidates)", expected)


def _query_codes(pair_Q: Tensor, time_Q: Tensor, times_t: Tensor) -> Tensor:
    """Return a number for each query, int64 (Q,), in the order of pairs, then times; -1 for other times than these."""
    place_Q = torch.searchsorted(times_t, time_Q).clamp_(max=times_t.numel() - 1)
    return torch.where(times_t[place_Q] == time_Q, pair_Q * times_t.numel() + place_Q, -1)


@frozen(eq=False)
class _BothSides(ByFunction):
    """A function that scores both sides at once, asked for one."""

    num_entities: int

    def __call__(self, hidden: Side, batch: Tensor) -> Tensor:
        expected = (batch.shape[0], self.num_entities)
        found = _called(self.source, "scores of both sides", batch)
        where = f"{_name(self.source)}: expected a tuple (head scores, tail scores), each of shape {expected}"
        shapes = [*map(_shape, found)] if isinstance(found, tuple) else []
        advice = next(
            filter(None, (advice_on_shape(shape, expected) for shape in shapes if isinstance(shape, tuple))), None
        )
        hint = "" if advice is None else f"; {advice}"
        if len(shapes) != 2:
            got = f"a tuple of {len(shapes)}" if isinstance(found, tuple) else type(found).__name__
            raise ScorerError(f"{where}, got {got}")
        if shapes != [expected, expected]:
            raise ScorerError(f"{where}, got {' and '.join(map(str, shapes))} for a batch of {expected[0]}{hint}")
        return cast("Tensor", hidden.pick(*found))


def edge_scorer(
    score: Callable[..., Tensor],
    *,
    num_entities: int,
    num_relations: int,
    broadcasts: bool = True,
    cells_per_call: int = CELLS_PER_CALL,
    device: torch.device | str | None = None,
    takes_time: bool = False,
) -> EdgeFunctionScorer:
    """Let a function or module score: score(lhs, rel, rhs), higher is better.

    Args:
        score: called with int64 ids (Q, 1), (Q, 1), (1, C), of which any one is (1, C); returns (Q, C).
        num_entities: ids are 0 to num_entities - 1.
        num_relations: ids are 0 to num_relations - 1.
        broadcasts: False for a function that takes three vectors of one length and returns as many scores.
        cells_per_call: scores asked for at a time; less takes less memory.
        device: where ids go; None: to a module's parameters, else the CPU.
        takes_time: whether the function is called with a fourth argument, the time of each query's edge, int64 of the
            shape of its known ids. Edges then need times, and queries of different times are different queries.

    Raises:
        EvalError: a module in training mode, or without a `forward`; no cells per call; no such device.

    Examples:
        >>> import torch
        >>> import pbgeval
        >>> entities = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> def score(lhs, rel, rhs):
        ...     return (entities[lhs] * entities[rhs]).sum(-1)
        ...
        >>> model = pbgeval.edge_scorer(score, num_entities=3, num_relations=1)
        >>> pbgeval.evaluate_triples(model, [(0, 0, 1)])["tail.mean_rank"]
        1.5
    """
    on = _device_of(score, device)
    if cells_per_call < 1:
        raise ScorerError(f"cells_per_call: expected a number from 1, got {cells_per_call}")
    return EdgeFunctionScorer(score, num_entities, num_relations, broadcasts, cells_per_call, on, takes_time)


def batch_scorer(
    score_batch: Callable[[Tensor], tuple[Tensor, Tensor]],
    *,
    num_entities: int,
    num_relations: int,
    batch_size: int = ROWS_PER_BATCH,
    device: torch.device | str | None = None,
    takes_time: bool = False,
) -> BatchScorer:
    """Let a function or module score all entities at once: score_batch(edges) -> (head scores, tail scores).

    Args:
        score_batch: called with int64 (b, 3) of lhs, rel, rhs; returns the scores (b, N) of every entity as lhs, and as
            rhs. The end that is asked for is 0, not the true entity.
        num_entities: N.
        num_relations: as many.
        batch_size: b, at most.
        device: as in `edge_scorer`.
        takes_time: whether the edges (b, 4) have a fourth column, the time; see `edge_scorer`.

    Raises:
        EvalError: a module in training mode, or without a `forward`; no batch size; no such device.

    Examples:
        >>> import torch
        >>> import pbgeval
        >>> entities = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> def score_batch(edges):
        ...     return entities[edges[:, 2]] @ entities.T, entities[edges[:, 0]] @ entities.T
        ...
        >>> model = pbgeval.batch_scorer(score_batch, num_entities=3, num_relations=1)
        >>> pbgeval.evaluate_triples(model, [(0, 0, 1)])["tail.mean_rank"]
        1.5
    """
    return side_scorer(
        _BothSides(score_batch, num_entities),
        num_entities=num_entities,
        num_relations=num_relations,
        batch_size=batch_size,
        device=_device_of(score_batch, device),
        takes_time=takes_time,
    )


def side_scorer(
    score_side: Callable[[Side, Tensor], Tensor],
    *,
    num_entities: int,
    num_relations: int,
    batch_size: int = ROWS_PER_BATCH,
    device: torch.device | str | None = None,
    scores_relations: bool = False,
    takes_time: bool = False,
) -> BatchScorer:
    """Let a function score all entities on one side: score_side(hidden, edges) -> scores.

    Args:
        score_side: called with a side and int64 (b, 3) of lhs, rel, rhs, whose hidden end is 0 and which it may
            change; returns the scores (b, N) of every entity at that end.
        num_entities: N.
        num_relations: as many.
        batch_size: b, at most.
        device: as in `edge_scorer`.
        scores_relations: whether it also takes `Side.REL`, and returns the scores (b, R) of every relation.
        takes_time: whether the edges (b, 4) have a fourth column, the time; see `edge_scorer`.

    Raises:
        EvalError: a module in training mode, or without a `forward`; no batch size; no such device.

    Examples:
        >>> import torch
        >>> import pbgeval
        >>> entities = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> def score_side(hidden, edges):
        ...     known = edges[:, 2] if hidden is pbgeval.Side.LHS else edges[:, 0]
        ...     return entities[known] @ entities.T
        ...
        >>> model = pbgeval.side_scorer(score_side, num_entities=3, num_relations=1)
        >>> pbgeval.evaluate_triples(model, [(0, 0, 1)])["tail.mean_rank"]
        1.5
    """
    on = _device_of(score_side, device)
    if batch_size < 1:
        raise ScorerError(f"batch_size: expected a number from 1, got {batch_size}")
    return BatchScorer(score_side, num_entities, num_relations, batch_size, on, scores_relations, takes_time)


def _device_of(score: Any, device: torch.device | str | None) -> torch.device:  # noqa: ANN401 - any callable
    module = _module_of(score)
    if module is score and getattr(module.forward, "__func__", None) is torch.nn.Module.forward:
        raise ScorerError(
            f"{_name(score)}: the module has no forward; pass the method that scores, such as model.score"
        )
    check_mode(module, _name(score))
    tensors = [] if module is None or device is not None else [*module.parameters(), *module.buffers()]
    return tensors[0].device if tensors else torch_device(device or "cpu")


def _module_of(score: Any) -> torch.nn.Module | None:  # noqa: ANN401 - any callable
    """Return the module that a callable is or is a method of; None: a plain function."""
    if isinstance(score, _BothSides):
        return score.module
    owner = getattr(score, "__self__", score)
    return owner if isinstance(owner, torch.nn.Module) else None


def _name(score: Any) -> str:  # noqa: ANN401 - any callable
    """Return the name of a function, a method with its class, or a module, for messages and reports."""
    name = str(getattr(score, "__name__", type(score).__name__))
    if inspect.ismethod(score):
        name = f"{_name(score.__self__ if isinstance(score.__self__, type) else type(score.__self__))}.{name}"
    return "the scoring function" if name == "<lambda>" else name


def _shape(found: object) -> tuple[int, ...] | str:
    return tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__


def _called(score: Callable[..., T], what: str, *arguments: Any, takes_less: str = "") -> T:  # noqa: ANN401 - what it takes
    """Call a user's function and turn its exceptions into a ScorerError.

    Args:
        score: the function.
        what: it is asked for.
        arguments: of the function.
        takes_less: what a message about a lack of memory says: how much was asked for, and which option lowers that;
            empty: no option does.

    Raises:
        ScorerError: the function failed.
    """
    try:
        return score(*arguments)
    except EvalError:
        raise
    except Exception as error:
        lack = lack_of_memory(error)
        if lack is not None and not takes_less:
            raise
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "site-packages" not in frame.filename
        ]
        where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        if lack is not None:
            raise ScorerError(
                f"{_name(score)}: expected enough memory{where} for {what}, {takes_less}, got: {one_line(lack)}"
            ) from None
        asked = ", ".join(
            f"{tuple(ids.shape)} of ids {int(ids.min())} to {int(ids.max())}"
            for ids in arguments
            if isinstance(ids, Tensor) and ids.numel()
        )
        shapes = {ids.shape for ids in arguments if isinstance(ids, Tensor)}
        hints = (
            (isinstance(error, IndexError), "; is num_entities or num_relations larger than the model's tables?"),
            (type(error) is RuntimeError and len(shapes) > 1, "; if it takes vectors only, set broadcasts=False"),
        )
        hint = "".join(text for is_meant, text in hints if is_meant)
        raise ScorerError(
            f"{_name(score)}: {type(error).__name__}{where}: {one_line(error)}; "
            f"asked for {what} with int64 tensors: {asked}{hint}"
        ) from None
