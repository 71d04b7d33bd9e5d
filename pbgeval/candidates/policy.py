"""The names of who competes with the true entity (DESIGN: `candidates`)."""

from __future__ import annotations

from enum import Enum


class CandidatePolicy(Enum):
    """Who competes with the true entity of a query."""

    SAMPLED = "sampled"  # the entities of the query's chunk and uniform draws from the bucket's partition
    PARTITION = "partition"  # every entity of the type in the bucket's partition (PBG's all_negs)
    ALL = "all"  # every entity of the type in every partition
