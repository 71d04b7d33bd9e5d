"""The names of breakdowns: their files, the columns that say which group a row is of, the measures of popularity."""

from __future__ import annotations

BREAKDOWN_FILES = {
    "relation": "relations.csv",
    "entity_types": "entity_types.csv",
    "cardinality": "cardinality.csv",
    "relation_frequency": "relation_frequency.csv",
    "entity_frequency": "entity_frequency.csv",
    "groups": "relation_groups.csv",
    "time": "time.csv",
}
GROUP_COLUMNS = {
    "relation": ("relation", "relation_id", "lhs_type", "rhs_type"),
    "entity_types": ("lhs_type", "rhs_type"),
    "cardinality": ("cardinality",),
    "relation_frequency": ("quantile",),
    "entity_frequency": ("entity_side", "quantile"),
    "groups": ("group",),
    "time": ("time_from", "time_until"),
}
POPULARITY = "popularity"  # its name among the breakdowns
# What is counted in training, by name: edges of an entity, at either side, or of an entity at its side of a relation;
# and whether that is the answer or what is known.
ANSWER_DEGREE, QUERY_DEGREE = "answer_degree", "query_degree"
ANSWER_HALF_LINK, QUERY_HALF_LINK = "answer_half_link", "query_half_link"
MEASURES = (ANSWER_DEGREE, QUERY_DEGREE, ANSWER_HALF_LINK, QUERY_HALF_LINK)
