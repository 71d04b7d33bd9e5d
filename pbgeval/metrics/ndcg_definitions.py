"""What NDCG of the types of a hierarchy is, for people."""

from __future__ import annotations

from pbgeval.metrics.metric import Definition, Level, Range


def ndcg_at(gain: str, discount: str, cutoff: int) -> Definition:
    """Return NDCG of the types of a hierarchy, at a cut-off."""
    name = f"{'' if gain == 'linear' else 'exponential_'}ndcg_{discount}_at_{cutoff}"
    of_type = "1 - d / depth" if gain == "linear" else "2^-d"
    divisor = "1 at p = 1, then log2(p)" if discount == "jk" else "log2(p + 1)"
    return Definition(
        name,
        (),
        1,
        Range("[0, 1]", 0.0, 1.0),
        Level("depends on the gains"),
        f"DCG / ideal DCG of the {cutoff} best types; gain {of_type} at distance d of a true one; discount {divisor}",
        "Balog and Neumayer (2012)" + ("; Järvelin and Kekäläinen (2002)" if discount == "jk" else ""),
    )
