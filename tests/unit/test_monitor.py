"""A monitor within a training loop: what it measures, what it records, and that it never disturbs the training."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.errors import ConfigError, DataError
from pbgeval.monitor.curves import read_curves
from pbgeval.monitor.improvement import last_improvement
from pbgeval.monitor.measure import chunks_of_edges
from pbgeval.monitor.monitor import PastPass
from pbgeval.monitor.persistence import METRICS, VALUE_BITS, ClusterSums, QueryValues
from pbgeval.monitor.records import Estimate, PassDetails, PassKey, PassRecord, read_history
from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.report.training import training_charts, verdicts_of
from pbgeval.storage import writing as files
from pbgeval.storage.edges import EdgeBlock

SCHEMA = ModelSchema([MonitoredRelation("links", "e", "e", "diagonal")], {"e": 2}, "dot")
BUCKETS = [Bucket(lhs, rhs) for lhs in range(2) for rhs in range(2)]
MRR = "both.realistic.mean_reciprocal_rank"


def edges_of(bucket: Bucket, num_edges: int = 120) -> Tensor:
    random = np.random.default_rng(hash(bucket) % 1000)
    return torch.from_numpy(random.integers(20, size=(num_edges, 3)) * np.array([1, 0, 1]))


def model(seed: int = 0) -> ModelTensors:
    generator = torch.Generator().manual_seed(seed)
    tables = {("e", partition): torch.randn(20, 6, generator=generator) for partition in range(2)}
    return ModelTensors(tables, {(0, Side.RHS): {"diagonal": torch.randn(6, generator=generator)}})


def make_monitor(output: Path | None = None, warnings: list[str] | None = None, **settings: Any) -> Monitor:
    keys = {"eval_fraction": 0.3, "eval_num_batch_negs": 5, "eval_num_uniform_negs": 4, **settings}
    return Monitor(SCHEMA, output, warn=[].append if warnings is None else warnings.append, **keys)


def one_visit(monitor: Monitor, tensors: ModelTensors, *, epoch: int = 0, bucket: Bucket = BUCKETS[1]) -> None:
    """Visit a bucket; its training replaces the left table."""
    monitor.split(edges_of(bucket), bucket)
    with monitor.watch(epoch, bucket, tensors):
        tensors.tables["e", bucket.lhs].copy_(model(seed=9 + epoch).tables["e", bucket.lhs])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [300, 300, 300, 300, 100]),
        ({"pbg_semantics": True, "batch_size": 1000}, [300, 300, 300, 100, 300]),  # a batch of PBG's ends a chunk
    ],
)
def test_edges_that_share_draws_are_a_cluster(settings: dict[str, Any], expected: list[int]) -> None:
    monitor = make_monitor(eval_num_batch_negs=0, eval_num_uniform_negs=300, **settings)
    nobody = torch.zeros(1300, dtype=torch.int64)

    order, chunk_E = chunks_of_edges(monitor._protocol, EdgeBlock(0, nobody, nobody, nobody))

    assert (order.tolist(), np.bincount(chunk_E).tolist()) == ([*range(1300)], expected)


@pytest.mark.parametrize("with_validation", [False, True])
def test_known_answers_do_not_compete_in_filtered_figures(tmp_path: Path, *, with_validation: bool) -> None:
    bucket, edges = BUCKETS[1], edges_of(BUCKETS[1], 200)
    validation = edges_of(BUCKETS[2], 200) if with_validation else None
    relation = MonitoredRelation("links", "e", "e", "diagonal", all_negs=True)
    monitor = Monitor(ModelSchema([relation], {"e": 2}, "dot"), tmp_path, filtered=True, eval_fraction=0.4)

    held_out = monitor.split(edges, bucket, known=validation).held_out
    with monitor.watch(0, bucket, tensors := model()):
        pass
    found = monitor.end_pass(0).details.after

    known = {tuple(edge) for edge in (edges if validation is None else torch.cat([edges, validation])).tolist()}
    lhs, rhs = (tensors.tables["e", partition].double() for partition in bucket)
    score = (lhs @ (rhs * tensors.operators[0, Side.RHS]["diagonal"].double()).T).numpy()
    expected = []
    for left, _, right in held_out.tolist():
        of_sides = (
            (score[left], right, {of[2] for of in known if of[0] == left}),
            (score[:, right], left, {of[0] for of in known if of[2] == right}),
        )
        for score_C, true, answers in of_sides:
            rivals = [score_C[other] for other in range(20) if other not in answers]
            expected.append(1 / (1 + sum(rival > score_C[true] for rival in rivals)))
    assert found[MRR] == pytest.approx(np.mean(expected), abs=1e-7)
    assert read_curves(tmp_path, "mrr", pytest.fail).last.lists.filtered


@pytest.mark.parametrize("all_entities", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_model_that_knows_all_edges_is_perfect_if_known_answers_do_not_compete(
    *, filtered: bool, all_entities: bool
) -> None:
    """An edge scores 1, all else 0: known answers tie with the true entity, of held-out and of training edges."""
    edges = edges_of(BUCKETS[0], 200)
    adjacency = torch.zeros(20, 20)
    adjacency[edges[:, 0], edges[:, 2]] = 1.0
    relation = MonitoredRelation("links", "e", "e", all_negs=all_entities)
    monitor = Monitor(ModelSchema([relation], {"e": 2}, "dot"), filtered=filtered, eval_fraction=0.4)

    monitor.split(edges, BUCKETS[1])
    with monitor.watch(0, BUCKETS[1], ModelTensors({("e", 0): adjacency, ("e", 1): torch.eye(20)})):
        pass
    record = monitor.end_pass(0)

    found = [record.details.after[MRR], record.details.training[MRR], record.average.metrics["auc"]]
    assert found == [1.0, 1.0, 1.0] if filtered else max(found) < 0.99


def test_known_edges_that_cannot_be_taken_are_refused() -> None:
    edges = edges_of(BUCKETS[0])
    with pytest.raises(ConfigError, match="known: has no effect on unfiltered ranks"):
        make_monitor().split(edges, BUCKETS[0], known=edges)
    with pytest.raises(ConfigError, match="filtered: PyTorch-BigGraph's ranks are unfiltered"):
        make_monitor(filtered=True, pbg_semantics=True)
    for known, message in (
        ([[-1, 0, 3]], f"known: expected ids from 0 to {2**31 - 1} as lhs, got -1 to -1"),
        ([[1, 0, 2**62]], f"known: expected ids from 0 to {2**31 - 1} as rhs, got {2**62} to {2**62}"),
        ([[1, 1, 3]], "known: expected ids from 0 to 0 as rel, got 1 to 1"),
        ([1, 0, 3], r"known: expected \(E, 3\)"),
    ):
        with pytest.raises(DataError, match=message):
            make_monitor(filtered=True).split(edges, BUCKETS[0], known=torch.tensor(known))
    monitor = make_monitor(filtered=True)
    monitor.split(edges, BUCKETS[0], known=torch.tensor([[1, 0, 3], [1, 0, 20]]))
    beyond = r"bucket \(0, 0\), edge \(1, 0, 20\): expected an id in 0..19 as rhs, got 20"
    with pytest.raises(DataError, match=beyond), monitor.watch(0, BUCKETS[0], model()):
        pass
    monitor.split(edges, BUCKETS[0], known=([], [], []))


def test_ids_of_known_edges_are_checked_by_their_entity_types() -> None:
    relations = [MonitoredRelation("likes", "user", "item"), MonitoredRelation("knows", "user", "user")]
    monitor = Monitor(ModelSchema(relations, {"user": 1, "item": 1}, "dot"), eval_fraction=0.5, filtered=True)
    edges = torch.tensor([[user, number % 2, number % 5] for number, user in enumerate(range(40))])
    model_of_both = ModelTensors({("user", 0): torch.randn(40, 4), ("item", 0): torch.randn(5, 4)})

    monitor.split(edges, (0, 0), known=torch.tensor([[0, 1, 39]]))
    with monitor.watch(0, (0, 0), model_of_both):
        pass
    monitor.split(edges, (0, 0), known=torch.tensor([[0, 0, 39], [0, 1, 7]]))
    with pytest.raises(DataError, match=r"edge \(0, 0, 39\): expected an id in 0..4 as rhs"):
        monitor.watch(1, (0, 0), model_of_both).__enter__()


def test_filtered_figures_with_other_known_edges_are_not_compared() -> None:
    warnings: list[str] = []
    monitor = make_monitor(warnings=warnings, filtered=True)
    edges, others = edges_of(BUCKETS[1]), edges_of(BUCKETS[2])
    # The same answers, however often and in what order, are the same.
    for epoch, validation in enumerate((None, edges, others, torch.cat([others, others.flip(0)]))):
        monitor.split(edges, BUCKETS[1], known=validation)
        with monitor.watch(epoch, BUCKETS[1], model()):
            pass
        monitor.end_pass(epoch)

    (warning,) = warnings
    assert " or known answers than in earlier epochs" in warning
    assert (monitor.best_epoch(), monitor.should_stop(patience=1), monitor.should_stop(patience=2)) == (2, True, False)


def test_the_fall_since_the_best_pass_is_that_of_the_same_edges(tmp_path: Path) -> None:
    places = BUCKETS[::3]

    def passes_of(monitor: Monitor, epochs: range) -> list[tuple[np.ndarray, PassDetails]]:
        """Return the sums of reciprocal ranks of each edge after each pass, and what is recorded of it."""
        found = []
        for epoch in epochs:
            after = []
            for bucket in places:
                monitor.split(edges_of(bucket), bucket)
                with monitor.watch(epoch, bucket, tensors := model(seed=epoch)) as visit:
                    tensors.tables["e", bucket.lhs].copy_(model(seed=9 + epoch).tables["e", bucket.lhs])
                after.append(visit.followed.after_E / 2.0**VALUE_BITS)
            found.append((np.concatenate(after), monitor.end_pass(epoch).details))
        return found

    settings = {"eval_num_batch_negs": 0, "eval_num_uniform_negs": 300}  # one chunk: edges are independent
    found = passes_of(make_monitor(tmp_path, **settings), range(8))

    tested = 0
    for epoch, (values_E, details) in enumerate(found):
        if details.best_pass == epoch:
            assert (details.fall, details.fall_clusters) == (None, 0)
            continue
        fall_E = (found[details.best_pass][0] - values_E) / 2  # an edge has two queries
        error = fall_E.std(ddof=1) / math.sqrt(len(fall_E))
        assert details.fall.value == pytest.approx(fall_E.mean(), abs=1e-7)
        assert details.fall.value == pytest.approx(details.best_mrr - details.after[MRR], abs=1e-7)
        assert (details.fall.standard_error, details.fall_clusters) == (pytest.approx(error, rel=1e-6), len(fall_E))
        tested += 1
    assert 0 < tested < 7
    assert [of.details for of in read_history(tmp_path).passes] == [details for _, details in found]
    (tmp_path / "followed.0.bin").unlink()
    resumed = passes_of(make_monitor(tmp_path, **settings), range(8, 12))
    assert resumed[0][1].fall is None, "edges were not followed since the best pass"


def train_some(monitor: Monitor, epochs: range, buckets: list[Bucket] = BUCKETS) -> None:
    """Train to a model that is a function of epoch and bucket; the best one comes early."""
    for epoch in epochs:
        for bucket in buckets:
            monitor.split(edges_of(bucket), bucket)
            with monitor.watch(epoch, bucket, tensors := model(seed=epoch % 5)):
                tensors.tables["e", bucket.lhs].copy_(model(seed=9 + epoch).tables["e", bucket.lhs])
        if buckets is BUCKETS:
            monitor.end_pass(epoch)


def test_a_run_that_goes_on_finds_the_same_as_one_without_a_break(tmp_path: Path) -> None:
    train_some(make_monitor(tmp_path), range(11))
    expected = [of.details for of in read_history(tmp_path, pytest.fail).passes]
    assert sum(of.fall is not None for of in expected) > 2
    assert {of.verdict for of in expected} > {"needs_3_visits"}

    for stops in ([4], [1, 2, 7, 8, 9]):
        broken = tmp_path / str(stops)
        for first, stop in pairwise([0, *stops, 11]):
            monitor = make_monitor(broken, warnings := [])
            train_some(monitor, range(first, stop))
            train_some(monitor, range(stop, stop + 1), BUCKETS[:2])  # and is killed in the next epoch
            assert warnings == []
        assert [of.details for of in read_history(broken, pytest.fail).passes] == expected


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda data: data[:-4], "expected the edge-by-edge history of a monitor, found: "),
        (lambda data: b"{}\n", "expected the edge-by-edge history of a monitor, found: expected pass, found nothing"),
        (lambda data: data.replace(b'"num_teeth": 2', b'"num_teeth": 0'), "found: arrays of "),
        (
            lambda data: data.replace(b'"place": [0', b'"place": [0, 0'),
            "expected the edge-by-edge history of a monitor",
        ),
        (lambda data: data.replace(b'"pass": [2', b'"pass": [1'), "found: that of another epoch or number of workers"),
        (lambda data: data.replace(b'"figures": "', b'"figures": "0'), "found: that of another epoch"),
        (lambda data: data.replace(b'"num_workers": 1', b'"num_workers": 2'), "found: that of another epoch"),
        (lambda data: data.replace(b'"order": ', b'"order": 1'), None),  # of edges in another order
    ],
)
def test_edges_are_followed_anew_where_the_file_does_not_fit(
    tmp_path: Path, spoil: Callable[[bytes], bytes], told: str | None
) -> None:
    train_some(make_monitor(tmp_path), range(3))
    file = tmp_path / "followed.0.bin"
    spoiled = spoil(file.read_bytes())
    assert spoiled != file.read_bytes()
    file.write_bytes(spoiled)

    monitor = make_monitor(tmp_path, warnings := [])
    assert len(warnings) == (told is not None)
    assert all(f"{file}: " in of and str(told) in of for of in warnings)
    train_some(monitor, range(3, 4))
    last = read_history(tmp_path, pytest.fail).passes[-1].details
    assert (last.best_pass == 3) or last.fall is None
    assert {of.num_teeth for of in monitor._followed.values()} == {0}


@pytest.mark.parametrize("chunk_size", [1, 3, 25])
@pytest.mark.parametrize("num_edges", [1, 2, 40])
def test_means_and_errors_are_those_of_clusters(num_edges: int, chunk_size: int) -> None:
    """The textbook's formula over chunks, or, where these are few, edges that stay together with their two queries."""
    random = np.random.default_rng(num_edges)
    values = random.integers(-(1 << 29), 1 << 29, size=(num_edges, len(METRICS)))
    queries = random.integers(1, 3, size=(num_edges, len(METRICS)))
    chunk_E = np.arange(num_edges) // chunk_size

    sums = ClusterSums.from_values(QueryValues(values, queries), chunk_E)

    unit, used = ("chunk", chunk_E) if chunk_E[-1] + 1 >= 10 else ("edge", np.arange(num_edges))
    of_values, of_queries = (np.array([of[used == one].sum(0) for one in set(used)]) for of in (values, queries))
    means, number = of_values.sum(0) / of_queries.sum(0), len(of_values)
    spreads = ((of_values - means * of_queries) ** 2).sum(0) / of_queries.sum(0) ** 2
    assert sums.unit == unit
    for metric, mean, spread in zip(METRICS, means, spreads, strict=True):
        estimate, one = sums.estimate(metric), metric.denominator(VALUE_BITS)
        assert estimate.value == pytest.approx(mean / one, rel=1e-12)
        expected = None if number == 1 else pytest.approx(math.sqrt(spread * number / (number - 1)) / one, rel=1e-6)
        assert estimate.standard_error == expected


def test_a_diverged_model_is_recorded_with_one_warning_and_training_goes_on(tmp_path: Path) -> None:
    warnings: list[str] = []
    monitor, tensors = make_monitor(tmp_path, warnings), model()
    for epoch in range(3):
        for bucket in BUCKETS:
            monitor.split(edges_of(bucket), bucket)
            with monitor.watch(epoch, bucket, tensors) as visit:
                visit.report_training(84, loss=math.nan)
                if (epoch, bucket) == (1, BUCKETS[2]):
                    tensors.tables["e", 1][3, 2] = math.nan
        monitor.end_pass(epoch)

    (warning,) = warnings
    assert "epoch 1, bucket (1, 0): the model has diverged" in warning
    history = read_history(tmp_path, pytest.fail)
    # The other partition is sound, and so are the figures of its own bucket.
    assert [at for at, visit in enumerate(history.visits) if visit.details.diverged] == [6, 7, 9, 10, 11]
    assert "partition 1" in history.visits[6].details.reason
    assert history.visits[0].stats.metrics == {"loss": None}
    assert [of.details.num_diverged for of in history.passes] == [0, 2, 3]


@pytest.mark.parametrize(
    ("diverged", "best", "stops"),
    [
        ([0, 1, 1], 0, [False, False, True]),
        ([0, 0, 1], 1, [False, False, False]),
        ([0, 1, 0], 2, [False, False, False]),
        ([1, 1, 1], None, [False, True, True]),
    ],
    ids=["since", "last", "recovered", "at once"],
)
def test_a_pass_that_diverged_improves_nothing(diverged: list[int], best: int | None, stops: list[bool]) -> None:
    monitor, found = make_monitor(), []
    for epoch, number in enumerate(diverged):
        figures = {MRR: 0.2 + epoch / 10}
        monitor._past.append(PastPass(PassKey(epoch), PassDetails(num_diverged=number, after=figures)))
        found.append(monitor.should_stop("mrr", patience=2))

    assert (monitor.best_epoch("mrr"), found) == (best, stops)


SPOIL: dict[str, Callable[[ModelTensors], object]] = {
    "an operator": lambda of: of.operators[0, Side.RHS]["diagonal"].__setitem__(0, math.inf),
    "an infinite row": lambda of: of.tables["e", 0].__setitem__(5, math.inf),
    "a zero vector": lambda of: of.tables["e", 0].__setitem__(5, 0.0),
    "vectors that overflow": lambda of: [
        x.mul_(1e30) for x in (of.tables["e", 0], of.operators[0, Side.RHS]["diagonal"])
    ],
}


@pytest.mark.parametrize("what", SPOIL)
def test_every_way_to_diverge_is_noticed(what: str) -> None:
    comparator = "dot" if what == "vectors that overflow" else "cos"
    schema = ModelSchema([MonitoredRelation("links", "e", "e", "diagonal")], {"e": 2}, comparator)
    warnings: list[str] = []
    monitor, tensors = Monitor(schema, eval_fraction=0.3, warn=warnings.append), model()
    monitor.split(edges_of(BUCKETS[0]), BUCKETS[0])
    with monitor.watch(0, BUCKETS[0], tensors):
        SPOIL[what](tensors)

    assert len(warnings) == 1


def remember(monitor: Monitor, after: list[dict[str, float]], first: int = 0, metric: str = "mean_rank") -> None:
    """Let a monitor have measured passes; what is measured before them is the inverse, as a metric that is low."""
    before = [{f"both.realistic.{metric}": 1 / value for value in of.values()} for of in after]
    passes = enumerate(zip(before, after, strict=True), first)
    monitor._past = [
        PastPass(PassKey(epoch), PassDetails(before=of_before, after=of_after))
        for epoch, (of_before, of_after) in passes
    ]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("epochs", "kept", "num_left_out", "in_one_process"),
    [
        ([0, 1, 2], [0, 1, 2], 0, True),  # it goes on
        ([0, 1, 2], [0, 1, 2], 0, False),
        ([0, 1, 2, 2, 3], [0, 1, 2, 3], 1, False),  # a crash after the pass, before the checkpoint
        ([0, 1, 2, 3, 1, 2], [0, 1, 2], 3, False),  # from an older checkpoint
        ([3, 4, 0, 1], [0, 1], 2, False),  # a new run
        ([0, 0], [0], 1, True),
        ([0, 0], [0], 1, False),
        ([0, 1, 0, 1, 2, 1], [0, 1], 2, True),
    ],
)
def test_passes_that_training_has_gone_back_behind_are_left_out(
    tmp_path: Path, epochs: list[int], kept: list[int], num_left_out: int, in_one_process: bool
) -> None:
    warnings: list[str] = []
    monitor = make_monitor(tmp_path, warnings)
    summaries = {}
    for at, epoch in enumerate(epochs):
        if at and not in_one_process:
            monitor = make_monitor(tmp_path, warnings)
        for bucket in BUCKETS[: 1 + at % 2] if epoch == epochs[-1] else BUCKETS:
            one_visit(monitor, model(at), epoch=epoch, bucket=bucket)
        summaries[epoch] = monitor.end_pass(epoch)

    again = [warning for warning in warnings if "is trained again" in warning]
    if num_left_out:
        assert f"({num_left_out} pass{'es' * (num_left_out > 1)}) is left out" in again[-1]
    assert len(again) == sum(later <= epoch for epoch, later in pairwise(epochs))
    history = read_history(tmp_path, pytest.fail)
    assert len({of.index for of in history.visits}) == len(history.visits), "a process goes on counting"
    of_kept = [(epoch, summaries[epoch].details.after) for epoch in kept]
    for passes in (monitor._past, history.passes):
        assert [(of.key.epoch, of.details.after) for of in passes] == of_kept
    visits = [len(of) for of in history.passes_of_visits.values()]
    assert visits == [4] * (len(kept) - 1) + [1 + (len(epochs) - 1) % 2], "none of those that were thrown away"


def test_what_the_training_raises_passes_through_and_leaves_no_record(tmp_path: Path) -> None:
    monitor = make_monitor(tmp_path)
    monitor.split(edges_of(BUCKETS[0]), BUCKETS[0])
    for raised in (MemoryError("out of memory"), KeyboardInterrupt(), StopIteration()):
        with pytest.raises(type(raised)) as caught, monitor.watch(0, BUCKETS[0], model()):
            raise raised
        assert (caught.value, caught.value.__context__) == (raised, None)
    assert not list(tmp_path.iterdir())


UNTOUCHABLE: Any = object()  # a model that must not be looked at


def test_a_fraction_of_0_writes_nothing_and_looks_at_nothing(tmp_path: Path) -> None:
    monitor = make_monitor(tmp_path / "output", eval_fraction=0.0)
    edges = edges_of(BUCKETS[0])
    with mock.patch("pbgeval.monitor.monitor.hash_edges", side_effect=AssertionError):
        assert edges is monitor.split(edges, BUCKETS[0]).training
    with monitor.watch(0, BUCKETS[0], UNTOUCHABLE):
        pass

    assert (monitor.end_pass(0), monitor.should_stop(), [*tmp_path.iterdir()]) == (None, False, [])


def test_a_bucket_without_held_out_edges_is_recorded_without_figures(tmp_path: Path) -> None:
    monitor = make_monitor(tmp_path, eval_fraction=1e-9)
    monitor.split(edges_of(BUCKETS[0], num_edges=3), BUCKETS[0])
    with monitor.watch(0, BUCKETS[0], UNTOUCHABLE):
        pass
    summary = monitor.end_pass(0)

    visit = read_history(tmp_path, pytest.fail).visits[0]
    assert (visit.before, visit.after, summary.details.num_buckets, summary.average.count) == (None, None, 0, 0)


def test_training_draws_the_same_numbers_with_and_without_a_monitor() -> None:
    torch.manual_seed(3)
    expected = torch.rand(5)
    torch.manual_seed(3)
    one_visit(make_monitor(), model())

    assert (torch.equal(expected, torch.rand(5)), torch.is_grad_enabled(), torch.get_num_threads()) == (True, True, 1)


def test_autocast_of_the_training_changes_no_figure(tmp_path: Path) -> None:
    one_visit(make_monitor(tmp_path / "expected"), model())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one_visit(make_monitor(tmp_path / "found"), model())

    expected, found = (read_history(tmp_path / name, pytest.fail).visits[0] for name in ("expected", "found"))
    assert found.after.metrics == expected.after.metrics


def test_live_parameters_need_no_detaching_and_get_no_gradient() -> None:
    tensors = model()
    tables = {key: torch.nn.Parameter(table) for key, table in tensors.tables.items()}
    parameters = {"diagonal": torch.nn.Parameter(tensors.operators[0, Side.RHS]["diagonal"])}
    monitor = make_monitor(loss_fn="softmax")
    monitor.split(edges_of(BUCKETS[0]), BUCKETS[0])
    with monitor.watch(0, BUCKETS[0], ModelTensors(tables, {(0, Side.RHS): parameters})) as visit:
        pass

    assert all(table.grad is None for table in tables.values())
    assert visit.sums.phases[1].figures(with_loss=True).metrics["loss"] > 0


def test_more_negatives_than_a_partition_has_entities_are_warned_of_once() -> None:
    warnings: list[str] = []
    monitor, enough = make_monitor(None, warnings, eval_num_uniform_negs=50), make_monitor(None, warnings)
    for epoch in range(2):
        one_visit(monitor, model(), epoch=epoch)
        one_visit(enough, model(), epoch=epoch)

    (warning,) = warnings
    assert warning.startswith("far more negatives than the 20 entities of a partition")


def test_a_full_disk_is_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    monitor, tensors = make_monitor(tmp_path, warnings), model()
    with mock.patch.object(files.System, "write", side_effect=OSError(28, "No space left on device")):
        for bucket in BUCKETS:
            one_visit(monitor, tensors, bucket=bucket)
        summary = monitor.end_pass(0)

    assert summary.details.num_buckets == 4
    of_records, of_followed = warnings
    assert "No space left on device; make room or choose another output; training goes on without records" in of_records
    assert "No space left on device" in of_followed
    assert of_followed.endswith("; a resumed run will start its edge-by-edge comparison over")


def test_the_result_of_a_pass_prints_as_a_line(tmp_path: Path) -> None:
    monitor, tensors = make_monitor(), model()
    for bucket in BUCKETS[:2]:
        one_visit(monitor, tensors, bucket=bucket)
    found: Any = monitor.end_pass(0)

    details, gap = found.details, found.details.gap[MRR]
    assert repr(found) == (
        f"epoch 0: MRR of held-out edges {details.before[MRR]:.4f} before and {details.after[MRR]:.4f} after the visits"
        f", {details.training[MRR]:.4f} of training edges; gap {gap.value:+.4f} ± {gap.standard_error:.4f}"
        f"; needs 3 visits; keep epoch 0 ({details.after[MRR]:.4f})"
    ).replace("gap -", "gap −")
    one_visit(monitor, tensors, epoch=1)
    alone = r"; gap .\d\.\d+ ± \d\.\d+; keep epoch [01] \(\d\.\d{4}\)$"
    assert re.search(alone, repr(monitor.end_pass(1))), "no verdict on a single bucket"
    assert (
        repr(make_monitor().end_pass(1))
        == "epoch 1: no figures of held-out edges: no edge was held out; raise eval_fraction"
    )


def test_a_pass_ends_by_itself_when_the_next_one_begins(tmp_path: Path) -> None:
    monitor, tensors = make_monitor(tmp_path), model()
    for epoch in range(3):
        one_visit(monitor, tensors, epoch=epoch)

    assert [PassKey(0), PassKey(1)] == [of.key for of in read_history(tmp_path, pytest.fail).passes]
    with pytest.raises(ConfigError, match=r"expected the end of the pass that was watched, epoch 2, got 5"):
        monitor.end_pass(5)


@pytest.mark.parametrize(
    ("values", "patience", "delta", "expected"),
    [
        ([0.1, 0.2, 0.3], 2, 0.0, False),
        ([0.1, 0.3, 0.3, 0.3], 2, 0.0, True),
        ([0.1, 0.3, 0.3], 2, 0.0, False),
        ([0.3, 0.303, 0.306, 0.309], 3, 0.05, True),
        ([0.3, 0.31, 0.32, 0.33], 2, 0.05, False),  # slow, but more than 5 % within the patience: the best stays .3
        ([0.3, None, None], 2, 0.0, True),
        ([None, None], 2, 0.0, True),
        ([], 1, 0.0, False),
    ],
)
def test_training_stops_when_nothing_has_improved_for_long_enough(
    values: list[float | None], patience: int, delta: float, expected: bool
) -> None:
    monitor = make_monitor()
    remember(monitor, [{} if value is None else {MRR: value} for value in values])

    assert monitor.should_stop("mrr", patience, delta) == expected
    if delta == 0:
        assert monitor.should_stop("mean_rank", patience, delta, when="before") == expected


def test_the_best_epoch_is_that_of_the_last_improvement() -> None:
    monitor = make_monitor()
    assert monitor.best_epoch() is None

    remember(monitor, [{MRR: value} for value in (0.2, 0.3, 0.301, 0.25)], first=3)

    assert (monitor.best_epoch("mrr", 0.01), monitor.best_epoch("mrr", 0.0)) == (4, 5)


@pytest.mark.parametrize(
    ("num_diverged", "after", "end"),
    [
        (0, 0.2504, "0.0000; undecided; keep epoch 3 (0.2500), as epoch 5 is at most 0.2% better"),
        (1, 0.2504, "0.0000; the model diverged; keep epoch 3 (0.2500)"),
        (1, 0.2, "0.0000; the model diverged; keep epoch 3 (0.2500)"),
        (2, None, "no figures of held-out edges, because the model diverged; keep epoch 3 (0.2500)"),
    ],
)
def test_an_epoch_that_is_not_kept_has_a_reason(num_diverged: int, after: float | None, end: str) -> None:
    figures, gap = {MRR: after}, {MRR: Estimate(None if after is None else 0.0, None)}
    details = PassDetails(2, num_diverged, figures, figures, gap=gap, verdict="undecided", best_pass=3, best_mrr=0.25)

    assert repr(PassRecord(PassKey(5), 0, None, details)).endswith(end)
    never = evolve(details, best_pass=None, best_mrr=None)
    assert "keep" not in repr(PassRecord(PassKey(5), 0, None, never))


def test_the_line_of_a_pass_names_its_edge_path_and_chunk() -> None:
    told = repr(PassRecord(PassKey(5, 1, 2), 0, None, PassDetails(num_diverged=1)))

    assert told == "epoch 5, path 1, chunk 2: no figures of held-out edges, because the model diverged"


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_not_the_best(odd: float) -> None:
    assert last_improvement([odd, 0.1, odd, 0.2, odd], 1) == 3
    assert last_improvement([odd, 5.0, 4.0], -1) == 2
    assert last_improvement([odd, None], 1) is None


def test_a_metric_of_later_passes_alone_is_judged_by_those() -> None:
    monitor = make_monitor()
    hits = MRR.replace("mean_reciprocal_rank", "hits_at_7")
    remember(monitor, [{MRR: 0.2}, {MRR: 0.3, hits: 0.2}, {MRR: 0.4, hits: 0.1}], first=3)

    assert monitor.best_epoch("hits@7") == 4
    assert [monitor.should_stop("hits@7", patience) for patience in (1, 2)] == [True, False]


def test_a_metric_that_is_not_there_is_named() -> None:
    monitor = make_monitor()
    remember(monitor, [{MRR: 0.5}])

    for arguments, message in (
        (("mean_rankk",), "'mean_rankk' is not a metric of the monitor; nearest: mean_rank"),
        (("mmr",), "'mmr' is not a metric of the monitor; nearest: .*mrr"),
        (("count",), "should_stop: 'count' is neither better high nor better low$"),
        (("hits@7",), "no metric 'hits@7'"),
        (("mrr", 0), "expected patience >= 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            monitor.should_stop(*arguments)


CHANGES_FIGURES: dict[str, Any] = {
    "eval_fraction": 0.2,
    "eval_num_batch_negs": 6,
    "eval_num_uniform_negs": 2,
    "seed": 1,
    "sides": (Side.RHS,),
    "filtered": True,
    "loss_fn": "softmax",
    "margin": 0.2,
    "pbg_semantics": True,
    "batch_size": 10,
    "schema": evolve(SCHEMA, comparator="cos"),
}
CHANGES_NONE: dict[str, Any] = {
    "compare_with_training": False,
    "tolerance": 0.2,
    "alarm_rate": 0.01,
    "sinks": [],
    "team": None,
    "warn": print,
    "output": None,
}


def test_a_run_goes_on_only_with_the_settings_of_its_records(tmp_path: Path) -> None:
    assert {*CHANGES_FIGURES, *CHANGES_NONE, "self"} == {*inspect.signature(Monitor.__init__).parameters}
    base: dict[str, Any] = {"schema": SCHEMA, "output": tmp_path, "eval_fraction": 0.3, "loss_fn": "ranking"}
    base |= {"eval_num_batch_negs": 5, "eval_num_uniform_negs": 4, "warn": pytest.fail}
    one_visit(Monitor(**base), model())

    for name, value in CHANGES_FIGURES.items():
        of_pbg = {"pbg_semantics": True, "output": tmp_path / "pbg"} if name == "batch_size" else {}
        if of_pbg:
            one_visit(Monitor(**base | of_pbg), model())
        with pytest.raises(ConfigError) as caught:
            Monitor(**base | of_pbg | {name: value})
        told = "another schema (relations, entity types or comparator)" if name == "schema" else f"{name} = "
        assert told in str(caught.value)
        assert str(caught.value).endswith("go on with the settings of the records, or choose another folder")
        Monitor(**base | {name: value, "output": tmp_path / name})
    names = evolve(SCHEMA, relations=[evolve(SCHEMA.relations[0], name="renamed")])
    for name, value in (CHANGES_NONE | {"schema": names}).items():
        Monitor(**base | {name: value})
    with pytest.raises(
        ConfigError, match=r"records were made with eval_num_uniform_negs = 4, now 20; seed = 0, now 3,"
    ):
        Monitor(**base | {"eval_num_uniform_negs": 20, "seed": 3})


def test_an_epoch_that_visits_only_some_buckets_is_not_the_one_to_keep(tmp_path: Path) -> None:
    warnings: list[str] = []
    monitor = make_monitor(tmp_path, warnings)

    def epoch_of(epoch: int, buckets: Sequence[tuple[int, int]], seed: int) -> Any:
        for bucket in buckets:
            monitor.split(edges_of(bucket, 200), bucket)
            with monitor.watch(epoch, bucket, model(seed)):
                pass
        return monitor.end_pass(epoch)

    whole = [epoch_of(epoch, BUCKETS, epoch) for epoch in range(3)]
    kept = whole[-1].details.best_pass
    assert warnings == []
    for epoch in (3, 4, 5):  # of each, one visit is not in the others
        part = epoch_of(epoch, BUCKETS[epoch - 3 : epoch - 1], 7)
        assert (part.details.best_pass, part.details.fall) == (kept, None)

    (warning,) = warnings
    assert warning == "epoch 3 visited only 2 buckets, fewer than other epochs, so it is not compared with them"
    assert (monitor.best_epoch(), monitor.should_stop(patience=3 - kept)) == (kept, False)
    curves = read_curves(tmp_path, "mrr", pytest.fail)
    assert (curves.best.key.epoch, curves.last.key.epoch) == (kept, 2)
    assert verdicts_of(curves)[-1] == (
        "Epochs 3, 4, 5 measured other held-out edges than epoch 2, and are not compared with it."
    )


def test_numbers_of_numpy_are_settings_too(tmp_path: Path) -> None:
    schema = evolve(SCHEMA, num_partitions={name: np.int64(of) for name, of in SCHEMA.num_partitions.items()})
    numbers = {"seed": np.int64(3), "eval_num_batch_negs": np.int32(5), "eval_fraction": np.float64(0.25)}

    one_visit(Monitor(schema, tmp_path, **numbers, margin=np.float64(0.1), loss_fn="ranking"), model())

    Monitor(SCHEMA, tmp_path, seed=3, eval_num_batch_negs=5, eval_fraction=0.25, loss_fn="ranking", warn=pytest.fail)


@pytest.mark.parametrize("in_one_process", [False, True])
def test_epochs_of_other_held_out_edges_are_not_compared(tmp_path: Path, in_one_process: bool) -> None:
    warnings: list[str] = []
    monitor = make_monitor(tmp_path, warnings)

    def epoch_of(epoch: int, num_edges: int, seed: int) -> Any:
        for bucket in BUCKETS:
            edges = edges_of(bucket, num_edges)
            shift = epoch % 4  # in another order, these are the same edges
            monitor.split(torch.cat([edges[shift:], edges[:shift]]), bucket)
            with monitor.watch(epoch, bucket, model(seed)):
                pass
        return monitor.end_pass(epoch)

    earlier = [epoch_of(epoch, 200, epoch) for epoch in range(4)]
    assert warnings == []
    assert earlier[3].details.verdict != "needs_3_visits"
    if not in_one_process:
        monitor = make_monitor(tmp_path, warnings)
    later = [epoch_of(epoch, 60, 0) for epoch in (4, 8)]

    (warning,) = warnings
    assert re.fullmatch(r"bucket \(0, 0\): other held-out edges \(\d+\) than in earlier epochs, .*", warning)
    assert [of.details.best_pass for of in later] == [4, 4]
    assert {of.details.verdict for of in later} == {"needs_3_visits"}
    assert (monitor.best_epoch(), monitor.should_stop(patience=2), monitor.should_stop(patience=1)) == (4, False, True)
    curves = read_curves(tmp_path, "mrr", pytest.fail)
    assert (curves.best.key.epoch, curves.changes) == (4, [4])
    assert verdicts_of(curves)[-1] == (
        "Epochs 0, 1, 2, 3 measured other held-out edges than epoch 8, and are not compared with it."
    )
    for chart in training_charts(curves)[:2]:
        line = next(line for line in chart.lines if line.has_dots)
        assert [at for at, value in line.points if value is None] == [4]
    assert all(sum(value is None for _, value in line.points) == 1 for line in training_charts(curves)[2].lines)
    visits = read_history(tmp_path, pytest.fail).passes_of_visits
    digests = {key.epoch: {of.details.digest for of in of_pass} for key, of_pass in visits.items()}
    assert digests[0] == digests[3]
    assert not digests[3] & digests[4]
    assert digests[4] == digests[8]


def test_chunks_of_a_bucket_are_compared_with_themselves_alone() -> None:
    monitor = make_monitor()
    for epoch, seeds in enumerate(((0, 1), (0, 1), (2, 3))):
        for chunk, seed in enumerate(seeds):
            monitor.split(edges_of(BUCKETS[0])[60 * chunk :][:60], BUCKETS[0], edge_chunk=chunk)
            with monitor.watch(epoch, BUCKETS[0], model(seed), edge_chunk=chunk):
                pass
            found = monitor.end_pass(epoch, edge_chunk=chunk)
            assert monitor.best_epoch("mrr", 0.002) == found.details.best_pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eval_num_batch_negs": 0, "eval_num_uniform_negs": None}, "at least one negative"),
        ({"eval_num_uniform_negs": -1}, "none negative"),
        ({"loss_fn": "hinge"}, "loss_fn: expected one of"),
        ({"eval_fraction": 1.0}, "eval_fraction"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_monitor(**change)


def test_all_faults_of_a_schema_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelSchema([MonitoredRelation("r", "e", "f", "turn")], {"e": 2, "f": 0}, "cosine")

    assert len(caught.value.faults) == 3


def test_tensors_that_do_not_fit_the_schema_are_the_loop_s_fault() -> None:
    tensors = model()
    wrong: list[tuple[ModelTensors, str]] = [
        (ModelTensors({("e", 0): torch.randn(20, 6)}), "partition 1, found none"),
        (ModelTensors(tensors.tables), r"\['diagonal'\] of shape \(6,\), got none"),
        (ModelTensors(tensors.tables, {(0, Side.RHS): {"diagonal": torch.ones(5)}}), r"got \(5,\)"),
        (
            ModelTensors(tensors.tables, {(0, side): {"diagonal": torch.ones(6)} for side in ENDS}),
            r"operators\[0, Side.LHS\]: this would have no effect, because relations that are not dynamic act on right",
        ),
        (
            ModelTensors({("e", at): torch.randn(5, 6) for at in (0, 1)}, tensors.operators),
            r"bucket \(0, 1\), edge \(\d+, 0, \d+\): expected an id in 0..4 as lhs",
        ),
        (
            ModelTensors({("e", at): torch.ones(20) for at in (0, 1)}, tensors.operators),
            r"expected embeddings \(N, D\)",
        ),
    ]
    monitor = make_monitor()
    monitor.split(edges_of(BUCKETS[1]), BUCKETS[1])
    for given, message in wrong:
        with pytest.raises(DataError, match=message), monitor.watch(0, BUCKETS[1], given):
            pytest.fail("the training must not begin")
    with pytest.raises(ConfigError, match=r"bucket \(0, 0\): expected Monitor.split"):
        monitor.watch(0, BUCKETS[0], tensors)
    for call in (lambda: monitor.watch(0, 0, tensors), lambda: monitor.split(edges_of(BUCKETS[1]), (0, 1, 2))):  # type: ignore[arg-type]
        with pytest.raises(DataError, match=r"^expected a bucket \(lhs, rhs\), the partitions of its sides, got"):
            call()
