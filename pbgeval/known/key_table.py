"""Codes -> their positions in a sorted array of codes, by a hash table: a few reads where bisection makes twenty.

Open addressing with linear probing, all codes of a call at once: what finds neither its code nor an empty cell in a
round moves on to the next cell. Codes are mixed first, because runs of neighbouring codes would pile up.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

ROWS_AT_ONCE = 1 << 16  # of one lookup: its intermediate arrays stay in cache
_CELLS_PER_CODE = 4  # at least; at most twice that
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd numbers without structure
_HALF = np.uint64(32)
MOST_CODES = (1 << 31) - 1


@frozen(eq=False)
class KeyTable:
    """A hash table over sorted codes."""

    codes_K: np.ndarray  # int64, distinct; positions in it are what the table answers
    cells: np.ndarray  # int32, a power of two of them: position + 1, or 0 for an empty cell

    @classmethod
    def of_codes(cls, codes_K: np.ndarray) -> KeyTable:
        """Build the table of distinct codes.

        Raises:
            ValueError: 2^31 codes or more.
        """
        if len(codes_K) > MOST_CODES:
            raise ValueError(f"a table of at most {MOST_CODES} keys was asked for {len(codes_K)}")
        cells = np.zeros(1 << (_CELLS_PER_CODE * len(codes_K)).bit_length(), np.int32)
        entries = np.arange(1, len(codes_K) + 1, dtype=np.int32)
        at = _home_cells(codes_K, len(cells))
        while len(entries):
            is_free = cells[at] == 0
            cells[at[is_free]] = entries[is_free]  # of several that claim one cell, the last to write has it
            is_waiting = cells[at] != entries
            entries, at = entries[is_waiting], (at[is_waiting] + 1) & (len(cells) - 1)
        return cls(codes_K, cells)

    def index_of(self, codes_E: np.ndarray) -> np.ndarray:
        """Return the position of each int64 code, int64 (E,), -1 where it is absent."""
        index_E = np.full(len(codes_E), -1, np.int64)
        for start in range(0, len(codes_E) if len(self.codes_K) else 0, ROWS_AT_ONCE):
            self._look_up(codes_E[start : start + ROWS_AT_ONCE], index_E[start : start + ROWS_AT_ONCE])
        return index_E

    def _look_up(self, codes_E: np.ndarray, index_E: np.ndarray) -> None:
        at = _home_cells(codes_E, len(self.cells))
        index_E[:], goes_on = self._probe(codes_E, at)
        rows = goes_on
        while len(rows):
            codes_E, at = codes_E[goes_on], (at[goes_on] + 1) & (len(self.cells) - 1)
            index_E[rows], goes_on = self._probe(codes_E, at)
            rows = rows[goes_on]

    def _probe(self, codes_E: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the position of each code that is in its cell, else -1; and the rows that have to look further."""
        index_E = np.subtract(self.cells[at], 1, dtype=np.int64)
        # An empty cell, -1, reads the last code: unequal, because no cell on the way to a code that is here is empty.
        is_other = self.codes_K[index_E] != codes_E
        goes_on = np.flatnonzero(is_other & (index_E >= 0))
        index_E[goes_on] = -1
        return index_E, goes_on


def _home_cells(codes_E: np.ndarray, num_cells: int) -> np.ndarray:
    """Return the cell where the search for each code begins, int64."""
    mixed = codes_E.view(np.uint64) * _MIX[0]
    mixed ^= mixed >> _HALF
    mixed *= _MIX[1]
    mixed >>= np.uint64(64 - (num_cells.bit_length() - 1))
    return mixed.view(np.int64)
