"""Ranks -> statistics that add: int64 throughout, so that order does not matter (law 1)."""
