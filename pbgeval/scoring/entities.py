"""One partition of an entity type in memory -> the rows that operators see.

A row is rescaled to `max_norm` if it is longer, then the type's global embedding is added (PBG.md section 2).
A featurized entity is the mean of its feature rows. What cannot be ranked is refused here, when the partition is
loaded, with its type, partition and first rows: NaN, infinity, and zero vectors where the comparator is `cos`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.errors import UnrankableError
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.fixed_order import means_in_order, norms_in_order
from pbgeval.storage.transfers import sent

NORM_MARGIN = 1e-7  # torch's embedding renormalisation divides by the norm plus this
NUM_ROWS_NAMED = 5  # in an error message


@frozen(eq=False)
class EntityTable:
    """The embeddings of one partition of an entity type."""

    entity_type: str
    partition: int
    # float32; rows of features when the type is featurized; in a `Group`, of the identities of its edges
    embeddings_ND: Tensor
    global_embedding_D: Tensor | None = None
    max_norm: float | None = None
    featurized: bool = False
    first_row: int = 0  # row in the partition of the table's first, where the table is a part of it

    @property
    def num_rows(self) -> int:
        return self.embeddings_ND.shape[0]

    @property
    def device(self) -> torch.device:
        return self.embeddings_ND.device

    @property
    def label(self) -> str:
        return f"entity type '{self.entity_type}', partition {self.partition}"

    @property
    def has_only_embeddings(self) -> bool:
        """Whether vectors are the embeddings as they are, so that float32 holds them."""
        return self.global_embedding_D is None and self.max_norm is None and not self.featurized

    def between(self, start: int, stop: int) -> EntityTable:
        """Return the table of rows start to stop (exclusive)."""
        return evolve(self, embeddings_ND=self.embeddings_ND[start:stop], first_row=self.first_row + start)

    def rows(self, ids_E: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the vectors (E, D) of entities given by their offsets in the partition, computed in `dtype`."""
        return self._finished(self.embeddings_ND.index_select(0, sent(ids_E, self.device)).to(dtype))

    def range_of_rows(self, start: int, stop: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the vectors of consecutive entities."""
        return self._finished(self.embeddings_ND[start:stop].to(dtype))

    def rows_of_features(self, offsets_E: Tensor, features: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the vectors of featurized entities: entity i has `features[offsets[i]:offsets[i + 1]]`."""
        x_ND = self._renormalised(self.embeddings_ND.index_select(0, sent(features, self.device)).to(dtype))
        offsets_E = sent(offsets_E, self.device)
        if dtype is torch.float64:
            return self._with_global(means_in_order(x_ND, offsets_E))
        every_N = torch.arange(x_ND.shape[0], device=self.device)
        return self._with_global(F.embedding_bag(every_N, x_ND, offsets_E, mode="mean", include_last_offset=True))

    def _finished(self, x_ED: Tensor) -> Tensor:
        return self._with_global(self._renormalised(x_ED))

    def _renormalised(self, x_ED: Tensor) -> Tensor:
        if self.max_norm is None:
            return x_ED
        norms_E1 = norms_in_order(x_ED.double()).unsqueeze(1)
        scale_E1 = torch.where(norms_E1 > self.max_norm, self.max_norm / (norms_E1 + NORM_MARGIN), 1.0)
        return x_ED * scale_E1.to(x_ED.dtype)

    def _with_global(self, x_ED: Tensor) -> Tensor:
        return x_ED if self.global_embedding_D is None else x_ED + self.global_embedding_D.to(x_ED.dtype)

    def check(self, *, refuse_zero_vectors: bool, has_bias: bool) -> None:
        """Look at every row once.

        Raises:
            UnrankableError: some row holds NaN or infinity or, if `refuse_zero_vectors`, has no direction.
        """
        sizes = sizes_on(self.device)
        step = sizes.rows(sizes.checked_rows, self.embeddings_ND.shape[1])
        for start in range(0, self.num_rows, step):
            x_ED = self.embeddings_ND[start : start + step]
            if not math.isfinite(x_ED.sum().item()):  # which may overflow
                self._refuse(~torch.isfinite(x_ED).all(1), start, "NaN or infinite embeddings", "finite numbers")
            if refuse_zero_vectors and not self.featurized:
                x_ED = self._finished(x_ED)[:, int(has_bias) :]
                self._refuse((x_ED == 0).all(1), start, "zero vectors", "a direction for comparator 'cos'")

    def _refuse(self, bad_E: Tensor, start: int, found: str, expected: str) -> None:
        if not bool(bad_E.any()):
            return
        rows = (bad_E.nonzero().flatten() + start + self.first_row).tolist()
        named = ", ".join(str(row) for row in rows[:NUM_ROWS_NAMED]) + (", ..." if len(rows) > NUM_ROWS_NAMED else "")
        raise UnrankableError(
            f"{self.label}: expected {expected}, got {found} in row{'s' * (len(rows) > 1)} {named}; "
            "this checkpoint cannot be ranked, choose an earlier one"
        )
