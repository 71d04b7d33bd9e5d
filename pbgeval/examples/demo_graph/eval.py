"""Rank the demo graph's test edges against all entities, filtered: the figures that papers report."""

from pathlib import Path

from pbgeval import EntitySchema, EvalConfig, RelationSchema

TYPES = Path(__file__).parent / "types.tsv"  # relation, left entity type, right entity type


def get_config() -> EvalConfig:
    """Return the settings. Relative paths start at this file's folder."""
    relations = [line.split("\t") for line in TYPES.read_text(encoding="utf-8").splitlines()]
    return EvalConfig(
        entities={name: EntitySchema(num_partitions=4) for name in ("function", "class")}
        | {name: EntitySchema(num_partitions=1) for name in ("module", "package")},
        relations=[
            RelationSchema(name=name, lhs=lhs, rhs=rhs, operator="complex_diagonal") for name, lhs, rhs in relations
        ],
        entity_path="entity",
        edge_paths=["test"],
        train_paths=["train"],
        checkpoint_path="checkpoint",
        dimension=64,
        comparator="dot",
        global_emb=False,
        candidates="all",
        hits_at=[1, 3, 10],
    )
