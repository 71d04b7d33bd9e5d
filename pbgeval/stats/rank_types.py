"""How ties are resolved: the rank types and their names. Of torch only the types of tensors: pages read these names."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", "Tensor", np.ndarray)


class RankType(Enum):
    """How ties are resolved (PyKEEN's words; OpenBioLink and PBG report the pessimistic one)."""

    OPTIMISTIC = "optimistic"  # the true entity comes first among its ties
    REALISTIC = "realistic"  # the mean of the other two
    PESSIMISTIC = "pessimistic"  # the true entity comes last among its ties


RANK_TYPE_SYNONYMS = {
    "best": RankType.OPTIMISTIC,
    "avg": RankType.REALISTIC,
    "average": RankType.REALISTIC,
    "worst": RankType.PESSIMISTIC,
    **{rank_type.value: rank_type for rank_type in RankType},
}


def doubled_rank(better_Q: Array, tied_Q: Array, rank_type: RankType) -> Array:
    """Return twice the rank of each query, int64 (Q,): realistic ranks may be half-integral."""
    doubled_Q: Array = 2 + 2 * better_Q
    if rank_type is not RankType.OPTIMISTIC:
        doubled_Q = doubled_Q + (1 if rank_type is RankType.REALISTIC else 2) * tied_Q
    return doubled_Q
