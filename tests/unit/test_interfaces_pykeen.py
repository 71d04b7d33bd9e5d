"""Evaluations called as PyKEEN's are: every figure by its keys against the slow reference."""

from __future__ import annotations

import importlib
import math
import random
import re
import sys
import warnings
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import attrs
import pandas
import pytest
import torch

from pbgeval import Report
from pbgeval.errors import EvalError
from pbgeval.integrations.pykeen import RankBasedEvaluator
from pbgeval.metrics.registry import known_rank_metrics, metric_key
from pbgeval.models.pykeen import ROWS_COMPARED, pykeen_scorer
from pbgeval.notation import ENDS
from pbgeval.scoring.block_scorer import ScorerComparator, ScorerRelation, scorer_state
from tests import rank_metrics_reference
from tests.kit.commands import run_main
from tests.pykeen_models import (
    NUM_ENTITIES,
    NUM_RELATIONS,
    ClampedInteraction,
    Diagonal,
    WithInverses,
    slow_score,
    with_vectors,
)
from tests.rank_metrics_reference import Queries
from tests.reference import rank_by_sorting
from tests.saved_ranks import counts_of

pytestmark = pytest.mark.filterwarnings("ignore:filtered only by the evaluated edges")

CUTOFFS = (1, 3, 10)  # the reference has these
DRAW = random.Random(11)
TRIPLES = [
    (DRAW.randrange(NUM_ENTITIES), DRAW.randrange(NUM_RELATIONS), DRAW.randrange(NUM_ENTITIES)) for _ in range(90)
]
TEST, VALID, TRAIN = [*TRIPLES[:25], *TRIPLES[:2]], TRIPLES[25:40], TRIPLES[40:]
CHOSEN_ENTITIES, CHOSEN_RELATIONS = set(range(0, NUM_ENTITIES, 2)) | {17, 19}, {0, 2}


def factory(triples, **more):
    """What a triples factory has that we ask for."""
    return SimpleNamespace(mapped_triples=torch.tensor(triples), num_entities=NUM_ENTITIES, **more)


def queries_of(side, triples, known, entities, macro):
    """Every query of a side ranked by sorting: (optimistic, pessimistic, candidates, weight)."""
    keys = Counter((r, t) if side == "head" else (h, r) for h, r, t in triples)
    for h, r, t in triples:
        true = h if side == "head" else t
        others = [
            edge
            for other in entities
            if other != true and (edge := (other, r, t) if side == "head" else (h, r, other)) not in known
        ]
        best, worst = rank_by_sorting(slow_score(h, r, t), [slow_score(*edge) for edge in others])
        weight = keys[(r, t) if side == "head" else (h, r)] if macro else 1
        yield best, worst, len(others) + 1, weight


def expected_figures(triples, known, entities=range(NUM_ENTITIES), macro=False, sides=("head", "tail")):
    """Every figure by PyKEEN's keys."""
    by_side = {side: list(queries_of(side, triples, known, entities, macro)) for side in sides}
    by_side["both"] = [query for side in sides for query in by_side[side]]
    figures = {}
    for side, queries in by_side.items():
        for rank_type, rank_of in (
            ("optimistic", lambda best, worst: best),
            ("realistic", lambda best, worst: (best + worst) / 2),
            ("pessimistic", lambda best, worst: worst),
        ):
            ranks, sizes = [rank_of(best, worst) for best, worst, _, _ in queries], [size for _, _, size, _ in queries]
            common = math.lcm(*(times for *_, times in queries))
            reference = Queries(ranks, sizes, [common // times for *_, times in queries] if macro else None)
            for name in [metric.name for metric in known_rank_metrics(CUTOFFS)]:
                figures[f"{side}.{rank_type}.{name}"] = rank_metrics_reference.value(name, reference)
    return figures


def assert_equal_figures(expected, results):
    found = results.to_flat_dict()
    assert len(found) == 9 * 30
    for key, value in found.items():
        side, rank_type, name = key.split(".")
        ours = name[:-1] + "10" if name.endswith("_at_k") else metric_key(name)
        # Sums are rounded once to fixed point and once more in the closed form; z scores divide by a deviation.
        assert expected[f"{side}.{rank_type}.{ours}"] == pytest.approx(value, rel=1e-9, abs=1e-9), key


OTHERS = [factory(TRAIN), torch.tensor(VALID)]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("options", "triples", "others", "known"),
    [
        ({}, factory(TEST), OTHERS, {*TEST, *TRAIN, *VALID}),
        ({"macro": True}, factory(TEST), OTHERS, {*TEST, *TRAIN, *VALID}),
        ({}, TEST, None, set(TEST)),  # evaluated triples are known without any others
        ({"filtered": False}, torch.tensor(TEST), TRAIN, set()),  # PyKEEN 1.11.1 ends with an error here
    ],
    ids=["filtered", "macro", "by themselves", "raw"],
)
def test_figures_are_those_of_the_slow_reference(options, triples, others, known):
    results = RankBasedEvaluator(**options, hits_at=CUTOFFS).evaluate(
        Diagonal(), triples, additional_filter_triples=others, batch_size=7
    )

    assert ("filtered" if known else "raw") == results.report.document["filter"]
    assert_equal_figures(expected_figures(TEST, known, macro=options.get("macro", False)), results)


def test_a_filter_of_the_evaluated_triples_alone_is_warned_of():
    with pytest.warns(UserWarning, match=r"^filtered only by the evaluated edges; pass additional_filter_triples=\["):
        RankBasedEvaluator().evaluate(Diagonal(), TEST)


@pytest.mark.parametrize(
    ("filtered", "arguments"),
    [
        (True, {"additional_filter_triples": [TRAIN, VALID]}),
        (True, {"additional_filter_triples": []}),
        (True, {"training": TRAIN}),
        (False, {}),
    ],
)
def test_a_filter_that_was_chosen_is_not_warned_of(filtered, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RankBasedEvaluator(filtered).evaluate(Diagonal(), TEST, **arguments)


@pytest.mark.parametrize("by_label", [False, True])
def test_a_whitelist_drops_triples_and_candidates(by_label):
    labels = {"entity_to_id": {f"e{i}": i for i in range(NUM_ENTITIES)}}
    labels["relation_to_id"] = {f"r{i}": i for i in range(NUM_RELATIONS)}
    entities = [f"e{i}" for i in CHOSEN_ENTITIES] if by_label else torch.tensor(sorted(CHOSEN_ENTITIES))
    relations = [f"r{i}" for i in CHOSEN_RELATIONS] if by_label else CHOSEN_RELATIONS

    results = RankBasedEvaluator(hits_at=CUTOFFS).evaluate(
        Diagonal(),
        factory(TEST, **labels),
        training=factory(TRAIN, **labels),
        restrict_entities_to=entities,
        restrict_relations_to=relations,
    )

    left = [(h, r, t) for h, r, t in TEST if {h, t} <= CHOSEN_ENTITIES and r in CHOSEN_RELATIONS]
    assert 0 < len(left) < len(TEST)
    assert_equal_figures(expected_figures(left, {*TEST, *TRAIN}, CHOSEN_ENTITIES), results)


def test_one_target_is_one_side():
    results = RankBasedEvaluator(hits_at=CUTOFFS).evaluate(Diagonal(), TEST, targets=["tail"])

    expected = expected_figures(TEST, set(TEST), sides=("tail",))
    assert set(results.to_dict()) == {"tail", "both"}
    assert results.get_metric("pessimistic.mr") == expected["both.pessimistic.mean_rank"]


def test_results_have_the_keys_and_shapes_of_pykeen():
    results = RankBasedEvaluator().evaluate(Diagonal(), TEST)

    flat, frame, report = results.to_flat_dict(), results.to_df(), results.report

    assert 9 * (19 + 3 * 4 + 2) == len(flat) == len(frame)
    assert list(frame.columns) == ["Side", "Rank_type", "Metric", "Value"]
    assert flat == {f"{row.Side}.{row.Rank_type}.{row.Metric}": row.Value for row in frame.itertuples()}
    assert flat["head.optimistic.hits_at_5"] == results.to_dict()["head"]["optimistic"]["hits_at_5"]
    for theirs, others, ours in (
        ("inverse_harmonic_mean_rank", "mrr", "mrr"),
        ("adjusted_hits_at_k", "adjusted_hits_at_k", "adjusted_hits@10"),
        ("adjusted_hits_at_3", "adjusted_hits@3", "adjusted_hits@3"),
    ):
        assert flat[f"both.realistic.{theirs}"] == results.get_metric(others) == report[ours]
    mrr = f"inverse_harmonic_mean_rank={report['mrr']:.4f}, hits_at_1={report['hits@1']:.4f}, "
    assert re.fullmatch(rf"RankBasedMetricResults\({mrr}.*, {len(flat)} figures in all\)", repr(results))
    with pytest.raises(KeyError, match="no metric 'mmr'"):
        results.get_metric("mmr")


@pytest.mark.parametrize("macro", [False, True])
def test_the_report_itself_gives_the_frame_of_pykeen(tmp_path, macro):
    results = RankBasedEvaluator(hits_at=(1, 7), output=tmp_path / "out").evaluate(Diagonal(), TEST)
    figures = results.report.document["macro_metrics" if macro else "metrics"]
    expected = attrs.evolve(results, figures=figures).to_df()

    for report in (results.report, Report.read(tmp_path / "out")):
        pandas.testing.assert_frame_equal(expected, report.to_df(macro=macro))


@pytest.mark.parametrize("model", [Diagonal(), with_vectors(Diagonal())], ids=["scores", "vectors"])
def test_an_output_has_the_last_result_of_its_evaluator_and_nobody_else_s(model, tmp_path):
    """As a pipeline does, whose stopper asks for figures of one model after another."""
    output = tmp_path / "out"
    evaluator = RankBasedEvaluator(output=output)
    for triples in (VALID, TEST[:9], TEST):
        results = evaluator.evaluate(model, triples)
        assert (Report.read(output).document["num_edges"], results.report.path) == (len(triples), output)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}

    RankBasedEvaluator(output=output, overwrite=True).evaluate(model, VALID)  # somebody else's result is there now
    with pytest.raises(EvalError, match="found the output of another"):
        evaluator.evaluate(model, TEST[:3])


def test_a_new_evaluator_refuses_a_folder_with_a_result_before_anything_is_trained(tmp_path):
    output, other = tmp_path / "out", tmp_path / "other"
    RankBasedEvaluator(output=output).evaluate(Diagonal(), TEST)
    other.mkdir()
    (other / "thesis.txt").write_text("mine")

    with pytest.raises(EvalError, match=r"out: this folder has the result .* overwrite=True\) to replace it"):
        RankBasedEvaluator(output=output)
    for overwrite in (False, True):
        with pytest.raises(EvalError, match=r"expected an empty directory or one of an earlier run, found thesis\.txt"):
            RankBasedEvaluator(output=other, overwrite=overwrite)
    evaluator = RankBasedEvaluator(output=output, overwrite=True)
    assert Report.read(output).document["num_edges"] == len(TEST)  # it is there until another replaces it
    evaluator.evaluate(Diagonal(), VALID)
    assert Report.read(output).document["num_edges"] == len(VALID)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"settings": {"save_tpok": 5}}, "save_tpok: unknown key; did you mean 'save_topk'"),
        ({"settings": {"save_topk": 5}}, "save_topk: give output="),
        ({"settings": {"sinks": ["tensorboard"]}}, "sinks: give output="),
        ({"settings": {"relation_groups": "no.json"}}, "relation_groups: .*no.json"),
        ({"hits_at": (0,)}, r"hits_at\[0\]: expected an int >= 1, got 0"),
        ({"metrics": ["mmr"]}, "metrics.*mmr"),
        ({"device": "gpu"}, "device: expected auto, cpu or cuda, got 'gpu'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_trained(arguments, fault):
    with pytest.raises(EvalError, match=fault):
        RankBasedEvaluator(**arguments)


@pytest.mark.parametrize(
    "settings",
    [{"precision": "exact"}, {"precision": "float32"}, {"type_constraint": "observed"}, {"relation_prediction": True}],
)
def test_settings_that_only_some_models_or_edges_allow_are_not_refused_early(settings):
    RankBasedEvaluator(settings=settings)


def test_a_report_without_macro_averages_says_so():
    report = RankBasedEvaluator().evaluate(Diagonal(), TEST).report

    with pytest.raises(EvalError, match="macro_metrics: this report has none, because query keys were not counted"):
        Report({**report.document, "macro_metrics": None}).to_df(macro=True)


def test_what_is_undefined_is_not_a_number():
    results = RankBasedEvaluator().evaluate(Diagonal(), torch.empty((0, 3), dtype=torch.int64))

    assert results.get_metric("count") == 0
    assert math.isnan(results.to_flat_dict()["both.realistic.arithmetic_mean_rank"])


@pytest.mark.parametrize("add_defaults", [False, True])
def test_arguments_of_pykeen_s_evaluator_and_settings_of_ours_are_taken(tmp_path, add_defaults):
    output = tmp_path / "out"
    evaluator = RankBasedEvaluator(
        ks=(2,), metrics=["hits@2", "f1"], add_defaults=add_defaults, settings={"save_ranks": True}, output=output
    )

    results = evaluator.evaluate(
        Diagonal(), TEST, device="cpu", use_tqdm=False, tqdm_kwargs={}, pre_filtered_triples=True
    )

    asked = ("both.realistic.hits_at_2", "both.f1_score", "both.realistic.mean_rank", "both.realistic.hits_at_10")
    assert [name in results.report.document["metrics"] for name in asked] == [True, True, add_defaults, False]
    assert (output / "ranks").is_dir()
    assert results.report["hits@2"] == results.to_flat_dict()["both.realistic.hits_at_2"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"targets": ["relation"]}, r"targets: expected head or tail, .*, got \['relation'\]"),
        ({"targets": []}, "targets: expected head or tail"),
        ({"use_tdqm": False}, "evaluate: unknown argument use_tdqm"),
        ({"restrict_entities_to": ["x"]}, "restrict_entities_to: expected ids, or labels of .*, got 'x'"),
        ({"restrict_entities_to": []}, "restrict_entities: empty restriction"),
        ({"restrict_entities_to": [23]}, "row out of range in 'all:0:23': expected 0 to 22"),
        ({"restrict_relations_to": [3]}, "restrict_relations: .*3"),
        ({"additional_filter_triples": [[(0, 0, 23)]]}, r"known edges: row 0, tail: expected an id in 0..22"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments, fault):
    with pytest.raises(EvalError, match=fault):
        RankBasedEvaluator().evaluate(Diagonal(), TEST, **arguments)


def test_an_inductive_model_needs_a_factory():
    with pytest.raises(EvalError, match="mapped_triples: an inductive model needs a triples factory of its mode"):
        RankBasedEvaluator(mode="testing").evaluate(Diagonal(), TEST)


def test_factories_that_number_the_same_labels_in_other_ways_are_refused():
    training = factory(TRAIN, entity_to_id={"a": 0, "b": 1, "c": 2})
    test = factory(TEST, entity_to_id={"b": 0, "d": 1})

    with pytest.raises(EvalError, match=r"expected one entity_to_id in all of them, got 'b' as 0 and as 1; make them"):
        RankBasedEvaluator().evaluate(Diagonal(), test, additional_filter_triples=training)


@pytest.mark.parametrize("model", [Diagonal(), with_vectors(Diagonal())], ids=["scores", "vectors"])
@pytest.mark.parametrize("prefix", ["", "rel:"])
def test_a_report_calls_relations_as_the_factory_does(model, prefix):
    relation_to_id = {f"{prefix}{label}": number for number, label in enumerate(["b", "a", "c"][:NUM_RELATIONS])}
    test = factory(TEST, relation_to_id=relation_to_id)

    report = RankBasedEvaluator().evaluate(model, test, restrict_relations_to=[2]).report

    assert [row["relation"] for row in report.table("relations")] == ["2" if prefix else "c"]


@pytest.mark.parametrize("model", [Diagonal(), with_vectors(Diagonal())], ids=["scores", "vectors"])
@pytest.mark.parametrize("is_labelled", ["evaluated", "training"])
def test_lists_and_candidates_call_entities_as_the_factory_does(model, is_labelled, tmp_path):
    entities = {f"e {number}\t": number for number in reversed(range(NUM_ENTITIES))}
    relations = {f"r{number}": number for number in range(NUM_RELATIONS)}
    labelled = {"entity_to_id": entities, "relation_to_id": relations}
    test = factory(TEST, **(labelled if is_labelled == "evaluated" else {}))
    training = factory(TRAIN, **labelled)
    settings = {"save_topk": 3, "tail_candidates": [f"e {tail}\t" for _, _, tail in TEST]}

    evaluator = RankBasedEvaluator(settings=settings, output=tmp_path / "out")
    report = evaluator.evaluate(model, test, training=training).report

    head, relation, tail = TEST[0]
    best = {row["candidate"] for row in report.top(head=f"e {head}\t", relation=f"r{relation}")}
    assert best <= {f"e {tail}\t" for _, _, tail in TEST}
    assert {row["candidate"] for row in report.top(tail=f"e {tail}\t", relation=f"r{relation}")} <= {*entities}


def test_a_factory_without_the_label_of_every_entity_leaves_places(tmp_path):
    test = factory(TEST, entity_to_id={f"e{number}": number for number in range(NUM_ENTITIES - 1)})

    report = RankBasedEvaluator(settings={"save_topk": 3}, output=tmp_path / "out").evaluate(Diagonal(), test).report

    assert report.top(head=f"all:0:{TEST[0][0]}", relation=str(TEST[0][1]))


def test_lists_that_settings_ask_for_serve_a_comparison_of_queries(tmp_path):
    for name, model in (("one", Diagonal()), ("other", with_vectors(Diagonal()))):
        evaluator = RankBasedEvaluator(settings={"save_topk": 10}, output=tmp_path / name)
        evaluator.evaluate(model, factory(TEST), additional_filter_triples=factory(VALID))

    done = run_main("compare", "one", "other", "--queries", cwd=tmp_path)

    assert (done.status, "rank in A" in done.out) == (0, True), done.err


def num_keys(triples):
    return len({(h, r) for h, r, _ in triples}) + len({(r, t) for _, r, t in triples})


def test_the_self_check_takes_under_a_fiftieth_of_the_rows():
    model = Diagonal()
    relation = ScorerRelation(ScorerComparator(pykeen_scorer(model)), "all", "all")

    scorer_state(relation, tuple(ENDS), num_queries=1200)

    assert 0 < model.num_rows < 1200 / 50


@pytest.mark.parametrize("make", [Diagonal, WithInverses])
def test_vectors_give_the_ranks_of_the_model_that_they_come_from(make, tmp_path):
    """Scores are exact in either way: all multiples of 1/64."""
    asked, vectors = make(), with_vectors(make().train())
    found = []
    for model in (asked, vectors):
        output = tmp_path / str(len(found))
        evaluator = RankBasedEvaluator(hits_at=CUTOFFS, settings={"save_ranks": True}, output=output)
        results = evaluator.evaluate(model, factory(TEST), additional_filter_triples=[TRAIN, VALID], training=TRAIN)
        found.append((counts_of(output), results.to_flat_dict()))

    assert found[0] == found[1]
    assert vectors.num_rows <= 2 * ROWS_COMPARED
    assert not vectors.training


def with_bias(model):
    score = model._sliced
    model._sliced = lambda query_BD, slice_size: score(query_BD, slice_size) + 0.5
    return model


def with_other_vectors(model):
    model.entity_representations[0].table = model.entities.roll(1, 0)
    return model


def in_float64(model):
    for representations in (model.entity_representations, model.relation_representations):
        representations[0].table = representations[0].table.double()
    return model


@pytest.mark.parametrize(
    "model",
    [
        with_bias(with_vectors(Diagonal())),
        with_other_vectors(with_vectors(Diagonal())),
        in_float64(with_vectors(Diagonal())),
        with_vectors(Diagonal(), ClampedInteraction((-1.0, 1.0))),
        with_vectors(Diagonal(), torch.nn.Identity()),
    ],
    ids=["another score", "other vectors", "float64", "clamped", "unknown"],
)
def test_a_model_whose_scores_its_vectors_do_not_give_is_asked_itself(model):
    results = RankBasedEvaluator(hits_at=CUTOFFS).evaluate(model, TEST)

    assert model.num_rows >= num_keys(TEST)
    assert_equal_figures(expected_figures(TEST, set(TEST)), results)


def test_a_clamp_that_is_switched_off_hides_no_formula():
    model = with_vectors(Diagonal(), ClampedInteraction(None))

    RankBasedEvaluator().evaluate(model, TEST)

    assert model.num_rows <= 2 * ROWS_COMPARED


def test_names_of_relations_in_the_working_directory_are_not_those_of_a_model_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dynamic_rel_names.json").write_text('["only one"]')

    assert len(TEST) * 2 == RankBasedEvaluator().evaluate(with_vectors(Diagonal()), TEST).get_metric("count")


def test_scores_that_vectors_are_compared_with_come_in_batches_and_slices_of_the_user_s():
    """A model may not fit in memory otherwise."""
    model, sizes = with_vectors(Diagonal()), []
    score = model._sliced
    model._sliced = lambda query_BD, slice_size: (
        sizes.append((len(query_BD), slice_size)) or score(query_BD, slice_size)
    )

    RankBasedEvaluator().evaluate(model, TEST, batch_size=3, slice_size=5)

    assert {size for _, size in sizes} == {5}
    assert 0 < max(rows for rows, _ in sizes) <= 3


def test_a_library_that_pykeen_lacks_is_not_taken_for_no_pykeen(tmp_path, monkeypatch):
    package = tmp_path / "pykeen"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "evaluation.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with mock.patch.dict(sys.modules):
        del sys.modules["pbgeval.integrations.pykeen"]
        with pytest.raises(ModuleNotFoundError, match="no_such_library"):
            importlib.import_module("pbgeval.integrations.pykeen")
