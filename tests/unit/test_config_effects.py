"""Keys without effect: the table has every key, each of its rows is true, and what is ignored is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from attrs import evolve

from pbgeval import EvalConfig, Report, edge_scorer, evaluate, evaluate_triples, load_config
from pbgeval.config.effects import NEEDS, Answer, Need, warnings_without_effect
from pbgeval.config.explain import explained_keys
from pbgeval.config.schema import EntitySchema, keys_of
from pbgeval.notation import Bucket
from tests.kit.case import TinyCase
from tests.kit.commands import flags, run_command
from tests.kit.refusals import fault_of
from tests.unit.test_storage_candidates import write as write_candidates

GIVEN = {"candidate_path": "given", "candidates": "all"}
KNOWN = {"train_paths": ["edges"]}
# Of each row of `NEEDS`: a value, and settings that leave the key without effect.
CASES: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("dictionary_path", "names a file", "entity", {}),
    ("edge_columns", "names a file", "trh", {}),
    ("edge_delimiter", "names a file", "|", {}),
    ("edge_comment", "names a file", "#", {}),
    ("dimension", "every entity type", 5, {"entities": "own dimensions", "dimension": None}),
    ("model_options", "without model", {"norm": 1}, {}),
    ("trust_pickle", "without model", True, {}),
    ("num_batch_negs", "no relation", 7, {"candidates": "all"}),
    ("num_uniform_negs", "no relation", 7, {"candidates": "partition"}),
    ("num_degree_negs", "no relation", 7, {"candidates": "all", **KNOWN}),
    ("degree_power", "num_degree_negs", 2.0, {"candidates": "sampled", **KNOWN}),
    ("loss_fn", "compute_loss", "softmax", {}),
    ("margin", "ranking loss", 0.7, {"compute_loss": True, "loss_fn": "softmax", "candidates": "sampled"}),
    ("batch_size", "pbg_semantics", 5, {}),
    ("time_window", "known edges", 0, {"candidates": "partition"}),
    ("known_until", "known edges", "query", {"candidates": "all"}),
    ("head_candidates", "head queries", ["user:0:1"], {"candidates": "all", "disable_lhs_negs": True}),
    ("tail_candidates", "tail queries", ["user:0:1"], {"candidates": "sampled", "disable_rhs_negs": True}),
    ("type_constraint", "candidate_path", "observed", {**GIVEN, **KNOWN}),
    ("type_constraint", "known edges", "observed", {"candidates": "all"}),
    ("target_metric", "target_error", "mean_rank", {"candidates": "all"}),
    ("scratch_path", "URL", "entity", {}),
    ("scratch_limit", "URL", "1GB", {}),
    ("time_bin", "breakdowns", 3, {}),
    ("relation_groups", "breakdowns", "groups.json", {}),
    ("relations.weight", "compute_loss", 0.25, {"candidates": "sampled"}),
    ("relations.all_negs", "candidates is set", True, {"candidates": "sampled"}),
]


def need_of(key: str, reason: str) -> Need:
    (need,) = [need for need in NEEDS if need.key == key and reason in need.reason]
    return need


# Keys that have an effect by themselves. Values of theirs that do not go together are refused elsewhere.
ALWAYS = frozenset(
    {
        *("unknown", "entities", "relations", "entity_path", "edge_paths", "dynamic_relations", "checkpoint_path"),
        *("max_norm", "global_emb", "comparator", "bias", "model"),
        *("candidates", "disable_lhs_negs", "disable_rhs_negs", "relation_prediction", "seed", "rank_type", "hits_at"),
        *("compute_loss", "pbg_semantics", "workers", "filter_paths", "train_paths"),
        *("restrict_entities", "restrict_relations", "candidate_path", "precision", "sample_edges", "target_error"),
        *("max_memory", "metrics", "preset", "breakdowns", "topk_metrics", "save_ranks", "save_topk"),
        "sinks",
        *(f"entities.{key}" for key in keys_of(EntitySchema)),
        *(f"relations.{key}" for key in ("name", "lhs", "rhs", "operator")),
    }
)


def test_every_key_is_in_the_table_or_has_an_effect_by_itself() -> None:
    keys = {
        key.name.replace("entities.NAME", "entities").replace("relations.INDEX", "relations"): key
        for key in explained_keys()
    }

    assert ALWAYS | {need.key for need in NEEDS} == keys.keys()
    assert not ALWAYS & {need.key for need in NEEDS}
    assert [need_of(key, reason) for key, reason, *_ in CASES] == [*NEEDS]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """Ranks that tie, times, and lists of candidates; all settings are defaults."""
    case = TinyCase.write(tmp_path_factory.mktemp("case"), dynamic=True, partition_sizes=(9,), edges_per_bucket=20)
    with h5py.File(case.edges(0, 0), "r+") as file:
        file["time"] = np.arange(20, dtype=np.int32) % 4
    case.spoil_embeddings("user", 0, slice(0, 3), 0.5)
    write_candidates(
        case.root / "given", Bucket(0, 0), head=np.tile(np.arange(5), (20, 1)), tail=np.tile(np.arange(4), (20, 1))
    )
    (case.root / "groups.json").write_text(json.dumps({"some": ["rel:0"]}))
    usual = {"num_batch_negs": 50, "num_uniform_negs": 50, "batch_size": 1000}
    case.write_config(**usual)
    return case


def changed(case: TinyCase, settings: Mapping[str, Any]) -> EvalConfig:
    """Change a config without a check: as if a key without effect were accepted."""
    config = load_config(case.config)
    keys = dict(settings)
    if keys.get("entities") == "own dimensions":
        keys["entities"] = {name: evolve(of, dimension=config.dimension) for name, of in config.entities.items()}
    of_relations = {key.partition(".")[2]: keys.pop(key) for key in [*keys] if key.startswith("relations.")}
    if of_relations:
        keys["relations"] = [evolve(relation, **of_relations) for relation in config.relations]
    for key in ("train_paths", "candidate_path", "dictionary_path", "scratch_path", "relation_groups"):
        if key in keys:
            value = keys[key]
            keys[key] = [str(case.root / of) for of in value] if isinstance(value, list) else str(case.root / value)
    return evolve(config, **keys)


def figures(report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    # A window without known edges has a section of its own, in which nothing is filtered; edges are told by times.
    left_out = ("provenance", "run", "time_filtered_metrics", "edge_diagnostics")
    document = {key: value for key, value in report.document.items() if key not in left_out}
    return document, {name: [*map(dict, rows)] for name, rows in report.rows.items()}


@pytest.fixture(scope="module")
def figures_with(case: TinyCase, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], Any]:
    """The figures with some settings; those that many keys are tried beside are evaluated once."""
    kept: dict[str, Any] = {}

    def found(settings: Mapping[str, Any]) -> Any:
        name = repr(settings)
        if name not in kept:
            output = tmp_path_factory.mktemp("output") / "results"
            with mock.patch(
                "pbgeval.evaluation.check_config", lambda config: config
            ):  # it refuses keys that have no effect
                kept[name] = figures(evaluate(changed(case, settings), output=output, workers=1, device="cpu"))
        return kept[name]

    return found


@pytest.mark.parametrize(("key", "reason", "value", "settings"), CASES, ids=[" ".join(row[:2]) for row in CASES])
def test_a_key_of_the_table_changes_no_figure(
    key: str, reason: str, value: Any, settings: dict[str, Any], case: TinyCase, figures_with: Callable[..., Any]
) -> None:
    need, without = need_of(key, reason), changed(case, settings)
    config = changed(case, settings | {key: value})
    found = figures_with(settings), figures_with(settings | {key: value})

    assert (need.lacks(without), need.lacks(config)) == (False, True)
    # What is observed without known edges is the evaluated edges' own entities: the lists are short, the figures high.
    is_misleading = (key, need.reason) == ("type_constraint", "without known edges")
    assert (found[0] == found[1]) == (not is_misleading)


REFUSED = [row for row in CASES if need_of(*row[:2]).answer is Answer.REFUSED]


@pytest.mark.parametrize(("key", "reason", "value", "settings"), REFUSED, ids=[" ".join(row[:2]) for row in REFUSED])
def test_what_would_seem_to_shape_figures_is_refused(
    key: str, reason: str, value: Any, settings: dict[str, Any], case: TinyCase
) -> None:
    need = need_of(key, reason)
    raw = case.settings | {"num_batch_negs": 5, **settings, key: value}
    path = case.root / "refused.json"
    path.write_text(json.dumps(raw))

    fault = fault_of(lambda: load_config(path))
    assert fault == f"refused.json: {key}: has no effect {need.reason}; {need.advice}"


def test_what_is_harmless_is_warned_of_and_keys_of_training_are_named_in_one_line(
    case: TinyCase, tmp_path: Path
) -> None:
    asked = ("time_bin=3", "relation_groups=groups.json", "scratch_limit=1GB", f"scratch_path={tmp_path}", "margin=0.5")
    asked += ("num_uniform_negs=7", "candidates=all", "trust_pickle=True")
    done = run_command(case, "--workers", "1", "--output", str(tmp_path / "out"), *flags(asked))

    assert [line for line in sorted(done.warnings) if line.startswith("eval.py: ")] == [
        "eval.py: keys without effect on this evaluation: num_uniform_negs, margin",
        "eval.py: relation_groups has no effect without 'groups' in breakdowns",
        "eval.py: scratch_path and scratch_limit have no effect where no path is a URL",
        "eval.py: time_bin has no effect without 'time' in breakdowns",
        "eval.py: trust_pickle has no effect without model",
    ]


def test_what_a_file_of_pbg_sets_for_training_is_named_only_with_keys_of_training(
    case: TinyCase, tmp_path: Path
) -> None:
    shared = {"num_batch_negs": 5, "num_uniform_negs": 50, "batch_size": 10, "candidates": "all"}
    lines = []
    for name, keys in (("shared", shared), ("with training", shared | {"lr": 0.1})):
        path = case.root / f"{name}.json"
        path.write_text(json.dumps(case.settings | keys))
        for overrides in ([], ["batch_size=20"]):
            lines.append([*warnings_without_effect(load_config(path, overrides))])
    config = EvalConfig(entities={}, relations=[], candidates="all", batch_size=7)
    ignored = "keys without effect on this evaluation"

    assert lines == [
        [],
        [f"shared.json: {ignored}: batch_size"],
        *[[f"with training.json: {ignored}: num_batch_negs, batch_size, lr"]] * 2,
    ]
    assert [*warnings_without_effect(config)] == [f"config: {ignored}: batch_size"]


def test_keys_with_an_effect_are_not_warned_of(case: TinyCase, tmp_path: Path) -> None:
    asked = ("breakdowns=time,groups", "time_bin=3", "relation_groups=groups.json", "num_uniform_negs=7")
    asked += ("compute_loss=True", "margin=0.5", "candidates=sampled", "pbg_semantics=True", "batch_size=50")
    done = run_command(case, "--workers", "1", "--output", str(tmp_path / "out"), *flags(asked))

    assert [line for line in done.warnings if line.startswith("eval.py: ")] == []


def test_options_of_a_model_in_memory_are_refused_too() -> None:
    scorer = edge_scorer(lambda lhs, rel, rhs: (lhs * 0 + rhs).float(), num_entities=5, num_relations=1)

    fault = fault_of(lambda: evaluate_triples(scorer, [[0, 0, 2]], model_options={"norm": 1}))
    assert fault == "model_options: has no effect without model; set model, or remove the key"
