"""The recurrency baseline of temporal graphs: what has followed before follows again.

Scores of an answer a of a query (known entity, relation, time t), from the facts before t:

    strict      sum over the times k at which (known, relation, a) was a fact of 2^(-decay (t - k))
    relaxed     share of a among the answers of all facts of the relation
    combined    alpha strict + (1 - alpha) relaxed

`decay` and `alpha` are chosen for each relation and side on the validation edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from pbgeval import Side

HEAD, RELATION, TAIL, TIME = range(4)  # columns
SIDES = {Side.LHS: (HEAD, TAIL), Side.RHS: (TAIL, HEAD)}  # columns of the answer and of the known entity
DECAYS = (0.0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # per day
ALPHAS = (0.0, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0)

Key = tuple[Side, int]  # hidden side and relation


class Parameters(NamedTuple):
    """Of one relation and side; the defaults are for those that validation has not."""

    decay: float = 0.1
    alpha: float = 0.999


Chosen = Mapping[Key, Parameters]


class Facts(NamedTuple):
    """Some facts in order of time."""

    times: np.ndarray
    answers: np.ndarray

    def between(self, start: int, stop: int) -> Facts:
        """Return the facts from one time until before another."""
        part = slice(*np.searchsorted(self.times, [start, stop]))
        return Facts(self.times[part], self.answers[part])


NO_FACTS = Facts(np.empty(0, np.int64), np.empty(0, np.int64))


class History:
    """All facts, found by what a query knows."""

    def __init__(self, facts_E4: np.ndarray, num_entities: int, *, last_only: bool = False) -> None:
        self.num_entities, self.last_only = num_entities, last_only
        in_order_E4 = facts_E4[np.argsort(facts_E4[:, TIME], kind="stable")]
        self._of: dict[tuple[Side, int, int | None], Facts] = {}
        for side, (answer, known) in SIDES.items():
            listed = defaultdict(list)
            for fact in in_order_E4.tolist():
                for entity in (fact[known], None):
                    listed[side, fact[RELATION], entity].append((fact[TIME], fact[answer]))
            self._of |= {key: Facts(*np.array(of, np.int64).T) for key, of in listed.items()}

    def of(self, side: Side, relation: int, known: int | None = None) -> Facts:
        """Return the facts of a relation and, unless it is None, of a known entity."""
        return self._of.get((side, relation, known), NO_FACTS)

    def strict(self, side: Side, relation: int, known: int, time: int, decay: float) -> np.ndarray:
        """Return the strict score of every entity, float64 (N,)."""
        past = self.of(side, relation, known).between(0, time)
        weights = 2.0 ** (decay * (past.times - time))
        if self.last_only:  # another reading of the paper: the last time alone
            scores_N = np.zeros(self.num_entities)
            np.maximum.at(scores_N, past.answers, weights)
            return scores_N
        return np.bincount(past.answers, weights=weights, minlength=self.num_entities)

    def relaxed(self, side: Side, relation: int, time: int) -> np.ndarray:
        """Return the relaxed score of every entity, float64 (N,)."""
        past = self.of(side, relation).between(0, time)
        return np.bincount(past.answers, minlength=self.num_entities) / max(past.answers.size, 1)

    def combined(self, side: Side, relation: int, known: int, time: int, parameters: Parameters) -> np.ndarray:
        """Return the combined score of every entity, float64 (N,); with alpha = 1 it is the strict one."""
        strict = self.strict(side, relation, known, time, parameters.decay)
        return parameters.alpha * strict + (1 - parameters.alpha) * self.relaxed(side, relation, time)


class Baseline:
    """A function for `pbgeval.side_scorer`: scores of all entities, for edges with times."""

    def __init__(self, history: History, chosen: Chosen, dtype: torch.dtype, noise: float = 0.0) -> None:
        self.history, self.chosen, self.dtype, self.noise = history, chosen, dtype, noise

    def __call__(self, hidden: Side, edges: torch.Tensor) -> torch.Tensor:
        """Return the scores (edges, entities)."""
        rows = []
        for edge in edges.tolist():
            known, relation, time = edge[SIDES[hidden][1]], edge[RELATION], edge[TIME]
            parameters = self.chosen.get((hidden, relation), Parameters())
            row = torch.from_numpy(self.history.combined(hidden, relation, known, time, parameters)).to(self.dtype)
            if self.noise:  # the same for a query each time
                source = np.random.default_rng([hidden.value, relation, known, time])
                row += torch.from_numpy(source.random(row.numel()) * self.noise).to(self.dtype)
            rows.append(row)
        return torch.stack(rows)


# Parameters are chosen by the mean reciprocal rank of the validation edges of a relation and side. It is counted here,
# by numpy alone, and so checks what pbgeval counts.


def choose(history: History, valid_E4: np.ndarray) -> tuple[Chosen, Chosen]:
    """Choose the parameters of the strict (alpha = 1) and of the combined baseline, the decay first."""

    def by_decay(key: Key, known: int, time: int) -> np.ndarray:
        return np.stack([history.strict(*key, known, time, decay) for decay in DECAYS])

    decays = _best(history, valid_E4, DECAYS, by_decay)

    def by_alpha(key: Key, known: int, time: int) -> np.ndarray:
        alpha_K1 = np.array(ALPHAS)[:, None]
        strict_N = history.strict(*key, known, time, decays[key])
        return np.asarray(alpha_K1 * strict_N + (1 - alpha_K1) * history.relaxed(*key, time))

    alphas = _best(history, valid_E4, ALPHAS, by_alpha)
    strict = {key: Parameters(decay, alpha=1.0) for key, decay in decays.items()}
    return strict, {key: Parameters(decay, alphas[key]) for key, decay in decays.items()}


def _best(
    history: History,
    valid_E4: np.ndarray,
    options: Sequence[float],
    scores: Callable[[Key, int, int], np.ndarray],
) -> dict[Key, float]:
    """Return the option of each relation and side with the best mean reciprocal rank; of equal ones, the first.

    `scores` returns a row of scores (options, N) for each option, of (key, known entity, time).
    """
    sums: dict[Key, np.ndarray] = defaultdict(lambda: np.zeros(len(options)))
    for side, query in queries(valid_E4):
        known, relation, _, time = query
        key = side, relation
        sums[key] += reciprocal_ranks(history, side, query, scores(key, known, time))
    return {key: options[int(np.argmax(np.round(of, 9)))] for key, of in sums.items()}


def queries(edges_E4: np.ndarray) -> Iterator[tuple[Side, tuple[int, int, int, int]]]:
    """Yield (hidden side, (known, relation, answer, time)) of all edges."""
    for side, (answer, known) in SIDES.items():
        for edge in edges_E4.tolist():
            yield side, (edge[known], edge[RELATION], edge[answer], edge[TIME])


def reciprocal_ranks(
    history: History, side: Side, query: tuple[int, int, int, int], scores_KN: np.ndarray
) -> np.ndarray:
    """Return 1 / realistic rank of a query's answer by each row of scores; other answers of its time do not compete."""
    known, relation, answer, time = query
    competes = np.ones(history.num_entities, bool)
    competes[history.of(side, relation, known).between(time, time + 1).answers] = False
    competes[answer] = False
    others, true = scores_KN[:, competes], scores_KN[:, answer, None]
    return 1 / (1 + (others > true).sum(1) + (others == true).sum(1) / 2)
