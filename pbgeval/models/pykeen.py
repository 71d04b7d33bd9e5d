"""Take the vectors of a PyKEEN model if its formula is known, or let the model score.

PyKEEN is not imported. `pykeen_vectors` returns a model only if its scores agree with those of PyKEEN's own methods on
a sample of queries. Whatever else changes a score (a sigmoid, a clamp, a representation of another kind) shows there.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import ScorerError
from pbgeval.models.formulas import Formula
from pbgeval.models.functions import BatchScorer, ByFunction, side_scorer
from pbgeval.models.model import EmbeddingModel, of_one_type
from pbgeval.notation import ENDS, Side
from pbgeval.scoring.comparators import Comparator, UnrankableRowsError
from pbgeval.scoring.operators import OPERATORS
from pbgeval.scoring.scorer import RelationScorer
from pbgeval.storage.arrays import TensorRows

ROWS_PER_BATCH = 32  # models that broadcast make an array of so many times N times D numbers
ROWS_COMPARED = 8  # queries of each side that both ways score against all entities before vectors are used
AGREEMENT = 1e-5  # of the largest score: two orders of float32 sums
_NEEDED = ("predict_h", "predict_t", "num_entities", "num_relations")
# By the name of the interaction: our formula, and the number of vectors per entity and per relation.
KINDS = {
    "DistMult": ("distmult", 1, 1),
    "ComplEx": ("complex", 1, 1),
    "TransE": ("transe", 1, 1),
    "RotatE": ("rotate", 1, 1),
    "RESCAL": ("rescal", 1, 1),
    "CP": ("cp", 2, 1),
    "SimplE": ("distmult", 2, 2),  # as PyKEEN 1.11 computes it, the mean of two DistMults that share nothing
}


@frozen(eq=False)
class PyKEENScores(ByFunction):
    """A model's `predict_h`, `predict_t` and `predict_r`; all but the last know of inverse relations."""

    options: dict[str, Any]

    def __call__(self, hidden: Side, batch_b3: Tensor) -> Tensor:
        """Return the scores (b, N) of all entities on the hidden side, or of all relations."""
        if hidden is Side.REL:
            found_bR = cast("Tensor", self.source.predict_r(batch_b3[:, [0, 2]], **self.options))
            return found_bR[:, ::2] if getattr(self.source, "use_inverse_triples", False) else found_bR
        predict, known_b2 = hidden.pick(
            (self.source.predict_h, batch_b3[:, 1:]), (self.source.predict_t, batch_b3[:, :2])
        )
        return cast("Tensor", predict(known_b2, **self.options))


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
    advice = "; pass its .model" if hasattr(model, "model") else ""
    for name in _NEEDED:
        if not hasattr(model, name):
            raise ScorerError(
                f"model: expected a trained model of PyKEEN, with {', '.join(_NEEDED)}, got {type(model).__name__} "
                f"without {name}{advice}"
            )
    given = {"slice_size": slice_size, "mode": mode}
    return side_scorer(
        PyKEENScores(model, {name: value for name, value in given.items() if value is not None}),
        num_entities=int(model.num_entities) if num_entities is None else num_entities,
        num_relations=int(model.num_relations) // (2 if getattr(model, "use_inverse_triples", False) else 1),
        batch_size=ROWS_PER_BATCH if batch_size is None else batch_size,
        device=torch.device(getattr(model, "device", "cpu")),
        scores_relations=hasattr(model, "predict_r"),
    )


def pykeen_vectors(model: Any, scorer: BatchScorer | None = None) -> EmbeddingModel | None:  # noqa: ANN401 - a model of PyKEEN
    """Return the vectors of a trained PyKEEN model with its formula, which is much faster.

    The model is put into evaluation mode. The result is None for a model whose interaction is not among `KINDS`, that
    does not compute in float32, or whose own scores of a few queries differ from those of the formula.

    Args:
        model: a `pykeen.models.Model`.
        scorer: what asks the model for its own scores; None: as `pykeen_scorer` makes it.
    """
    interaction = getattr(model, "interaction", None)
    if type(interaction).__name__ == "ClampedInteraction" and getattr(interaction, "clamp_score", 0) is None:
        interaction = getattr(interaction, "base", None)
    name = type(interaction).__name__.removesuffix("Interaction")
    norm = 2 if name == "RotatE" else getattr(interaction, "p", 1)  # RotatE has a p, which PyKEEN 1.11 does not use
    tables = _tables(model, *KINDS[name][1:]) if name in KINDS and norm in (1, 2) else None
    if tables is None:
        return None
    if name == "RotatE":
        tables[1] = [torch.angle(table) for table in tables[1]]
    entity_ND, relation_RD = (torch.cat([_real_rows(table) for table in parts], dim=1) for parts in tables)
    if name == "SimplE":
        relation_RD = relation_RD / 2
    formula = Formula(KINDS[name][0], norm=int(norm), reciprocal=bool(getattr(model, "use_inverse_triples", False)))
    if formula.reciprocal:  # 2 r is the relation, 2 r + 1 its inverse
        relation_RD = torch.cat([relation_RD[0::2], relation_RD[1::2]])
    if formula.relation_columns(entity_ND.shape[1]) != relation_RD.shape[1]:
        return None
    label = f"<in memory>/{type(model).__name__}"  # like a file: names of entities would lie in its folder
    found = of_one_type(label, "pykeen", formula, TensorRows(entity_ND), {"relations": TensorRows(relation_RD)})
    return found if _agrees(found, scorer or pykeen_scorer(model)) else None


def _tables(model: Any, num_of_entity: int, num_of_relation: int) -> list[list[Tensor]] | None:  # noqa: ANN401
    """Return the entity and relation tables; None if there are others or not float32."""
    representations = (model.entity_representations, model.relation_representations)
    if [len(of) for of in representations] != [num_of_entity, num_of_relation]:
        return None
    model.eval()
    with torch.no_grad():
        tables: list[list[Tensor]] = [[one(indices=None) for one in of] for of in representations]
    num_rows = (model.num_entities, model.num_relations)
    is_float32 = all(table.dtype in (torch.float32, torch.complex64) for of in tables for table in of)
    has_rows = all(len(table) == num for num, of in zip(num_rows, tables, strict=True) for table in of)
    return tables if is_float32 and has_rows else None


def _real_rows(table: Tensor) -> Tensor:
    """Return float32 rows on the CPU; complex ones as real parts, then imaginary parts."""
    rows = table.detach().flatten(1).cpu()
    return torch.cat([rows.real, rows.imag], dim=1) if rows.is_complex() else rows


def _agrees(found: EmbeddingModel, theirs: BatchScorer) -> bool:
    """Return whether formula and model score some queries of each side alike."""
    formula, entity_ND = found.formula, found.entities.load()
    parameters = {side: OPERATORS[formula.operator].prepared(of) for side, of in found.parameters().items()}
    comparator = Comparator(formula.comparator)
    scorer = RelationScorer(
        "all", formula.operator, parameters, comparator, dynamic=True, lhs_type="all", rhs_type="all"
    )
    source = torch.Generator().manual_seed(0)
    every_N = torch.arange(found.num_entities, device=theirs.device)
    for hidden in ENDS:
        known_Q, rel_Q = (
            torch.randint(size, (ROWS_COMPARED,), generator=source)
            for size in (found.num_entities, found.num_relations)
        )
        try:
            queries_QD = scorer.queries(hidden, entity_ND[known_Q], rel_Q)
            candidates_ND = scorer.candidates(hidden, entity_ND)
        except UnrankableRowsError:  # NaN: the model's own scores tell of which edge
            return False
        ours_QN = comparator.real_scores(comparator.scores(queries_QD.unsqueeze(0), candidates_ND.unsqueeze(0)))[0]
        with torch.no_grad():
            theirs_QN = theirs.scores(hidden, known_Q.to(theirs.device), rel_Q.to(theirs.device), every_N).cpu()
        agrees_QN = (ours_QN - theirs_QN).abs() <= AGREEMENT * theirs_QN.abs().max()  # not where one is NaN
        if theirs_QN.dtype is not torch.float32 or not bool(agrees_QN.all()):
            return False
    return True
