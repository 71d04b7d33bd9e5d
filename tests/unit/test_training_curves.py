from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import get_args

import numpy as np
import pytest
import torch
from attrs import evolve

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.errors import DataError
from pbgeval.monitor.curves import Curves, PassRow, RankedLists, curves_of, read_curves
from pbgeval.monitor.gap_test import BucketVisit, Change
from pbgeval.monitor.improvement import last_improvement
from pbgeval.monitor.persistence import METRICS, VALUE_BITS, ClusterSums, QueryValues
from pbgeval.monitor.records import (
    PBG_NAMES,
    Estimate,
    History,
    PassDetails,
    PassKey,
    PassRecord,
    PbgFigures,
    Verdict,
    VisitDetails,
    VisitRecord,
)
from pbgeval.notation import Bucket
from pbgeval.report.page import Source, page_of
from pbgeval.report.tables import to_text
from pbgeval.report.training import (
    UNFILTERED,
    describe_lists,
    passes_of,
    training_charts,
    training_table,
    training_tiles,
    verdicts_of,
)

FIRST, SECOND = PassKey(0), PassKey(1)


def visit(key: PassKey, lhs: int, index: int, count: int, before: float | None, after: float | None) -> VisitRecord:
    figures = [None if value is None else PbgFigures(count, {"mrr": value}) for value in (before, after)]
    return VisitRecord(key, Bucket(lhs, 0), index, None, *figures)


def test_a_pass_is_the_mean_over_its_held_out_edges() -> None:
    visits = (visit(FIRST, 0, 0, 10, 0.1, 0.2), visit(FIRST, 1, 1, 30, 0.3, 0.6), visit(FIRST, 2, 2, 0, None, None))

    [row] = curves_of(History(visits, ()), {FIRST: "undecided"}, "mrr").passes

    assert (row.before, row.after, row.gap) == pytest.approx((0.25, 0.5, 0.25))
    assert (row.gap_error, row.training, row.verdict, row.diverged_buckets) == (None, None, "undecided", ())


def test_teeth_follow_a_bucket_from_pass_to_pass() -> None:
    visits = (
        visit(FIRST, 0, 0, 10, 0.1, 0.2),
        visit(FIRST, 1, 1, 10, 0.3, 0.4),
        visit(SECOND, 1, 2, 10, 0.35, 0.5),
        visit(SECOND, 0, 3, 10, 0.15, 0.3),
    )

    teeth = curves_of(History(visits, ()), {}, "mrr").teeth

    assert teeth == {
        (0, 0, 0, 0): {0: BucketVisit(20, 0.1, 0.2, edges=10), 1: BucketVisit(20, 0.15, 0.3, edges=10)},
        (0, 0, 1, 0): {0: BucketVisit(20, 0.3, 0.4, edges=10), 1: BucketVisit(20, 0.35, 0.5, edges=10)},
    }


def test_our_own_records_bring_errors_training_edges_and_verdicts() -> None:
    key = "both.pessimistic.mean_reciprocal_rank"
    apart = {key: Estimate(0.7, 0.02)}
    details = PassDetails(
        training={key: 0.9}, gap={key: Estimate(0.1, 0.01)}, generalization=apart, verdict="bucket_overfitting"
    )
    passes = (PassRecord(FIRST, 0, PbgFigures(10, {"mrr": 0.2}), details),)

    [row] = curves_of(History((visit(FIRST, 0, 0, 10, 0.1, 0.2),), passes), {FIRST: "needs_3_visits"}, "mrr").passes

    assert (row.gap_error, row.training, row.generalization_error, row.verdict) == (
        0.01,
        0.9,
        0.02,
        "bucket_overfitting",
    )
    assert row.generalization == pytest.approx(0.7)


def test_a_page_says_among_how_many_candidates_and_the_mrr_by_chance(tmp_path: Path) -> None:
    source = torch.Generator().manual_seed(3)
    schema = ModelSchema([MonitoredRelation("all", "all", "all", all_negs=True)], {"all": 1}, "dot")
    monitor = Monitor(schema, tmp_path, eval_fraction=0.4)
    held_out = monitor.split(torch.randint(40, (300, 3), generator=source) * torch.tensor([1, 0, 1]), (0, 0)).held_out
    with monitor.watch(0, (0, 0), ModelTensors({("all", 0): torch.randn(40, 4, generator=source)})):
        pass
    monitor.end_pass(0)

    curves = read_curves(tmp_path, "mrr", pytest.fail)

    by_chance = sum(1 / rank for rank in range(1, 41)) / 40
    assert curves.last.lists == RankedLists(len(held_out), 40.0, pytest.approx(by_chance, rel=1e-12))
    told = f"{len(held_out)} held-out edges, about 40 candidates each; by chance the MRR is {by_chance:.4f}"
    assert told in page_of(Source("monitor", None, curves)).tags
    assert f"{told}." in training_table(curves).note
    row = evolve(curves.last, lists=evolve(curves.last.lists, filtered=True))
    assert "about 40 candidates each, filtered; by" in training_table(evolve(curves, passes=(row,))).note
    assert describe_lists(evolve(curves, passes=(evolve(curves.last, lists=None),))) == ""  # PyTorch-BigGraph's records


@pytest.mark.parametrize("pbg_semantics", [False, True])
def test_curves_of_tied_ranks_are_of_the_headline_as_end_pass_prints(tmp_path: Path, pbg_semantics: bool) -> None:
    source = torch.Generator().manual_seed(3)
    table_ND = torch.randint(-1, 2, (40, 4), generator=source).float()  # many scores tie
    schema = ModelSchema([MonitoredRelation("all", "all", "all")], {"all": 1}, "dot")
    monitor = Monitor(schema, tmp_path, eval_fraction=0.4, pbg_semantics=pbg_semantics)
    monitor.split(torch.randint(40, (300, 3), generator=source) * torch.tensor([1, 0, 1]), (0, 0))
    with monitor.watch(0, (0, 0), ModelTensors({("all", 0): table_ND})):
        table_ND[:, 0] += 1
    printed = monitor.end_pass(0)

    assert printed is not None
    assert printed.details is not None
    ranks = [printed.details.after[f"both.{of}.mean_reciprocal_rank"] for of in ("realistic", "pessimistic")]
    assert ranks[0] != ranks[1]
    for metric in ("mrr", "pos_rank", "r10"):
        name = f"both.{'pessimistic' if pbg_semantics else 'realistic'}.{PBG_NAMES[metric]}"
        [row] = read_curves(tmp_path, metric, pytest.fail).passes
        assert (row.before, row.after, row.training) == pytest.approx(
            tuple(of[name] for of in (printed.details.before, printed.details.after, printed.details.training or {}))
        )
    [row] = read_curves(tmp_path, "mrr", pytest.fail).passes
    assert f"{row.before:.4f} before and {row.after:.4f} after" in str(printed)


def test_a_pass_that_was_interrupted_is_not_the_best() -> None:
    details = VisitDetails()
    visits = tuple(
        evolve(visit(key, 0, at, 10, 0.1, 0.2 + at), details=details) for at, key in enumerate((FIRST, SECOND))
    )

    curves = curves_of(History(visits, (PassRecord(FIRST, 0, PbgFigures(10, {"mrr": 0.2}), PassDetails()),)), {}, "mrr")

    assert [row.is_finished for row in curves.passes] == [True, False]
    assert (curves.best, curves.last) == (curves.passes[0], curves.passes[0])
    assert {"in epoch 0"} == {tile.lines[0] for tile in training_tiles(curves) if tile.name != "Gap"}
    assert [row[0] for row in passes_of(curves).rows] == ["0 (keep)", "1 (unfinished)"]


def test_a_model_that_diverged_is_counted_and_left_out_of_the_means() -> None:
    diverged = VisitRecord(FIRST, Bucket(1, 0), 1, None, None, None, VisitDetails(diverged=True, reason="NaN"))
    [row] = curves_of(History((visit(FIRST, 0, 0, 10, 0.1, 0.2), diverged), ()), {}, "mrr").passes

    assert (row.diverged_buckets, row.after, row.gap) == ((Bucket(1, 0),), pytest.approx(0.2), pytest.approx(0.1))


# What PyTorch-BigGraph 1.0.0 writes of NaN scores
ALL_FIRST = {"pos_rank": 1.0, "mrr": 1.0, "r1": 1.0, "r10": 1.0, "r50": 1.0, "auc": 0.0}
SOUND = {"pos_rank": 9.5, "mrr": 0.25, "auc": 0.875, "loss": 2.0}


def pbg_visit(
    key: PassKey,
    lhs: int,
    after: Mapping[str, float] = SOUND,
    *,
    before: Mapping[str, float] = SOUND,
    training: float = 2.0,
    count: int = 501,
) -> VisitRecord:
    figures = [PbgFigures(count, of) for of in ({"loss": training}, before, after)]
    return VisitRecord(key, Bucket(lhs, 0), 0, *figures)


@pytest.mark.parametrize(
    ("visit", "diverged"),
    [
        (pbg_visit(FIRST, 0), False),
        (pbg_visit(FIRST, 0, ALL_FIRST), True),
        (pbg_visit(FIRST, 0, before=ALL_FIRST), True),
        (pbg_visit(FIRST, 0, SOUND | {"mrr": math.nan}), True),
        (pbg_visit(FIRST, 0, SOUND | {"loss": math.nan}), True),
        (pbg_visit(FIRST, 0, training=math.nan), True),
        (pbg_visit(FIRST, 0, ALL_FIRST | {"auc": 1.0}), False),
        (pbg_visit(FIRST, 0, ALL_FIRST | {"auc": 0.002}), False),
        (pbg_visit(FIRST, 0, ALL_FIRST | {"mrr": 0.999}), False),
        (pbg_visit(FIRST, 0, {"mrr": 1.0}), False),
        (pbg_visit(FIRST, 0, ALL_FIRST, count=2), False),
    ],
    ids=[
        "sound", "all first", "all first before", "MRR NaN", "loss NaN", "loss of training NaN", "perfect",
        "one pair of 501 is right", "one edge is not first", "no AUC", "two edges, by chance",
    ],
)  # fmt: skip
def test_records_of_pytorch_biggraph_show_nan_scores(visit: VisitRecord, diverged: bool) -> None:
    assert visit.diverged == diverged


@pytest.mark.parametrize("metric", ["mrr", "pos_rank", "auc", "loss"])
def test_an_epoch_in_which_pytorch_biggraph_diverged_is_never_kept(metric: str) -> None:
    visits = (
        pbg_visit(FIRST, 0),
        pbg_visit(FIRST, 1),
        pbg_visit(SECOND, 0),
        pbg_visit(SECOND, 1, ALL_FIRST | {"loss": math.nan}, training=math.nan),
    )
    curves = curves_of(History(visits, ()), {}, metric)

    assert [row.diverged_buckets for row in curves.passes] == [(), (Bucket(1, 0),)]
    assert (curves.last, curves.best) == (curves.passes[1], curves.passes[0])
    assert curves.last.after == SOUND[metric]
    assert [[*of] for of in curves.teeth.values()] == [[0, 1], [0]]


def test_a_model_that_diverged_at_once_is_told_of_in_place_of_missing_figures() -> None:
    visits = tuple(pbg_visit(key, 1, ALL_FIRST, before=ALL_FIRST) for key in (FIRST, SECOND))
    ours = VisitRecord(PassKey(0, 1, 2), Bucket(1, 0), 0, None, None, None, VisitDetails(diverged=True))

    told = (
        r"the model diverged in epoch 0{}, bucket \(1, 0\): scores are NaN or infinite, or .*, so there are no figures"
    )
    for history, chunk in ((History(visits, ()), ""), (History((ours,), ()), ", path 1, chunk 2")):
        with pytest.raises(DataError, match="^" + told.format(chunk)):
            curves_of(history, {}, "mrr")


def curves_with(after_PB: np.ndarray, training: Sequence[float], error: float, metric: str = "mrr") -> Curves:
    """Return the curves of passes (P, B) over buckets, each of which begins as the last one ended."""
    means = after_PB.mean(1)
    rows = [
        PassRow(PassKey(at), means[max(at - 1, 0)], means[at], of, error, "no_bucket_overfitting", (), 10 * error)
        for at, of in enumerate(training)
    ]
    teeth = {
        (0, 0, bucket, 0): {at: BucketVisit(10, 0.0, after) for at, after in enumerate(after_P)}
        for bucket, after_P in enumerate(after_PB.T)
    }
    return Curves(metric, tuple(rows), teeth)


@pytest.mark.parametrize("num_passes", [3, 8, 20])
@pytest.mark.parametrize("num_buckets", [1, 4, 9])
@pytest.mark.parametrize("is_walk", [False, True])
def test_noise_is_called_overfitting_in_no_more_runs_than_stated(
    is_walk: bool, num_buckets: int, num_passes: int
) -> None:
    random, num_runs = np.random.default_rng(num_passes), 400
    error = 0.01 * math.sqrt((1 if is_walk else 2) / num_buckets)  # of the change from one pass to the next
    alarms = 0
    for _ in range(num_runs):
        noise = random.normal(0, 0.01, (num_passes, num_buckets))
        after = 0.3 + (noise.cumsum(0) if is_walk else noise)
        alarms += curves_with(after, [0.5 + at / 100 for at in range(num_passes)], error).overfits

    assert alarms / num_runs <= 0.05 + NormalDist().inv_cdf(0.999) * math.sqrt(0.05 * 0.95 / num_runs)


@pytest.mark.parametrize("num_buckets", [1, 2, 6])
def test_a_fall_beyond_the_errors_is_overfitting_where_training_edges_have_not_fallen(num_buckets: int) -> None:
    level = np.array([0.1, 0.2, 0.3, 0.28, 0.25, 0.2])[:, None]
    after = level + np.random.default_rng(1).normal(0, 0.001, (6, num_buckets))
    rising, falling = [0.1, 0.3, 0.5, 0.6, 0.7, 0.8], [0.1, 0.3, 0.5, 0.4, 0.3, 0.2]

    overfits = curves_with(after, rising, 0.001)
    assert (overfits.overfits, overfits.best) == (True, overfits.passes[2])
    told = verdicts_of(overfits)
    best, now = (f"{of:.4f}" for of in (after.mean(1)[2], after.mean(1)[-1]))
    assert told[:2] == [
        f"Keep epoch 2 (MRR {best}); now {now}.",
        "Overfitting to training edges: since epoch 2, MRR of training edges went from 0.5000 to 0.8000 and "
        f"that of held-out edges from {best} to {now}. Stop, and use the model of epoch 2.",
    ]
    assert (overfits.is_bad, overfits.is_sound) == (True, False)
    assert curves_with(-after, [-of for of in rising], 0.001, "pos_rank").overfits, "lower is better"
    fine = {
        "it falls apart": curves_with(after, falling, 0.001),
        "it learns": curves_with(after[:3], rising[:3], 0.001),
    }
    noise = {"noise": curves_with(after, rising, 0.1)} if num_buckets < 4 else {}
    assert [name for name, of in (fine | noise).items() if of.overfits] == []


def curves_of_edges(values_PE: np.ndarray, chunk_size: int) -> Curves:
    """Return the curves of passes (P, E) over the edges of one bucket, which were followed; training edges improve."""
    means = values_PE.mean(1)
    at_best = last_improvement(means.tolist(), 1)
    fall_E = np.rint((values_PE[at_best] - values_PE[-1]) * 2.0**VALUE_BITS).astype(np.int64)
    of_edges = QueryValues(np.repeat(fall_E[:, None], len(METRICS), 1), np.ones((len(fall_E), len(METRICS)), np.int64))
    sums = ClusterSums.from_values(of_edges, np.arange(len(fall_E)) // chunk_size)
    fall = sums.estimate(METRICS[0])
    rows = [
        PassRow(PassKey(at), mean, mean, 0.5 + at / 100, None, "needs_3_visits", ()) for at, mean in enumerate(means)
    ]
    paired = Change(fall.value, fall.standard_error, sums.num_clusters - 1)
    rows[-1] = evolve(rows[-1], paired_fall=paired, fell_from=at_best)
    return Curves("mrr", tuple(rows), {(0, 0, 0, 0): {at: BucketVisit(10, of, of) for at, of in enumerate(means)}})


@pytest.mark.parametrize("num_passes", [2, 5, 21])
@pytest.mark.parametrize(("num_edges", "chunk_size"), [(30, 30), (450, 450), (600, 50)])
@pytest.mark.parametrize("is_walk", [False, True])
def test_models_as_good_as_before_are_called_overfit_in_no_more_runs_than_stated(
    is_walk: bool, num_edges: int, chunk_size: int, num_passes: int
) -> None:
    """Each pass is as good as the last on average; edges of several chunks change together in part."""
    random, num_runs = np.random.default_rng(num_passes), 400
    alarms = 0
    for _ in range(num_runs):
        noise = random.normal(0, 0.05, (num_passes, num_edges))
        if num_edges > chunk_size:
            noise += np.repeat(random.normal(0, 0.02, (num_passes, num_edges // chunk_size)), chunk_size, 1)
        noise *= random.exponential(1.0, num_edges)  # few edges change much
        values = random.beta(0.3, 2.0, num_edges) + (noise.cumsum(0) if is_walk else noise)
        alarms += curves_of_edges(values, chunk_size).overfits

    assert alarms / num_runs <= 0.05 + NormalDist().inv_cdf(0.999) * math.sqrt(0.05 * 0.95 / num_runs)


def test_a_fall_of_the_same_edges_in_one_bucket_is_overfitting() -> None:
    """450 edges and 21 passes, from 0.1307 to 0.1064, which is 3.75 standard errors: not by chance."""
    random = np.random.default_rng(2)
    change = random.normal(size=450)
    change = (change - change.mean()) / change.std() * 0.0243 / 3.75 * math.sqrt(450)
    values = np.full((21, 450), 0.12)
    values[5], values[-1] = 0.1307, 0.1307 - 0.0243 - change

    curves = curves_of_edges(values, 450)

    assert (curves.best, curves.overfits) == (curves.passes[5], True)
    assert "Stop, and use the model of epoch 5." in verdicts_of(curves)[1]
    unpaired = evolve(curves, passes=tuple(evolve(row, paired_fall=None) for row in curves.passes))
    assert (
        "1 bucket is too few to test such a fall, and edges were not compared one by one since epoch 5"
        in verdicts_of(unpaired)[1]
    )
    by_hits = evolve(unpaired, metric="r10")
    assert "1 bucket is too few to test such a fall" in verdicts_of(by_hits)[1]
    values[-1] += 0.0243 * (1 - 2.5 / 3.75)  # 2.5 standard errors: 20 passes could have been best
    assert "chance may explain it" in verdicts_of(curves_of_edges(values, 450))[1]


def test_of_a_single_bucket_there_is_no_verdict_about_buckets() -> None:
    curves = curves_with(np.full((5, 1), 0.25), [0.49] * 5, 0.01)

    assert verdicts_of(curves) == [
        "Keep epoch 0 (MRR 0.2500); now 0.2500.",
        "No overfitting to training edges: held-out edges are as good as after epoch 0.",
    ]
    table = passes_of(curves)
    assert table.columns == ("epoch", "before", "after", "gap", "training", "train−held out")
    assert table.rows[0] == ("0 (keep)", "0.2500", "0.2500", "0.000 ± 0.010", "0.4900", "+0.24 ± 0.10")


AT_BEST = "Keep epoch 0 ({} 0.0700), the last one."
NO_OVERFITTING = "No overfitting to training edges: held-out edges are at their best."
AS_GOOD = "No overfitting to training edges: held-out edges are as good as after epoch 0."


def last_row(metric: str = "mrr", gap: float = 0.01, training: float = 0.65, error: float | None = 0.02) -> Curves:
    """Return the curves of one pass over two buckets that ends at 0.07."""
    row = PassRow(FIRST, 0.07 - gap, 0.07, training, 0.0012, "no_bucket_overfitting", (), error)
    return Curves(metric, (row,), {(0, 0, bucket, 0): {0: BucketVisit(10, 0.07 - gap, 0.07)} for bucket in range(2)})


def test_a_fit_to_training_edges_is_said_before_all_else() -> None:
    told = (
        "The model fits its training edges far better: MRR is 0.6500 on them, 0.0700 on held-out edges. "
        "Training on still helps; more regularization might, too."
    )
    no_bucket = "No bucket overfitting: held-out edges keep what they gain in a visit until the next one."

    assert verdicts_of(last_row()) == [AT_BEST.format("MRR"), told, "Held-out edges are at their best.", no_bucket]
    assert (last_row().is_bad, last_row().is_sound) == (True, False)
    later = [(0.1830, 0.4), (0.1825, 0.45), (0.1820, 0.5242)]
    for number, more in ((3, " Held-out edges have stopped improving: stop, or regularize more."), (2, "")):
        told = verdicts_of(passes((0.1837, 0.3), *later[-number:], error=0.01))[1]
        assert told == f"{FAR_BETTER.format(0.5242, 0.1820)}{more}"
    for of in (
        last_row(training=0.13),  # less than twice as good
        last_row(error=0.4),  # within the error
        last_row(error=None),
        last_row("pos_rank", gap=-0.01),  # lower is better, so training is worse
    ):
        assert verdicts_of(of)[1:] == [NO_OVERFITTING, no_bucket]
        assert (of.is_bad, of.is_sound) == (False, True)
    of_ranks = verdicts_of(last_row("pos_rank", gap=-0.01, training=0.01))
    told = "The model fits its training edges far better: mean rank is 0.0100 on them"
    assert [of.startswith(told) for of in of_ranks] == [False, True, False, False]


FAR_BETTER = "The model fits its training edges far better: MRR is {:.4f} on them, {:.4f} on held-out edges."


def test_a_model_that_is_hardly_better_than_chance_is_told_first() -> None:
    lists = RankedLists(500, 400.0, 0.0295)
    far = passes((0.0300, 0.5), (0.0349, 0.6707), error=0.01, lists=lists)
    fell = passes((0.0349, 0.5), (0.0301, 0.6707), error=0.01, lists=lists)
    near = "which is close to chance (0.0295)."

    assert verdicts_of(far)[:3] == [
        f"Keep epoch 1 (MRR 0.0349), {near}",
        UNFILTERED,
        f"{FAR_BETTER.format(0.6707, 0.0349)} More regularization might help.",
    ]
    assert verdicts_of(fell)[0] == f"Keep epoch 0 (MRR 0.0349; now 0.0301), {near}"
    filtered = evolve(far, passes=(*far.passes[:-1], evolve(far.last, lists=evolve(lists, filtered=True))))
    assert verdicts_of(filtered) == [told for told in verdicts_of(far) if told != UNFILTERED]
    little = passes((0.0200, 0.04), (0.0210, 0.0550), error=0.001, lists=lists)
    advice = "Neither is far from chance: check the loss, or lower the learning rate."
    assert verdicts_of(little)[1:3] == [
        "Held-out edges are ranked no better than by chance (MRR 0.0295).",
        f"{FAR_BETTER.format(0.0550, 0.0210)} {advice}",
    ]
    for of in (
        passes((0.0300, 0.5), (0.0591, 0.6707), error=0.01, lists=lists),  # twice chance
        passes((0.0300, 0.04), (0.0349, 0.05), error=0.01, lists=lists),  # training edges are as bad
        passes((0.0300, 0.5), (0.0349, 0.6707), error=0.01),  # records without chance
        passes((9.0, 2.0), (8.0, 1.0), error=0.01, lists=lists, metric="pos_rank"),
    ):
        assert verdicts_of(of)[0].endswith(", the last one.")


@pytest.mark.parametrize(("num_edges", "is_told"), [(1, True), (6, True), (99, True), (100, False)])
def test_figures_of_few_held_out_edges_are_called_rough(num_edges: int, is_told: bool) -> None:
    for of in (last_row(), last_row(gap=-0.01)):
        last = evolve(of.last, lists=RankedLists(num_edges, 50.0, 0.05))
        told = verdicts_of(evolve(of, passes=(last,)))[0]
        edges = "1 held-out edge" if num_edges == 1 else f"{num_edges} held-out edges"
        assert told.endswith(f" These figures are rough: only {edges}; raise eval_fraction.") == is_told


def test_held_out_edges_at_chance_are_said_and_not_sound() -> None:
    found = last_row(training=0.07)
    for by_chance, is_chance in ((0.08, True), (0.07, True), (0.06, False)):
        row = evolve(found.last, lists=RankedLists(10, 60.0, by_chance))
        curves = evolve(found, passes=(row,))

        told = f"Held-out edges are ranked no better than by chance (MRR {by_chance:.4f})."
        assert (told in verdicts_of(curves), curves.is_sound) == (is_chance, not is_chance)
        assert UNFILTERED not in verdicts_of(curves)  # training edges are at chance, too


@pytest.mark.parametrize(
    ("since", "now", "told"),
    [
        ((0.1, 0.08), (0.085, 0.079), "; visits to other buckets give 0.005 back."),
        ((0.1, 0.085), (0.085, 0.079), ", and visits to other buckets give nothing back."),
    ],
)
@pytest.mark.parametrize(("metric", "sign"), [("mrr", 1), ("pos_rank", -1)])
def test_what_visits_cost_is_told_where_it_is_significant(
    since: tuple[float, float], now: tuple[float, float], told: str, metric: str, sign: int
) -> None:
    def curves(gap_error: float | None, verdict: Verdict = "no_bucket_overfitting") -> Curves:
        pairs = [(sign * before, sign * after) for before, after in (since, now)]
        rows = [PassRow(PassKey(at), *pair, None, gap_error, verdict, ()) for at, pair in enumerate(pairs)]
        teeth = {
            (0, 0, bucket, 0): {at: BucketVisit(10, *pair) for at, pair in enumerate(pairs)} for bucket in range(4)
        }
        return Curves(metric, tuple(rows), teeth)

    name = {"mrr": "MRR", "pos_rank": "mean rank"}[metric]
    cost = f"No bucket overfitting, but a visit costs its bucket's held-out edges 0.006 in {name}"
    as_good = "No bucket overfitting: held-out edges are about as good after a visit as before it."
    assert verdicts_of(curves(0.002))[-1] == cost + told
    assert [verdicts_of(curves(of))[-1] for of in (0.004, None)] == [as_good] * 2
    assert verdicts_of(curves(0.002, "undecided"))[-1] == "Bucket overfitting: undecided; more epochs are needed."


def passes(
    *figures: tuple[float, float | None],
    verdict: Verdict = "no_bucket_overfitting",
    metric: str = "mrr",
    error: float = 9.0,
    lists: RankedLists | None = None,
) -> Curves:
    """Return the curves of passes over two buckets, from (held-out, training) of each; errors explain every change.

    With a smaller `error` of training - held-out, that difference is significant.
    """
    rows = [
        PassRow(PassKey(at), after, after, training, 9.0, verdict, (), error, lists)
        for at, (after, training) in enumerate(figures)
    ]
    teeth = {
        (0, 0, bucket, 0): {at: BucketVisit(10, after, after) for at, (after, _) in enumerate(figures)}
        for bucket in range(2)
    }
    return Curves(metric, tuple(rows), teeth)


def test_a_fall_while_training_edges_improve_is_open_until_it_is_significant() -> None:
    found = passes((0.0425, 0.025), (0.0526, 0.05), (0.0417, 0.0721))
    told = [
        "Keep epoch 1 (MRR 0.0526); now 0.0417.",
        "Overfitting to training edges: undecided, as {}: since epoch 1, MRR of training "
        "edges went from 0.0500 to 0.0721 and that of held-out edges from 0.0526 to 0.0417.",
        "No bucket overfitting: held-out edges keep what they gain in a visit until the next one.",
    ]
    ranks = passes((9.0, 5.0), (7.5, 4.0), (8.0, 3.0), metric="pos_rank")

    too_few = "2 buckets are too few to test such a fall"
    unfollowed = [of.format(f"{too_few}, and edges were not compared one by one since epoch 1") for of in told]
    assert verdicts_of(found) == unfollowed
    for fell_from, expected in ((1, [of.format("chance may explain it") for of in told]), (0, unfollowed)):
        last = evolve(found.last, paired_fall=Change(0.0109, 0.01, 99), fell_from=fell_from)
        assert verdicts_of(evolve(found, passes=(*found.passes[:-1], last))) == expected
    best, undecided, _ = verdicts_of(ranks)
    assert best == "Keep epoch 1 (mean rank 7.5000); now 8.0000."
    assert undecided.startswith("Overfitting to training edges: undecided")
    assert [(of.is_bad, of.is_sound) for of in (found, ranks)] == [(False, False)] * 2


@pytest.mark.parametrize(
    ("figures", "told", "is_sound"),
    [
        ([(0.1, 0.1), (0.2, 0.2)], "1 (MRR 0.2000), the last one. " + NO_OVERFITTING, True),
        ([(0.2, None), (0.1, None)], "0 (MRR 0.2000); now 0.1000. Overfitting to training edges: not known", False),
        ([(0.1, None), (0.2, None)], "1 (MRR 0.2000), the last one. Overfitting to training edges: not known", False),
    ],
    ids=["better", "fell without training", "rose without training"],
)
def test_what_is_told_of_training_edges(figures: list[tuple[float, float | None]], told: str, is_sound: bool) -> None:
    curves = passes(*figures)

    assert " ".join(verdicts_of(curves)).startswith(f"Keep epoch {told}")
    assert curves.is_sound == is_sound


def diverging(curves: Curves, *at: int, unfinished: Sequence[int] = ()) -> Curves:
    """Return curves of which one of two visits to buckets has diverged in some passes."""
    rows = [
        evolve(row, diverged_buckets=(Bucket(1, 0),)) if number in at else row
        for number, row in enumerate(curves.passes)
    ]
    finished = [evolve(row, is_finished=number not in unfinished) for number, row in enumerate(rows)]
    return evolve(curves, passes=tuple(finished))


IMPROVING = passes(*[(0.1 + at / 10, 0.2 + at / 10) for at in range(4)])
HAS_DIVERGED = (
    "The model diverged in epoch {}, bucket (1, 0): scores are NaN or infinite, or a vector is zero under cos. "
)
GO_BACK = "To resume, load the model of epoch {} and lower the learning rate."


@pytest.mark.parametrize(
    ("curves", "told"),
    [
        (diverging(IMPROVING, 3), ("3", "Keep epoch 2 (MRR 0.3000).", GO_BACK.format(2))),
        (diverging(IMPROVING, 1, 2, 3), ("1", "Keep epoch 0 (MRR 0.1000).", GO_BACK.format(0))),
        (diverging(IMPROVING, 0, 3), ("3", "Keep epoch 2 (MRR 0.3000).", GO_BACK.format(2))),
        (diverging(IMPROVING, 3, unfinished=[3]), ("3", "Keep epoch 2 (MRR 0.3000).", GO_BACK.format(2))),
        (diverging(IMPROVING, 2, unfinished=[3]), ("2", "Keep epoch 1 (MRR 0.2000).", GO_BACK.format(1))),
        (
            diverging(IMPROVING, *range(4)),
            ("0", "There is no epoch to keep.", "Train again with a lower learning rate."),
        ),
    ],
    ids=["last", "from then on", "twice", "unfinished", "not yet recovered", "from the beginning"],
)
def test_a_model_that_diverged_is_told_of_first_and_alone(curves: Curves, told: tuple[str, ...]) -> None:
    assert verdicts_of(curves) == [HAS_DIVERGED.format(told[0]) + told[1], told[2]]
    assert (curves.is_bad, curves.is_sound) == (True, False)
    page = page_of(Source("monitor", None, curves))
    assert page.notice is not None
    assert (page.lead, page.notice.lines, page.notice.tone) == (verdicts_of(curves)[0], [told[2]], "warning")


def test_a_model_that_recovered_is_judged_as_it_is_now_but_not_green() -> None:
    curves = diverging(IMPROVING, 0, 2)

    assert IMPROVING.is_sound
    assert verdicts_of(curves) == [*verdicts_of(IMPROVING), "The model diverged in epochs 0, 2 but recovered."]
    assert (curves.is_bad, curves.is_sound) == (False, False)


def test_records_of_a_monitor_whose_partition_diverged_tell_it(tmp_path: Path) -> None:
    source = torch.Generator().manual_seed(3)
    schema = ModelSchema([MonitoredRelation("all", "all", "all", all_negs=True)], {"all": 2}, "dot")
    monitor = Monitor(schema, tmp_path, eval_fraction=0.4, warn=lambda line: None)
    tables = {("all", part): torch.randn(40, 4, generator=source) for part in range(2)}
    edges = torch.randint(40, (100, 3), generator=source) * torch.tensor([1, 0, 1])
    for epoch in range(3):
        for bucket in ((0, 0), (1, 1)):
            monitor.split(edges, bucket)
            with monitor.watch(epoch, bucket, ModelTensors(tables)):
                if (epoch, bucket) == (1, (1, 1)):
                    tables["all", 1][3] = math.nan
        monitor.end_pass(epoch)

    curves = read_curves(tmp_path, "mrr", pytest.fail)
    keep = f"Keep epoch 0 (MRR {curves.passes[0].after:.4f})."
    diverged = (
        "The model diverged in epoch 1, bucket (1, 1): scores are NaN or infinite, or a vector is zero under cos."
    )
    assert verdicts_of(curves) == [f"{diverged} {keep}", GO_BACK.format(0)]


WORSE = "held-out edges got worse"
OPEN = f"Whether {WORSE} is undecided, as"
CHANCE = "chance may explain it"
TOO_FEW = "2 buckets are too few to test such a fall, and edges were not compared one by one since epoch 0"
NO, UNDECIDED = "No overfitting to training edges", "Overfitting to training edges: undecided, as"
DIVERGING = "Training may be diverging, as training edges got worse: {}"
LOWER = ". A lower learning rate might help."
# MRR of held-out edges after the last pass (0.2 after the first), and their fall edge by edge
HELD_OUT: dict[str, tuple[float, Change | None]] = {
    "as good": (0.2, None),
    "clear": (0.18, Change(0.02, 0.002, 99)),
    "by chance": (0.18, Change(0.02, 0.02, 99)),
    "unknown": (0.18, None),
    "beyond the bound": (0.17, None),
}
# MRR of training edges after both passes
TRAINING = {"up": (0.3, 0.31), "flat": (0.3, 0.3), "a little down": (0.3, 0.275), "down": (0.3, 0.2)}
WHAT_IS_TOLD = {
    "as good": (f"{NO}: held-out edges are as good as after epoch 0.",) * 3 + (DIVERGING + LOWER,),
    "clear": (
        "Overfitting to training edges so far: {}. They may recover; train a few more epochs.",
        *[f"{NO}, but {WORSE}: {{}}."] * 2,
        f"{DIVERGING}; {WORSE}, too{LOWER}",
    ),
    "by chance": (
        f"{UNDECIDED} {CHANCE}: {{}}.",
        *[f"{NO}: {{}}. {OPEN} {CHANCE}."] * 2,
        f"{DIVERGING}. {OPEN} {CHANCE}{LOWER}",
    ),
    "unknown": (
        f"{UNDECIDED} {TOO_FEW}: {{}}.",
        *[f"{NO}: {{}}. {OPEN} {TOO_FEW}."] * 2,
        f"{DIVERGING}. {OPEN} {TOO_FEW}{LOWER}",
    ),
}
WHAT_IS_TOLD["beyond the bound"] = WHAT_IS_TOLD["clear"]


def told_of(held_out: str, training: tuple[float, float], error: float = 0.01) -> tuple[Curves, str]:
    """Return the curves of two passes, and the sentence of how their figures changed."""
    now, fall = HELD_OUT[held_out]
    curves = passes((0.2, training[0]), (now, training[1]), error=error)
    last = evolve(curves.last, paired_fall=fall, fell_from=0)
    changes = (
        f"since epoch 0, MRR of training edges went from {training[0]:.4f} to {training[1]:.4f} and that of held-out "
        f"edges from 0.2000 to {now:.4f}"
    )
    return evolve(curves, passes=(curves.passes[0], last)), changes


@pytest.mark.parametrize("at", range(4), ids=TRAINING)
@pytest.mark.parametrize("held_out", HELD_OUT)
def test_every_verdict_on_training_edges_says_what_the_tests_say(held_out: str, at: int) -> None:
    curves, changes = told_of(held_out, [*TRAINING.values()][at])
    is_bad = at == 3 or (at == 0 and held_out in ("clear", "beyond the bound"))

    assert verdicts_of(curves)[1] == WHAT_IS_TOLD[held_out][at].format(changes)
    assert (curves.is_bad, curves.is_sound) == (is_bad, held_out == "as good" and not is_bad)


@pytest.mark.parametrize("at", range(4), ids=TRAINING)
@pytest.mark.parametrize("held_out", HELD_OUT)
def test_verdicts_beside_a_far_better_fit_say_what_the_tests_say(held_out: str, at: int) -> None:
    before, after = (of * 3 for of in [*TRAINING.values()][at])
    curves, changes = told_of(held_out, (before, after))
    is_clear = held_out in ("clear", "beyond the bound")

    [_, *told, _] = verdicts_of(curves)
    is_first = at == 3 or (at == 0 and is_clear)
    found, far_better = told if is_first else told[::-1]
    assert far_better.startswith(FAR_BETTER.format(after, curves.last.after))
    if is_first:
        assert found == WHAT_IS_TOLD[held_out][at].format(changes)
    elif held_out == "as good":
        assert found == "Held-out edges are as good as after epoch 0."
    else:
        why = {"by chance": CHANCE, "unknown": TOO_FEW}.get(held_out)
        assert found == (f"Held-out edges got worse: {changes}." if is_clear else f"S{changes[1:]}. {OPEN} {why}.")


def test_training_edges_that_got_worse_within_the_errors_are_not_diverging() -> None:
    curves, _ = told_of("as good", TRAINING["down"], error=0.05)
    ranks = [passes((7.5, 4.0), (8.0, of), metric="pos_rank", error=0.1) for of in (2.0, 4.3, 12.0)]
    unknown = evolve(curves, passes=tuple(evolve(row, generalization_error=None) for row in curves.passes))

    assert verdicts_of(curves)[1] == AS_GOOD
    assert [of.training_fell for of in (curves, unknown, *ranks)] == [False, False, False, False, True]


def test_the_tolerance_of_the_monitor_decides_whether_training_diverges(tmp_path: Path) -> None:
    schema = ModelSchema([MonitoredRelation("all", "all", "all", all_negs=True)], {"all": 1}, "dot")
    monitor = Monitor(schema, tmp_path, eval_fraction=0.4, tolerance=0.5)
    monitor.split(torch.tensor([[at, 0, at + 1] for at in range(50)]), (0, 0))
    with monitor.watch(0, (0, 0), ModelTensors({("all", 0): torch.eye(51, 4)})):
        pass
    monitor.end_pass(0)
    recorded = read_curves(tmp_path, "mrr", pytest.fail).last.tolerance
    curves, _ = told_of("as good", TRAINING["down"])

    assert recorded == 0.5
    for tolerance, fell in ((0.1, True), (0.2, True), (recorded, False)):
        last = evolve(curves.last, tolerance=tolerance)
        assert evolve(curves, passes=(curves.passes[0], last)).training_fell == fell


def test_the_epoch_to_keep_is_the_last_that_improved_by_more_than_02_percent() -> None:
    hardly, ranks, last = (
        passes((0.1, 0.1), (0.2, 0.2), (0.2003, 0.21), (0.2002, 0.22)),
        passes((7.5, 4.0), (7.49, 3.0), (7.6, 2.0), metric="pos_rank"),
        passes((0.2, 0.2), (0.2003, 0.21), (0.2005, 0.22)),
    )

    kept = [verdicts_of(of)[0] for of in (hardly, ranks, last)]
    assert kept == [
        "Keep epoch 1 (MRR 0.2000), as epoch 2 (0.2003) is at most 0.2% better; now 0.2002.",
        "Keep epoch 0 (mean rank 7.5000), as epoch 1 (7.4900) is at most 0.2% better; now 7.6000.",
        "Keep epoch 2 (MRR 0.2005), the last one.",
    ]
    assert verdicts_of(hardly)[1] == AS_GOOD.replace("0.", "1.")
    assert [row[0] for row in passes_of(hardly).rows] == ["0", "1 (keep)", "2", "3"]


def test_only_both_answers_together_are_good() -> None:
    rising = ((0.1, 0.1), (0.2, 0.2))
    verdicts: tuple[Verdict, ...] = get_args(Verdict)

    assert {of: passes(*rising, verdict=of).is_sound for of in verdicts} == {
        of: of == "no_bucket_overfitting" for of in verdicts
    }
    assert [of for of in verdicts if passes(*rising, verdict=of).is_bad] == ["bucket_overfitting"]


@pytest.mark.parametrize("num_diverged", [0, 2])
@pytest.mark.parametrize("error", [0.0002, 0.002, 0.02])
def test_the_table_of_the_terminal_keeps_words_and_figures_at_80_columns(error: float, num_diverged: int) -> None:
    row = PassRow(PassKey(11), 0.07, 0.08, 0.65, error, "undecided", (Bucket(0, 0),) * num_diverged, error)
    curves = Curves("mrr", (row,), {(0, 0, bucket, 0): {0: BucketVisit(10, 0.07, 0.08)} for bucket in range(2)})

    lines = to_text(training_table(curves), 80)
    text = lines.split()

    assert {"11", "0.0700", "0.0800", "0.6500", "undecided"} <= {*text}
    assert " train−held out " in lines
    assert len([of for of in text if of.startswith("+") and of.endswith(f"±{error}")]) == 2
    assert ("diverged" in text, "(keep)" in text) == (num_diverged > 0, num_diverged == 0)


@pytest.mark.parametrize(
    ("history", "found"),
    [
        (History((visit(FIRST, 0, 0, 10, 0.1, 0.2),), ()), "found mrr"),
        (History((visit(FIRST, 0, 0, 0, None, None),), ()), "found no held-out edges at all"),
    ],
)
def test_records_without_the_metric_are_refused(history: History, found: str) -> None:
    with pytest.raises(DataError, match=f"'auc', {found}"):
        curves_of(history, {}, "auc")


def test_visits_are_drawn_for_several_buckets() -> None:
    one, two = (training_charts(curves_with(np.full((3, number), 0.2), [0.3] * 3, 0.1)) for number in (1, 2))

    assert [chart.title for chart in one] == [chart.title for chart in two[:2]]
    assert "training overfits to buckets" in two[2].note
