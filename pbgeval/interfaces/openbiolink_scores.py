"""What `score_batch` returns, by either of OpenBioLink's contracts -> scores of each side, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import ScorerError
from pbgeval.notation import Side

_AGREES = 1e-5  # relative: two kernels' float32 scores of one edge


@frozen(eq=False)
class SideScores:
    """The scores of a batch's queries on one side."""

    scores_bN: Tensor  # of every entity
    true_b: Tensor  # of the true one
    has_true_b: Tensor  # bool: whether `scores_bN` hold it


def batch_scores(
    score_batch: Callable[[Tensor], Any], batch_b3: Tensor, num_entities: int, name: str
) -> Mapping[Side, SideScores]:
    """Ask for the scores of a batch.

    Where a contract gives true scores apart, they come from another kernel than those of candidates, as a rule: then
    identical candidates would not tie. So the true score is the one among the candidates' if the two agree but for
    rounding; a ranking file has none there (0, say), and then the one given apart counts.

    Raises:
        ScorerError: it returns neither two arrays of scores nor four, or of other shapes.
    """
    found = score_batch(batch_b3.clone())
    where = f"{name}.score_batch"
    size = len(batch_b3)
    wanted: dict[str, tuple[int, ...]] = {"head scores": (size, num_entities), "tail scores": (size, num_entities)}
    if isinstance(found, tuple | list) and len(found) == 4:
        wanted = {
            "true scores of heads": (size,),
            "head scores": (size, num_entities),
            "true scores of tails": (size,),
            "tail scores": (size, num_entities),
        }
    elif not isinstance(found, tuple | list) or len(found) != 2:
        got = f"a tuple of {len(found)}" if isinstance(found, tuple | list) else type(found).__name__
        raise ScorerError(f"{where}: expected (head scores, tail scores) or four of them, got {got}")
    parts = [
        _checked(part, shape, f"{where}: {what}") for part, (what, shape) in zip(found, wanted.items(), strict=True)
    ]
    given = [None, parts[0], None, parts[1]] if len(parts) == 2 else parts
    return {
        Side.LHS: _of_side(given[0], given[1], batch_b3[:, 0]),
        Side.RHS: _of_side(given[2], given[3], batch_b3[:, 2]),
    }


def _checked(part: Any, shape: tuple[int, ...], where: str) -> Tensor:  # noqa: ANN401 - whatever a user returns
    """Return numbers as a tensor that can be compared."""
    if isinstance(part, np.ndarray):
        part = torch.from_numpy(part)
    if not isinstance(part, Tensor):
        raise ScorerError(f"{where}: expected a tensor of shape {shape}, got {type(part).__name__}")
    if tuple(part.shape) != shape:
        raise ScorerError(f"{where}: expected shape {shape} for a batch of {shape[0]}, got {tuple(part.shape)}")
    if part.dtype is torch.bool or part.is_complex():
        raise ScorerError(f"{where}: expected real numbers, got {part.dtype}")
    return part.detach().double()  # exact, so that true scores of another type compare as they are


def _of_side(given_b: Tensor | None, scores_bN: Tensor | None, true_entity_b: Tensor) -> SideScores:
    assert scores_bN is not None, "each contract has them"
    own_b = scores_bN.gather(1, true_entity_b.to(scores_bN.device).unsqueeze(1)).squeeze(1)
    if given_b is None:
        return SideScores(scores_bN, own_b, torch.ones_like(own_b, dtype=torch.bool))
    given_b = given_b.to(own_b.device)
    finite_bN = torch.where(torch.isfinite(scores_bN), scores_bN, 0.0)
    # Of a sum that cancels, rounding is relative to its terms, which a row's largest score stands for; a 0 may be the
    # filling of a ranking file's row, and a small confidence must not be taken for it.
    allowed_b = _AGREES * torch.where(own_b == 0, given_b.abs(), finite_bN.abs().amax(1))
    agrees_b = (own_b == given_b) | ((own_b - given_b).abs() <= allowed_b)
    return SideScores(scores_bN, torch.where(agrees_b, own_b, given_b), agrees_b)
