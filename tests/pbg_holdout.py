"""How PyTorch-BigGraph's source of March 2024 draws held-out edges, by its index arithmetic (docs/monitor.md)."""

from __future__ import annotations

import numpy as np


def drawn_by_pbg(num_edges: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the edges that are evaluated and of those that are trained on."""
    num_held_out = int(num_edges * fraction)
    held_out = np.random.default_rng(seed).integers(0, num_edges, num_held_out)  # with replacement
    training = np.arange(num_edges)
    training[held_out] = np.arange(num_edges - num_held_out, num_edges)  # the last edges take their places,
    return held_out, training[: num_edges - num_held_out]  # though some of these are held out themselves
