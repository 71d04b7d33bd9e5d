"""Every fault of a config is one line that says where, what was expected and what was found; all come at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.config import EvalConfig, load_config, read_relation_groups
from pbgeval.config.schema import BREAKDOWNS
from pbgeval.errors import TRAIN_PATHS, ConfigError
from pbgeval.scoring.comparators import COMPARATORS
from pbgeval.stats.query_metrics import QUERY_AUC, query_metrics
from tests.examples import examples
from tests.fuzz.hostile_values import ODD_JSON
from tests.kit import refusals


def valid() -> dict[str, Any]:
    """Two partitioned types, one that is not, three relations; nothing is wrong."""
    return {
        "entities": {"user": {"num_partitions": 4}, "item": {"num_partitions": 4}, "tag": {"num_partitions": 1}},
        "relations": [
            {"name": "likes", "lhs": "user", "rhs": "item", "operator": "diagonal"},
            {"name": "has", "lhs": "item", "rhs": "tag", "operator": "complex_diagonal"},
            {"name": "likes", "lhs": "user", "rhs": "tag"},
        ],
        "dimension": 8,
        "entity_path": "entity",
        "edge_paths": ["edges"],
        "checkpoint_path": "checkpoint",
    }


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("c")  # short, since messages cut long values
    for name in ("entity", "edges", "checkpoint", "known", "given"):
        (folder / name).mkdir()
    (folder / "groups.json").write_text('{"social": ["knows"], "all of them": ["knows", "likes"]}')
    monkeypatch.chdir(folder)
    return folder


def faults_of(folder: Path, raw: object, *overrides: str) -> list[str]:
    (folder / "eval.json").write_text(json.dumps(raw))
    faults: tuple[str, ...] = ()
    try:
        load_config(folder / "eval.json", overrides)
    except ConfigError as error:
        faults = error.faults
    assert all(len(fault.splitlines()) == 1 for fault in faults)
    return list(faults)


def changed(**values: object) -> dict[str, Any]:
    return valid() | values


def nested(key: str, position: str | int, **values: object) -> dict[str, Any]:
    raw = valid()
    raw[key][position] |= values
    return raw


def without(raw: dict[str, Any], *path: str | int) -> dict[str, Any]:
    owner: Any = raw
    for part in path[:-1]:
        owner = owner[part]
    del owner[path[-1]]
    return raw


OPERATORS = (
    "affine, complex_diagonal, diagonal, linear, none, projected_translation, rotate, swapped_diagonal, translation"
)
WRONG_TYPES = {
    "a string for an int": (changed(batch_size="1000"), "batch_size: expected an int, got '1000' (str)"),
    "a bool for an int": (changed(batch_size=True), "batch_size: expected an int, got True (bool)"),
    "a float for an int": (changed(num_batch_negs=1.5), "num_batch_negs: expected an int, got 1.5 (float)"),
    "a whole float for an int": (changed(dimension=8.0), "dimension: expected an int, got 8.0 (float)"),
    "None for an int": (changed(batch_size=None), "batch_size: expected an int, got None"),
    "a bool for a number": (changed(max_norm=True), "max_norm: expected a number, got True (bool)"),
    "a string for a number": (changed(margin="0.1"), "margin: expected a number, got '0.1' (str)"),
    "nan for a number": (changed(margin=float("nan")), "margin: expected a finite number, got nan"),
    "an int for a bool": (changed(bias=1), "bias: expected a bool (True or False), got 1 (int)"),
    "a string for a bool": (changed(bias="true"), "bias: expected a bool (True or False), got 'true' (str)"),
    "an int for a string": (changed(comparator=3), "comparator: expected a string, got 3 (int)"),
    "a string for a list": (changed(edge_paths="edges"), "edge_paths: expected a list, got 'edges' (str)"),
    "a dict for a list": (changed(hits_at={}), "hits_at: expected a list, got {} (dict)"),
    "a wrong element": (changed(hits_at=[1, "3"]), "hits_at[1]: expected an int, got '3' (str)"),
    "a list for a dict": (changed(entities=[]), "entities: expected a dict, got [] (list)"),
    "a number for an entity type": (
        changed(entities={"user": 4, "item": {"num_partitions": 4}, "tag": {"num_partitions": 1}}),
        "entities['user']: expected a dict with the keys num_partitions, featurized, dimension, got 4 (int)",
    ),
    "a wrong type in an entity type": (
        nested("entities", "user", num_partitions="4"),
        "entities['user'].num_partitions: expected an int, got '4' (str)",
    ),
    "a wrong type in a relation": (
        nested("relations", 1, weight="heavy"),
        "relations[1].weight: expected a number, got 'heavy' (str)",
    ),
}


UNKNOWN_OR_MISSING = {
    "misspelt": (changed(num_batch_neg=3), "num_batch_neg: unknown key; did you mean 'num_batch_negs'?"),
    "mixed case": (changed(numUniformNegs=3), "numUniformNegs: unknown key; did you mean 'num_uniform_negs'?"),
    "a misspelt key of training": (changed(num_epoch=3), "num_epoch: unknown key; did you mean 'num_epochs'?"),
    "a key of training in a relation": (
        nested("relations", 2, lr=1),
        "relations[2].lr: only PyTorch-BigGraph's training uses this key; remove it",
    ),
    "like nothing": (changed(xyzzy=3), "xyzzy: unknown key; kgeval-dist --help-config lists all keys"),
    "not a key though a field": (
        changed(source="x"),
        "source: unknown key; kgeval-dist --help-config lists all keys",
    ),
    "misspelt in an entity type": (
        nested("entities", "tag", num_partition=1),
        "entities['tag'].num_partition: unknown key; did you mean 'num_partitions'?",
    ),
    "like nothing in an entity type": (
        nested("entities", "tag", rows=1),
        "entities['tag'].rows: unknown key; the keys here are dimension, featurized, num_partitions",
    ),
    "misspelt in a relation": (
        nested("relations", 2, wieght=1),
        "relations[2].wieght: unknown key; did you mean 'weight'?",
    ),
    "missing": (without(valid(), "checkpoint_path"), "checkpoint_path: this key is required"),
    "missing entities": (without(valid(), "entities"), "entities: this key is required"),
    "missing in an entity type": (
        without(valid(), "entities", "user", "num_partitions"),
        "entities['user'].num_partitions: this key is required",
    ),
    "missing in a relation": (without(valid(), "relations", 0, "lhs"), "relations[0].lhs: this key is required"),
}


RANGES = {
    "batch_size": (changed(batch_size=0, num_batch_negs=0), "batch_size: expected an int >= 1, got 0"),
    "num_batch_negs": (changed(num_batch_negs=-1), "num_batch_negs: expected an int >= 0, got -1"),
    "num_uniform_negs": (changed(num_uniform_negs=-2), "num_uniform_negs: expected an int >= 0, got -2"),
    "num_degree_negs": (changed(num_degree_negs=-2), "num_degree_negs: expected an int >= 0, got -2"),
    **{
        f"degree_power {power}": (
            changed(degree_power=power, num_degree_negs=1, train_paths=["known"]),
            f"degree_power: expected a number > 0 and <= 16, got {power}",
        )
        for power in (0.0, -1.5, 16.5)
    },
    "workers": (changed(workers=0), "workers: expected an int >= 1, got 0"),
    "dimension": (changed(dimension=0), "dimension: expected an int >= 1, got 0"),
    "margin": (changed(margin=-1), "margin: expected a number >= 0, got -1.0"),
    "max_norm": (changed(max_norm=0), "max_norm: expected a number > 0 or None, got 0.0"),
    "seed below": (changed(seed=-1), "seed: expected an int >= 0 and < 2**63, got -1"),
    "seed above": (changed(seed=2**63), f"seed: expected an int >= 0 and < 2**63, got {2**63}"),
    "hits_at": (changed(hits_at=[10, 0]), "hits_at[1]: expected an int >= 1, got 0"),
    "hits_at empty": (changed(hits_at=[]), "hits_at: needs at least one k"),
    "edge_paths empty": (changed(edge_paths=[]), "edge_paths: needs at least one path"),
    "relations empty": (changed(relations=[]), "relations: needs at least one relation"),
    "weight": (nested("relations", 0, weight=0), "relations[0].weight: expected a number > 0, got 0.0"),
    "name": (nested("relations", 0, name=""), "relations[0].name: the name is empty"),
    "num_partitions": (
        nested("entities", "tag", num_partitions=0),
        "entities['tag'].num_partitions: expected an int >= 1, got 0",
    ),
    "a type's dimension": (
        without(nested("entities", "tag", dimension=-4), "relations", slice(1, 3)),  # type: ignore[arg-type]
        "entities['tag'].dimension: expected an int >= 1, got -4",
    ),
}


NAMES = {
    "operator": (
        nested("relations", 1, operator="diag"),
        f"relations[1].operator: expected one of {OPERATORS}, got 'diag'",
    ),
    "comparator": (
        changed(comparator="l3"),
        f"comparator: expected one of {', '.join(COMPARATORS)}, got 'l3'",
    ),
    "loss_fn": (changed(loss_fn="hinge"), "loss_fn: expected one of logistic, ranking, softmax, got 'hinge'"),
    "candidates": (changed(candidates="every"), "candidates: expected one of sampled, partition, all, got 'every'"),
    "rank_type": (
        changed(rank_type="mean"),
        "rank_type: expected one of best, avg, average, worst, optimistic, realistic, pessimistic, got 'mean'",
    ),
    "lhs": (
        nested("relations", 0, lhs="person"),
        "relations[0].lhs: unknown entity type 'person'; entities has user, item, tag",
    ),
}


def dynamic(**values: object) -> dict[str, Any]:
    raw = changed(dynamic_relations=True, global_emb=False, **values)
    return raw | {"relations": values.get("relations", raw["relations"][:1])}


TOGETHER = {
    "unequal partition counts": (
        nested("entities", "item", num_partitions=3),
        "entities['item'].num_partitions: is 3, but entities['user'] has 4; both need the same number",
    ),
    "batch size": (
        changed(num_batch_negs=300, pbg_semantics=True, workers=1),
        "batch_size: must be a multiple of num_batch_negs (300), got 1000",
    ),
    "no candidates": (
        changed(num_batch_negs=0, num_uniform_negs=0),
        "num_batch_negs: relations[0] is ranked against sampled candidates, but num_batch_negs, "
        "num_uniform_negs and num_degree_negs are all 0; set one of them, or candidates = 'partition'",
    ),
    "global_emb by default": (
        without(dynamic(), "global_emb"),
        "global_emb: dynamic relations have no global embeddings; set global_emb = False (PBG's default is True)",
    ),
    "several dynamic relations": (
        dynamic(relations=valid()["relations"]),
        "relations: dynamic_relations = True needs exactly one entry, got 3",
    ),
    "both sides disabled": (
        changed(disable_lhs_negs=True, disable_rhs_negs=True),
        "disable_rhs_negs: disable_lhs_negs is True too, so nothing would be ranked; set one of them to False",
    ),
    "unequal dimensions": (
        without(nested("entities", "user", dimension=6), "relations", 2),
        "relations[0]: both sides must have the same dimension, but 'user' has 6 and 'item' has 8",
    ),
    "no dimension": (
        without(nested("entities", "user", dimension=8), "dimension"),
        "dimension: required key missing: these entity types set no dimension of their own: 'item', 'tag'",
    ),
    "odd dimension": (
        changed(dimension=7),
        "relations[1].operator: complex_diagonal needs an even dimension, but 'tag' has 7",
    ),
    "bias": (
        without(
            changed(entities={"user": {"num_partitions": 1}, "item": {"num_partitions": 4, "dimension": 1}}, bias=True),
            "relations",
            slice(0, 3),  # type: ignore[arg-type]
        )
        | {"relations": [{"name": "r", "lhs": "user", "rhs": "user"}]},
        "bias: the bias takes one dimension, but entities['item'] has only one; set it to False",
    ),
    "pbg_semantics": (
        changed(pbg_semantics=True),
        "workers: pbg_semantics = True needs the key workers (-p workers=N): PBG's number of workers (its default is "
        "the core count), because PBG cuts each bucket into that many slices; how many workers run here does not set "
        "it",
    ),
}


def featurized(all_negs: bool = False, **values: object) -> dict[str, Any]:
    raw = nested("entities", "tag", featurized=True) | {"num_uniform_negs": 0} | values
    raw["relations"] = [{"name": "has", "lhs": "item", "rhs": "tag", "all_negs": all_negs}]
    return raw


FEATURIZED = {
    "uniform draws": (
        featurized(num_uniform_negs=50),
        "num_uniform_negs: entity type 'tag' is featurized, so this must be 0, got 50",
    ),
    "no batch negatives": (
        featurized(num_batch_negs=0, num_uniform_negs=50, pbg_semantics=True, workers=1),
        "num_batch_negs: entity type 'tag' is featurized and has no other candidates; set it to at least 1",
    ),
    "all_negs": (
        featurized(all_negs=True),
        "relations[0].all_negs: entity type 'tag' is featurized, so use False, not True",
    ),
    "candidates": (
        featurized(candidates="partition"),
        "candidates: entity type 'tag' is featurized, so use 'sampled', not 'partition'",
    ),
}


ACCEPTED = {
    "ints for numbers, null for what is unset": changed(max_norm=1, margin=1, workers=None),
    "relations of one name": valid(),
    "a batch size with no batch negatives": changed(batch_size=7, num_batch_negs=0),
    "a batch size that only PBG's semantics use": changed(num_batch_negs=300),
    "no negatives where all compete": changed(num_batch_negs=0, num_uniform_negs=0, candidates="partition"),
    "nothing odd": valid(),
    "a type with other partitions when it has one": nested("entities", "tag", num_partitions=1),
    "dynamic relations": dynamic(),
    "own dimensions only": without(
        changed(entities={name: {"num_partitions": 1, "dimension": 4} for name in ("user", "item", "tag")}),
        "dimension",
    ),
    "featurized": featurized(),
    "featurized uniform draws, which PBG skips": featurized(num_uniform_negs=50, pbg_semantics=True, workers=2),
    "featurized on a side that is not ranked": featurized(all_negs=True, disable_rhs_negs=True),
    "a seed as large as may be": changed(seed=2**63 - 1),
    "synonyms of rank types": changed(rank_type="avg"),
}


# Who competes and what is written


def competing(**values: object) -> dict[str, Any]:
    return {
        "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
        "relations": [
            {"name": "likes", "lhs": "user", "rhs": "item"},
            {"name": "knows", "lhs": "user", "rhs": "user", "all_negs": True},
        ],
        "dimension": 8,
        "entity_path": "entity",
        "edge_paths": ["edges"],
        "checkpoint_path": "checkpoint",
        **values,
    }


def featurized_items(**values: object) -> dict[str, Any]:
    raw = competing(num_uniform_negs=0, **values)
    raw["entities"]["item"]["featurized"] = True
    del raw["relations"][1]
    return raw


PBG = {"pbg_semantics": True, "workers": 2}
ACCEPTED |= {
    "all": competing(candidates="all"),
    "all, with everything": competing(
        candidates="all",
        filter_paths=["known"],
        train_paths=["known"],
        restrict_entities=["a", "user:0:3"],
        restrict_relations=["likes"],
        head_candidates=["a"],
        tail_candidates=["b"],
        type_constraint="observed",
        precision="float64",
        save_ranks=True,
        save_topk=10,
        max_memory="1.5GB",
        sample_edges=1000,
        breakdowns=list(BREAKDOWNS),
        relation_groups="groups.json",
        time_window=0,
        time_bin=1,
    ),
    "all, of the past alone": competing(
        candidates="all",
        filter_paths=["known"],
        train_paths=["known"],
        time_window=0,
        known_until="query",
        time_bin=1,
        breakdowns=["relation", "entity_types", "groups", "time"],
        relation_groups="groups.json",
        save_topk=3,
        relation_prediction=True,
    ),
    "no breakdowns": competing(breakdowns=[]),
    "draws by degree alone": competing(num_batch_negs=0, num_uniform_negs=0, num_degree_negs=5, train_paths=["known"]),
    "groups that are not asked for": competing(relation_groups="groups.json"),
    "filters as in PBG's filtered evaluation": competing(filter_paths=["known"], candidates="partition", **PBG),
    "exact": competing(precision="exact", compute_loss=True),
    "exact, with everything": competing(
        precision="exact", candidates="all", filter_paths=["known"], save_ranks=True, save_topk=3
    ),
    "given": competing(candidate_path="given"),
    "given among all": competing(candidate_path="given", candidates="all", num_batch_negs=0, num_uniform_negs=0),
    "given and restricted": competing(candidate_path="given", restrict_entities=["a"], filter_paths=["known"]),
    "the best candidates": competing(candidates="all", save_topk=1),
    "a target": competing(target_error=0.01),
    "a target metric": competing(target_error=0.01, target_metric="tail.hits@10"),
    "featurized, some relations": featurized_items(restrict_relations=["likes"], save_ranks=True),
}


EMPTY = "empty restriction: give the name of {}, or remove the key"
MEMORY = "max_memory: expected an amount of memory such as '800MB', '1.5GB' or '2GiB', got "
METRICS = (
    "target_metric: unknown metric {}; use one of "
    + ", ".join(metric.name for metric in (*query_metrics((1, 3, 5, 10, 50)), QUERY_AUC))
    + " (k of hits_at), optionally with an enabled side and a rank type in front"
)
HAVE_BEEN_TARGETS = (  # none is lost; a new metric may come between them
    *("mean_rank", "mean_reciprocal_rank", "hits_at_1", "hits_at_3", "hits_at_5", "hits_at_10", "hits_at_50"),
    "query_auc",
)
COMPETITION = {
    "an unknown type constraint": (
        competing(type_constraint="seen", filter_paths=["known"]),
        "type_constraint: expected one of schema, observed, got 'seen'",
    ),
    "all under pbg_semantics": (
        competing(candidates="all", **PBG),
        "candidates: pbg_semantics = True does not allow 'all', because torchbiggraph_eval ranks within one partition; "
        "use 'sampled' or 'partition'",
    ),
    "exact under pbg_semantics": (
        competing(precision="exact", **PBG),
        "precision: 'exact' is not defined for pbg_semantics = True, because torchbiggraph_eval compares rounded "
        "scores; use 'float32' or 'float64'",
    ),
    "given under pbg_semantics": (
        competing(candidate_path="given", **PBG),
        "candidate_path: pbg_semantics = True does not allow given candidates; remove one of the two",
    ),
    "a sample under pbg_semantics": (
        competing(sample_edges=7, **PBG),
        "sample_edges: pbg_semantics = True does not allow sampling, because torchbiggraph_eval evaluates every edge; "
        "remove the key",
    ),
    "a target under pbg_semantics": (
        competing(target_error=0.5, **PBG),
        "target_error: pbg_semantics = True does not allow sampling, because torchbiggraph_eval evaluates every edge; "
        "remove the key",
    ),
    "the loss with all": (
        competing(candidates="all", compute_loss=True),
        "compute_loss: PBG's loss needs the candidates of one partition; set compute_loss = False",
    ),
    "the loss with given": (
        competing(candidate_path="given", compute_loss=True),
        "compute_loss: PBG's loss needs the candidates of one partition; set compute_loss = False",
    ),
    "given and sampled": (
        competing(candidate_path="given", candidates="sampled"),
        "candidates: candidate_path lists the candidates, so this must be 'all' or unset, got 'sampled'; remove one of "
        "the two",
    ),
    "given and observed": (
        competing(candidate_path="given", type_constraint="observed"),
        "type_constraint: has no effect with candidate_path, which lists all candidates; remove one of the two",
    ),
    "given and head candidates": (
        competing(candidate_path="given", head_candidates=["a"]),
        "head_candidates: does not work with candidate_path, which lists all candidates; remove one of the two",
    ),
    "no entities": (competing(restrict_entities=[]), "restrict_entities: " + EMPTY.format("an entity")),
    "no relations": (competing(restrict_relations=[]), "restrict_relations: " + EMPTY.format("a relation")),
    "no head candidates": (competing(head_candidates=[]), "head_candidates: " + EMPTY.format("an entity")),
    "no tail candidates": (competing(tail_candidates=[]), "tail_candidates: " + EMPTY.format("an entity")),
    "a blank name": (
        competing(restrict_entities=["a", " "]),
        "restrict_entities[1]: expected the name of an entity, got ' '",
    ),
    "a name that is a number": (
        competing(restrict_relations=[3]),
        "restrict_relations[0]: expected a string, got 3 (int)",
    ),
    "no edges in the sample": (competing(sample_edges=0), "sample_edges: expected an int >= 1, got 0"),
    "no error at all": (competing(target_error=0), "target_error: expected a number > 0 or None, got 0.0"),
    "a number of edges and an error": (
        competing(sample_edges=10, target_error=0.1),
        "target_error: sample_edges is set too; set the number of edges or the error to reach, not both",
    ),
    "a metric without an error": (
        competing(target_metric="mrr"),
        "target_metric: has no effect without target_error; set target_error too",
    ),
    "an unknown metric": (competing(target_error=0.1, target_metric="fame"), METRICS.format("'fame'")),
    "a metric without an interval": (competing(target_error=0.1, target_metric="auc"), METRICS.format("'auc'")),
    "a cut-off that is not computed": (competing(target_error=0.1, target_metric="hits@7"), METRICS.format("'hits@7'")),
    "a side that is not ranked": (
        competing(target_error=0.1, target_metric="head.mrr", disable_lhs_negs=True),
        METRICS.format("'head.mrr'"),
    ),
    "no candidates to keep": (competing(candidates="all", save_topk=0), "save_topk: expected an int >= 1, got 0"),
    "the best of sampled candidates": (
        competing(save_topk=3),
        "save_topk: needs candidates = 'all'; add -p candidates=all",
    ),
    "the best of given candidates": (
        competing(candidates="all", candidate_path="given", save_topk=3),
        "save_topk: does not work with candidate_path; remove one of the two",
    ),
    "an unknown breakdown": (
        competing(breakdowns=["relation", "degree"]),
        "breakdowns[1]: expected one of relation, entity_types, cardinality, relation_frequency, entity_frequency, "
        "groups, time, popularity, got 'degree'",
    ),
    "draws by degree without training edges": (
        competing(num_degree_negs=5),
        f"num_degree_negs: counts training edges; set {TRAIN_PATHS}",
    ),
    "draws by degree as PBG": (
        competing(num_degree_negs=5, train_paths=["known"], **PBG),
        "num_degree_negs: pbg_semantics = True does not allow draws by degree, because PBG has none; remove one of the"
        " two",
    ),
    **{
        f"{name} without training edges": (
            competing(breakdowns=[name], filter_paths=["known"]),
            f"breakdowns[0]: '{name}' counts training edges; set {TRAIN_PATHS}, or remove '{name}'",
        )
        for name in ("cardinality", "relation_frequency", "entity_frequency", "popularity")
    },
    "popularity without saved ranks": (
        competing(breakdowns=["popularity"], train_paths=["known"], save_ranks=False),
        "breakdowns[0]: 'popularity' follows from saved ranks; remove save_ranks = False, or remove 'popularity'",
    ),
    **{
        f"lists of the first k {name}": (competing(topk_metrics=True, **more), f"topk_metrics: {message}")
        for name, more, message in (
            (
                "with known answers",
                {"candidates": "all"},
                f"leaves known answers out of lists; set {TRAIN_PATHS}, or filter_paths to the same "
                "paths as edge_paths",
            ),
            (
                "of samples",
                {"train_paths": ["known"]},
                "needs candidates = 'all' or 'partition', or candidate_path",
            ),
            (
                "of some edges",
                {"train_paths": ["known"], "candidates": "all", "sample_edges": 3},
                "needs all edges, because a list is judged by all its answers; remove sample_edges and target_error",
            ),
            (
                "without saved ranks",
                {"train_paths": ["known"], "candidates": "all", "save_ranks": False},
                "follows from saved ranks; remove save_ranks = False",
            ),
            (
                "that change with time",
                {"train_paths": ["known"], "candidates": "all", "known_until": "query"},
                "needs lists that are the same at all times; remove known_until",
            ),
            (
                "as PBG",
                {"train_paths": ["known"], **PBG, "candidates": "partition"},
                "needs pbg_semantics = False, because in PBG the true entity competes with itself",
            ),
        )
    },
    "entities observed in the future": (
        competing(filter_paths=["known"], known_until="query", type_constraint="observed"),
        "type_constraint: 'observed' takes entities from known edges of all times, also of those later than a query; "
        "use 'schema', or remove known_until",
    ),
    "draws by degrees of the future": (
        competing(train_paths=["known"], known_until="query", num_degree_negs=2),
        "num_degree_negs: counts training edges of all times, also of those later than a query; remove "
        "num_degree_negs, or remove known_until",
    ),
    **{
        f"{name} of the future": (
            competing(train_paths=["known"], known_until="query", breakdowns=["relation", name]),
            f"breakdowns[1]: '{name}' counts training edges of all times, also of those later than a query; remove "
            f"'{name}', or remove known_until",
        )
        for name in ("cardinality", "relation_frequency", "entity_frequency", "popularity")
    },
    "groups without a file": (
        competing(breakdowns=["groups"]),
        "breakdowns[0]: 'groups' needs relation_groups; set it, or remove 'groups'",
    ),
    **{
        f"memory {text!r}": (competing(max_memory=text), f"{MEMORY}{text!r}")
        for text in ("", "much", "-1GB", "1.GB", "1e9", "1 XB", "GB", "1.5GBs", "٣GB", "nan")
    },
    **{
        f"memory {text}": (
            competing(max_memory=text),
            f"max_memory: expected an amount of memory from 1 byte to 2**63 - 1 bytes, got '{text}'",
        )
        for text in ("0", "0.0GB", "0.4B", "99999999TiB")
    },
    "memory as a number": (competing(max_memory=10), "max_memory: expected a string, got 10 (int)"),
    "featurized, all": (
        featurized_items(candidates="all"),
        "candidates: entity type 'item' is featurized, so use 'sampled', not 'all'",
    ),
    **{
        f"featurized, {key}": (
            featurized_items(**{key: value}),
            f"{key}: entity type 'item' is featurized, so its entities have no ids; remove the key",
        )
        for key, value in (
            ("filter_paths", ["known"]),
            ("train_paths", ["known"]),
            ("candidate_path", "given"),
            ("restrict_entities", ["a"]),
            ("head_candidates", ["a"]),
            ("tail_candidates", ["a"]),
            ("type_constraint", "observed"),
        )
    },
}


ROWS = [
    (f"{where}: {name}", *row)
    for where, table in (
        ("wrong types", WRONG_TYPES),
        ("keys", UNKNOWN_OR_MISSING),
        ("ranges", RANGES),
        ("names", NAMES),
        ("together", TOGETHER),
        ("featurized", FEATURIZED),
        ("competition", COMPETITION),
    )
    for name, row in table.items()
]


@pytest.mark.parametrize(("raw", "fault"), [pytest.param(raw, fault, id=name) for name, raw, fault in ROWS])
def test_what_makes_no_sense_is_one_line(folder: Path, raw: dict[str, Any], fault: str) -> None:
    assert [f"eval.json: {fault}"] == [line.replace(str(folder), "{folder}") for line in faults_of(folder, raw)]


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED)
def test_what_makes_sense_is_accepted(folder: Path, raw: dict[str, Any]) -> None:
    assert faults_of(folder, raw) == []


def test_no_metric_that_could_be_a_target_is_lost() -> None:
    listed = METRICS.partition("use one of ")[2].partition(" (k of")[0].split(", ")

    assert [name for name in listed if name in HAVE_BEEN_TARGETS] == [*HAVE_BEEN_TARGETS]


def test_all_faults_come_at_once_and_none_hides_another(folder: Path) -> None:
    raw = valid()
    raw |= {"num_batch_neg": 3, "batch_size": "many", "comparator": "l3", "edge_paths": ["edges", "absent"]}
    raw["entities"]["item"]["num_partitions"] = 3
    raw["relations"][0] |= {"weight": "heavy", "operator": "diag"}
    raw["relations"][1] |= {"lhs": "person"}

    assert sorted(
        [
            "eval.json: num_batch_neg: unknown key; did you mean 'num_batch_negs'?",
            "eval.json: batch_size: expected an int, got 'many' (str)",
            f"eval.json: comparator: expected one of {', '.join(COMPARATORS)}, got 'l3'",
            "eval.json: entities['item'].num_partitions: is 3, but entities['user'] has 4; both need the same number",
            "eval.json: relations[0].weight: expected a number, got 'heavy' (str)",
            f"eval.json: relations[0].operator: expected one of {OPERATORS}, got 'diag'",
            "eval.json: relations[1].lhs: unknown entity type 'person'; entities has user, item, tag",
            f"eval.json: edge_paths[1]: no such directory: {folder}/absent (absent, relative to the working directory)",
            "-p dimension=a: expected an int, got 'a' (str)",
            "-p nothing: expected KEY=VALUE, for example -p candidates=all",
        ]
    ) == sorted(faults_of(folder, raw, "dimension=a", "nothing"))


def test_a_fault_is_not_reported_again_by_its_consequences(folder: Path) -> None:
    assert faults_of(
        folder,
        changed(
            entities={"user": {"num_partitions": "4"}, "item": 7},
            relations=[valid()["relations"][0], 0],
            entity_path=5,
            num_batch_negs=None,
            num_uniform_negs=0,
        ),
    ) == [
        "eval.json: entities['user'].num_partitions: expected an int, got '4' (str)",
        "eval.json: entities['item']: expected a dict with the keys num_partitions, featurized, dimension, got 7 (int)",
        "eval.json: relations[1]: expected a dict with the keys name, lhs, rhs, weight, operator, all_negs, "
        "got 0 (int)",
        "eval.json: entity_path: expected a string, got 5 (int)",
        "eval.json: num_batch_negs: expected an int, got None",
    ]


VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(40))
@given(key=st.sampled_from([field.name for field in attrs.fields(EvalConfig)]), value=VALUES)
def test_any_value_of_any_key_gives_a_config_or_lines_and_never_another_exception(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    for name in ("entity", "edges", "checkpoint"):
        (folder / name).mkdir(parents=True, exist_ok=True)

    for raw in (
        changed(**{key: value}),
        nested("relations", 1, lhs=value, weight=value),
        changed(relations=[value]),
        changed(entities={"user": value, "item": {"num_partitions": value}}),
    ):
        faults_of(folder, raw)


@pytest.mark.parametrize("text", ODD_JSON, ids=lambda text: text[:12])
@pytest.mark.parametrize("key", ["seed", "edge_paths", "entities", "relations", "comparator"])
def test_odd_json_is_refused_too(folder: Path, key: str, text: str) -> None:
    (folder / "eval.json").write_text(json.dumps(changed(**{key: "@"})).replace('"@"', text))

    assert refusals.faults_of(lambda: load_config(folder / "eval.json"), ConfigError)


# Paths and groups


WORKING = "relative to the working directory"
PLACES = [
    *(
        row
        for key in ("filter_paths", "train_paths")
        for row in (
            ({key: ["known", "{folder}/edges"]}, [], {key: ["{folder}/known", "{folder}/edges"]}),
            (
                {key: ["known", "groups.json"]},
                [],
                f"eval.json: {key}[1]: {{folder}}/groups.json (groups.json, {WORKING}): unknown extension '.json'; "
                "edges are read from .tsv, .txt, .del, .csv (also with .gz or .zst) and .parquet",
            ),
            (
                {key: ["edges.hdf5"]},
                [],
                f"eval.json: {key}[0]: {{folder}}/edges.hdf5 (edges.hdf5, {WORKING}): unknown extension '.hdf5'; "
                "write edges of one HDF5 file as .parquet",
            ),
            (
                {},
                [f"{key}=nowhere"],
                f"-p {key}=nowhere: {key}[0]: no such directory: {{folder}}/nowhere (nowhere, {WORKING})",
            ),
            (
                {key: ["knwon"]},
                [],
                f"eval.json: {key}[0]: no such directory: {{folder}}/knwon (knwon, {WORKING}); did you mean 'known'?",
            ),
        )
    ),
    ({"candidate_path": "given"}, [], {"candidate_path": "{folder}/given"}),
    ({"relation_groups": "groups.json"}, [], {"relation_groups": "{folder}/groups.json"}),
    (
        {"candidate_path": "groups.json"},
        [],
        f"eval.json: candidate_path: {{folder}}/groups.json (groups.json, {WORKING}) is not a directory",
    ),
    (
        {"relation_groups": "given"},
        [],
        f"eval.json: relation_groups: {{folder}}/given (given, {WORKING}) is not a file",
    ),
    ({"relation_groups": ""}, [], "eval.json: relation_groups: expected the path of a file, got ''"),
    # An override is blamed for what it makes wrong.
    (
        {"candidates": "all", "workers": 1},
        ["pbg_semantics=True"],
        "-p pbg_semantics=True: candidates: pbg_semantics = True does not allow 'all', because ",
    ),
    (
        {},
        ["restrict_entities.3=x"],
        "-p restrict_entities.3=x: restrict_entities is not set by the config file, or has the wrong form",
    ),
    ({"restrict_entities": []}, ["restrict_entities=user:0:1,user:1:1"], {}),
    ({"restrict_entities": []}, ["restrict_entities=none"], {}),
]


@pytest.mark.parametrize(("settings", "overrides", "expected"), PLACES)
def test_paths_are_found_and_overrides_blamed(
    folder: Path, settings: dict[str, Any], overrides: list[str], expected: str | dict[str, Any]
) -> None:
    (folder / "edges.hdf5").touch()
    raw = json.loads(json.dumps(competing(**settings)).replace("{folder}", str(folder)))
    faults = [fault.replace(str(folder), "{folder}") for fault in faults_of(folder, raw, *overrides)]

    if isinstance(expected, str):
        assert [fault[: len(expected)] if "because" in expected else fault for fault in faults] == [expected]
    else:
        found = attrs.asdict(load_config("eval.json", overrides))
        assert {key: found[key] for key in expected} == json.loads(
            json.dumps(expected).replace("{folder}", str(folder))
        )


FORM = 'expected a JSON object such as {"family": ["parent_of", "child_of"]}, got '
GROUPS = {
    "not JSON": ("{", ":1:2: not valid JSON: Expecting property name enclosed in double quotes"),
    "not text": (
        b"\xff\xfe",
        ": not valid JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    "a list": ('["likes"]', f": {FORM}['likes']"),
    "no group": ("{}", f": {FORM}" + "{}"),
    "a name for a list": ('{"a": "likes"}', ": group 'a': expected a list of names of relations, got 'likes' (str)"),
    "an empty group": ('{"a": []}', ": group 'a': needs at least one relation"),
    "a number": ('{"a": ["likes", 1]}', ": group 'a': element 1: expected the name of a relation, got 1 (int)"),
    "a group twice": ('{"a": ["x"], "a": ["y"]}', ": not valid JSON: the name 'a' occurs 2 times"),
}


@pytest.mark.parametrize(("content", "fault"), GROUPS.values(), ids=GROUPS.keys())
def test_a_file_of_groups_in_another_form_is_refused(folder: Path, content: str | bytes, fault: str) -> None:
    path = folder / "wrong.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    assert [f"eval.json: relation_groups: {path}{fault}"] == faults_of(folder, competing(relation_groups="wrong.json"))
    assert f"{path}{fault}" == refusals.fault_of(lambda: read_relation_groups(path))


def test_groups_are_read_with_their_relations_and_may_overlap(folder: Path) -> None:
    assert read_relation_groups(folder / "groups.json") == {"social": ["knows"], "all of them": ["knows", "likes"]}
    assert "cannot read the file: Is a directory" in refusals.fault_of(lambda: read_relation_groups(folder))
