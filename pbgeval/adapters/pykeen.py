"""A model object of PyKEEN -> a scorer. PyKEEN is not imported: the model is asked by its own methods."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.adapters.functions import BatchScorer, side_scorer
from pbgeval.errors import ScorerError
from pbgeval.notation import Side

ROWS_PER_BATCH = 32  # models that broadcast make an array of so many times N times D numbers
_NEEDED = ("predict_h", "predict_t", "num_entities", "num_relations")


@frozen(eq=False)
class PyKEENScores:
    """`predict_h` and `predict_t`, which know of inverse relations and of sigmoids."""

    model: Any
    options: dict[str, Any]

    def __call__(self, hidden: Side, batch_b3: Tensor) -> Tensor:
        """Return the scores (b, N) of all entities on the hidden side."""
        if hidden is Side.LHS:
            scores_bN: Tensor = self.model.predict_h(batch_b3[:, 1:], **self.options)
        else:
            scores_bN = self.model.predict_t(batch_b3[:, :2], **self.options)
        return scores_bN


def pykeen_scorer(
    model: Any,  # noqa: ANN401 - a class of a library that is not imported
    *,
    num_entities: int | None = None,
    batch_size: int | None = None,
    slice_size: int | None = None,
    mode: str | None = None,
) -> BatchScorer:
    """Let a trained PyKEEN model score.

    Its relations are those of the data: a model with inverse triples has twice as many, of which it chooses itself.
    PyKEEN's methods put the model into evaluation mode, and it stays there.

    Args:
        model: a `pykeen.models.Model`.
        num_entities: of the graph that is evaluated; None: the model's own.
        batch_size: queries that are scored at once, against all entities; None: 32.
        slice_size: as in PyKEEN: scores of so many entities at a time, for less memory.
        mode: as in PyKEEN, of inductive models: training, validation or testing.

    Raises:
        ScorerError: it is none of PyKEEN's models; says what it lacks. No batch size.
    """
    lacking = next((name for name in _NEEDED if not hasattr(model, name)), None)
    if lacking is not None:
        advice = "; pass its .model" if hasattr(model, "model") else ""
        expected = f"a trained model of PyKEEN, with {', '.join(_NEEDED)}"
        raise ScorerError(f"model: expected {expected}, got {type(model).__name__} without {lacking}{advice}")
    given = {"slice_size": slice_size, "mode": mode}
    scores = PyKEENScores(model, {name: value for name, value in given.items() if value is not None})
    num_relations = int(model.num_relations)
    return side_scorer(
        scores,
        num_entities=int(model.num_entities) if num_entities is None else num_entities,
        num_relations=num_relations // 2 if getattr(model, "use_inverse_triples", False) else num_relations,
        batch_size=ROWS_PER_BATCH if batch_size is None else batch_size,
        device=torch.device(getattr(model, "device", "cpu")),
    )
