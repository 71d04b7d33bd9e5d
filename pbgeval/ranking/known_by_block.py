"""Known answers of one contest in a range of candidates -> those of each block of scores."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking.chunks import concatenated_ranges
from pbgeval.ranking.constraints import is_among
from pbgeval.ranking.query_edges import QueryBlock


@frozen(eq=False)
class KnownAnswers:
    """The known answers of one contest's keys within one range of candidates."""

    key_P: np.ndarray  # int64, ascending: index among the contest's keys
    number_P: np.ndarray  # int64, ascending within a key: number of the answer

    @classmethod
    def select(cls, keys_K: np.ndarray, key_P: np.ndarray, number_P: np.ndarray) -> KnownAnswers:
        """Return those of one contest's keys among the answers of all keys of its side.

        Args:
            keys_K: int64: index of each of the contest's keys among those of its side.
            key_P: ascending: index of each answer's key among those of the side.
            number_P: ascending within a key: number of the answer.
        """
        if np.array_equal(keys_K, np.arange(keys_K.size)):  # the side's first keys, usually all
            first = int(np.searchsorted(key_P, keys_K.size))
            return cls(key_P[:first], number_P[:first])
        low_K, high_K = np.searchsorted(key_P, keys_K), np.searchsorted(key_P, keys_K, "right")
        key = np.repeat(np.arange(keys_K.size), high_K - low_K)
        return cls(key, number_P[concatenated_ranges(low_K, high_K - low_K)])

    def of_keys(self, first: int, stop: int) -> KnownAnswers:
        """Return those of consecutive keys, as views."""
        part = slice(*np.searchsorted(self.key_P, [first, stop]))
        return KnownAnswers(self.key_P[part], self.number_P[part])

    def between(self, first: int, stop: int) -> KnownAnswers:
        """Return those that are consecutive entities."""
        inside_P = (self.number_P >= first) & (self.number_P < stop)
        return self if inside_P.all() else KnownAnswers(self.key_P[inside_P], self.number_P[inside_P])

    def are_known(self, key: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Tell of each (key, entity) whether it is a known answer, bool."""
        if not self.number_P.size or not number.size:
            return np.zeros(number.shape, bool)
        low = min(int(self.number_P.min()), int(number.min()))
        width = max(int(self.number_P.max()), int(number.max())) - low + 1
        return is_among(key * width + number - low, self.key_P * width + self.number_P - low)


def positions(sorted_numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where each number is in a sorted array; far below zero where it is not."""
    first, last = int(sorted_numbers[0]), int(sorted_numbers[-1])
    if last - first + 1 == sorted_numbers.size:  # none is left out, so nothing need be searched for
        return np.where((wanted >= first) & (wanted <= last), wanted - first, np.int64(-(1 << 62)))
    at = np.searchsorted(sorted_numbers, wanted)
    found = sorted_numbers[np.minimum(at, sorted_numbers.size - 1)] == wanted
    return np.where(found, at, np.int64(-(1 << 62)))


@frozen(eq=False)
class KnownByBlock:
    """Known answers as cells, those of one block of scores next to each other."""

    code_P: np.ndarray  # ascending: run of columns, then key
    key_P: np.ndarray
    column_P: np.ndarray  # within its run
    num_keys: int

    @classmethod
    def arrange(cls, known: KnownAnswers, numbers_C: np.ndarray, width: int) -> KnownByBlock:
        """Arrange them for blocks of `width` columns."""
        column_P = positions(numbers_C, known.number_P)
        competes_P = column_P >= 0
        key_P, column_P = known.key_P[competes_P], column_P[competes_P]
        num_keys = int(key_P.max()) + 1 if key_P.size else 1
        if width >= numbers_C.size:  # one run, and keys are in order
            return cls(key_P, key_P, column_P, num_keys)
        code_P = column_P // width * num_keys + key_P
        order = np.argsort(code_P, kind="stable")
        return cls(code_P[order], key_P[order], column_P[order] % width, num_keys)

    def in_block(self, part: int, block: QueryBlock, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return (row, column) of the known answers of a block's keys in a run of columns, rows ascending."""
        keys = np.minimum([block.first_key, block.stop_key], self.num_keys)
        first, stop = np.searchsorted(self.code_P, part * self.num_keys + keys)
        row_P = torch.from_numpy(self.key_P[first:stop] - block.first_key)
        return row_P.to(device), torch.from_numpy(self.column_P[first:stop]).to(device)
