"""A sampled edge has the counts that it has among all edges; a sample of all edges is exact; intervals cover."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from pbgeval import evaluate, load_config
from pbgeval.inputs import edge_sample
from pbgeval.inputs import partitions as memory
from pbgeval.inputs.edge_sample import EdgeSample
from pbgeval.metrics import summary
from pbgeval.metrics.intervals import SampledQueries, round_level, sample_intervals
from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.progress import Observer
from pbgeval.ranking import auc_sampling
from pbgeval.report.figures import final_table
from pbgeval.report.notes import LEAKS_UNCHECKED
from pbgeval.report.report import Report
from pbgeval.results.result import errors_of
from pbgeval.stats.groups import ScorePool, SortedPool, share_of, sortable_int32, with_clusters
from pbgeval.stats.ranks import RankCounts
from pbgeval.storage.row_files import RANK_COLUMNS, find_ranks
from pbgeval.worker import rounds
from pbgeval.worker import rounds as sampling
from tests.kit.case import TinyCase
from tests.laws.test_order_does_not_matter import result_in
from tests.saved_ranks import read_ranks

MRR, HITS = "both.realistic.mean_reciprocal_rank", "both.realistic.hits_at_1"


def case_in(folder: Path, patch: pytest.MonkeyPatch, **settings: Any) -> TinyCase:
    """Write a case, and go to its folder."""
    case = TinyCase.write(folder, **settings)
    patch.chdir(folder)
    return case


def run(case: TinyCase, output: Path, *overrides: str, observer: Observer | None = None) -> Report:
    # One edge per chunk and many chunks: a sample of a few dozen edges has several clusters.
    config = load_config(case.config, ["save_ranks=True", "filter_paths=edges", *overrides])
    return evaluate(config, output=output, workers=1, observer=observer)


def assert_alike(*reports: Report) -> None:
    first, second = ([of.document[part] for part in ("metrics", "macro_metrics")] for of in reports)
    assert first == second


def without_run(report: Report) -> dict[str, Any]:
    return json.loads(json.dumps(report.to_dict()))


@pytest.mark.one_case
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_a_sampled_edge_has_the_counts_that_it_has_among_all(
    dynamic: bool, candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all relations, or of some."""
    case = case_in(tmp_path / "case", monkeypatch, dynamic=dynamic, edges_per_bucket=40)
    overrides = [f"candidates={candidates}", *([] if dynamic else ["restrict_relations=rel:0,rel:2,rel:3"])]
    run(case, tmp_path / "whole", *overrides)

    observer = mock.create_autospec(Observer, instance=True)
    report = run(case, tmp_path / "sample", *overrides, "sample_edges=90", "seed=0", observer=observer)

    warnings = " ".join(call.args[0] for call in observer.warn.call_args_list)
    assert (candidates == "sampled") == ("chunks were sampled: intervals of rare hits may cover less" in warnings)
    assert 2 * report.document["num_edges"] == report.document["num_queries"]
    sampled = 0
    for path_index, bucket in find_ranks(tmp_path / "whole"):
        whole = read_ranks(tmp_path / "whole", path_index, bucket)
        some = read_ranks(tmp_path / "sample", path_index, bucket)
        for side in ENDS:
            drawn = some.columns[side]["num_candidates"] > 0
            sampled += int(drawn.sum())
            for column in RANK_COLUMNS:
                expected = np.where(drawn, whole.columns[side][column], 0)
                np.testing.assert_array_equal(expected, some.columns[side][column], column)
    assert sampled == report.document["num_queries"]
    if candidates != "sampled":
        assert report.document["num_edges"] == 90
    assert report.document["sample"]["unit"] == ("chunk" if candidates == "sampled" else "edge")
    assert report.intervals[MRR]["low"] < report[MRR] < report.intervals[MRR]["high"]


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_a_sample_of_all_edges_is_a_full_run(candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_in(tmp_path / "case", monkeypatch)
    whole = run(case, tmp_path / "whole", f"candidates={candidates}")
    observer = mock.create_autospec(Observer, instance=True)

    report = run(case, tmp_path / "sample", f"candidates={candidates}", "sample_edges=100000", observer=observer)

    notes = [call.args[0] for call in observer.note.call_args_list]
    units = "chunks of edges" if candidates == "sampled" else "edges"
    assert [
        note
        for note in notes
        if note.startswith("sample_edges=100000: all ") and note.endswith(f"{units} are evaluated")
    ]
    assert {**whole.document, "provenance": None} == {**report.document, "provenance": None}
    assert errors_of(report.document) == errors_of(whole.document) != {}


def test_a_sample_has_the_errors_of_test_edges_beside_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_in(tmp_path / "case", monkeypatch, edges_per_bucket=100)
    whole = run(case, tmp_path / "whole", "candidates=partition")
    num_edges = whole.document["num_edges"]

    report = run(case, tmp_path / "sample", "candidates=partition", f"sample_edges={num_edges - 2}")

    assert report.standard_errors[MRR] < 0.2 * whole.standard_errors[MRR]
    assert report.document["standard_errors"][MRR] == pytest.approx(whole.standard_errors[MRR], rel=0.1)
    notes = final_table(report.document).note
    assert f"how far a figure may be from that of all {num_edges:,} edges" in notes
    assert LEAKS_UNCHECKED not in notes  # no training edges
    with_training = run(case, tmp_path / "more", "candidates=partition", "sample_edges=20", "train_paths=edges")
    assert LEAKS_UNCHECKED in final_table(with_training.document).note


@pytest.mark.slow
def test_a_target_is_met_or_everything_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_in(tmp_path / "case", monkeypatch, edges_per_bucket=300)

    loose = run(case, tmp_path / "loose", "candidates=partition", "target_error=0.05", "target_metric=hits@1")
    tight = run(case, tmp_path / "tight", "candidates=partition", "target_error=0.000001")

    interval = loose.intervals[HITS]
    assert loose.document["num_edges"] == 2000
    assert max(loose[HITS] - interval["low"], interval["high"] - loose[HITS]) <= 0.05
    assert round_level(1) == loose.document["sample"]["level"]
    assert tight.document["sample"]["population"] == tight.document["num_edges"] > 2000
    assert tight.intervals[MRR]["standard_error"] == 0
    whole = run(case, tmp_path / "whole", "candidates=partition")
    assert_alike(whole, tight)


@pytest.mark.slow
@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_several_rounds_on_several_workers_give_the_numbers_of_one(
    candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round numbers its keys anew; what the workers share of one must not be read in the next."""
    case = case_in(tmp_path / "case", monkeypatch, edges_per_bucket=20)
    monkeypatch.setattr(edge_sample, "FIRST_ROUND_EDGES", 6)
    monkeypatch.setattr(sampling, "FIRST_ROUND_EDGES", 6)
    monkeypatch.setattr(memory, "PAIRS_BYTES", 64)  # one worker spills too
    overrides = [f"candidates={candidates}", "filter_paths=edges", "target_error=0.000001", "save_ranks=True"]
    config = load_config(case.config, overrides)

    reports = {size: result_in(config, size, tmp_path / f"output{size}") for size in (1, 3)}
    whole = result_in(load_config(case.config, overrides[:2]), 1, tmp_path / "whole")

    assert reports[1].document["sample"]["rounds"] > 2
    assert whole.document["metrics"] == reports[1].document["metrics"] == reports[3].document["metrics"]
    assert without_run(reports[1]) == without_run(reports[3])


# The pooled AUC of a sample.


@pytest.mark.one_case
@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_every_score_of_the_pool_has_the_cluster_of_its_edge(
    candidates: str, is_exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_in(tmp_path / "case", monkeypatch, edges_per_bucket=40)
    if not is_exact:
        monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
    with (
        mock.patch.object(summary, "pooled_auc", side_effect=summary.pooled_auc) as pooled_auc,
        mock.patch.object(rounds, "sample_intervals", side_effect=rounds.sample_intervals) as intervals,
    ):
        report = run(case, tmp_path / "sample", f"candidates={candidates}", "sample_edges=90")

    # Of heads, of tails, of both.
    _, _, parts, *_ = [call.args[0] for call in pooled_auc.call_args_list if call.kwargs["design"] is not None]
    pool, sampled = SortedPool.union(parts), intervals.call_args_list[0].args[0]
    num_clusters = report.document["sample"]["num_units"]
    expected = [
        np.bincount(sampled.cluster_Q, minlength=num_clusters),
        np.bincount(sampled.cluster_Q, sampled.counts.num_competitors_Q, num_clusters),
    ]
    found = [np.bincount(of, minlength=num_clusters) for of in (pool.true_cluster, pool.competing_cluster)]
    for of_queries, of_pool in zip(expected, found, strict=True):
        assert np.all(of_pool <= of_queries) if not is_exact else np.array_equal(of_pool, of_queries)
    assert found[1].sum() > 0
    assert report.intervals["both.auc"]["low"] < report["both.auc"] < report.intervals["both.auc"]["high"]


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_a_sample_has_the_same_numbers_on_several_workers(
    candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_in(tmp_path / "case", monkeypatch, edges_per_bucket=40)
    metrics = "metrics=rank,auc,average_precision"
    config = load_config(case.config, [f"candidates={candidates}", "sample_edges=90", metrics])

    one, three = (result_in(config, size, tmp_path / f"output{size}") for size in (1, 3))

    assert without_run(one) == without_run(three)
    assert one.intervals["both.auc"]["standard_error"] > 0


def test_a_share_of_scores_is_the_same_in_any_order() -> None:
    """A smaller share is a part of a larger one, and each score is as likely to be kept as any other."""
    codes = with_clusters(np.arange(-20_000, 20_000, dtype=np.int32).repeat(2), np.tile([3, 70_000], 40_000))
    large, small = share_of(codes, 0.5), share_of(codes, 0.1)

    assert np.array_equal(np.sort(share_of(codes[::-1], 0.1)), np.sort(small))
    assert np.array_equal(share_of(large, 0.1), small)
    assert np.array_equal(share_of(codes, 1.0), codes)
    for part in (small[small < 0], small[small >= 0], small[small & 0xFFFF == 3]):
        assert abs(len(part) - 4000) < 5 * 60  # five standard deviations of 40,000 draws


@pytest.mark.parametrize("candidates", ["all", "sampled"])
def test_pools_of_rounds_do_not_grow(candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """51 million scores of 256,000 edges were kept, in 3.4 GB; workers change no byte."""
    monkeypatch.setattr(rounds, "FIRST_ROUND_EDGES", 20)
    monkeypatch.setattr(auc_sampling, "ROUNDS_SCORES", 500)
    case = case_in(tmp_path / "case", monkeypatch, edges_per_bucket=40)
    overrides = [f"candidates={candidates}", "target_error=0.03", "metrics=rank,auc,average_precision"]
    config = load_config(case.config, [*overrides, f"filter_paths={case.root / 'edges'}"])
    with mock.patch.object(summary, "pooled_auc", side_effect=summary.pooled_auc) as pooled_auc:
        one = result_in(config, 1, tmp_path / "output1")
    three = result_in(config, 3, tmp_path / "output3")

    assert without_run(one) == without_run(three)
    assert one.document["sample"]["rounds"] > 1
    sizes = [sum(len(of.true) + len(of.competing) for of in call.args[0]) for call in pooled_auc.call_args_list]
    assert 300 < max(sizes) < 700
    assert one.intervals["both.auc"]["low"] < one["both.auc"] < one.intervals["both.auc"]["high"]
    assert one["both.average_precision"] is None
    assert "only a part of them is kept of a sample" in one.document["refused"]["both.average_precision_score"]


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_interval_of_the_pooled_auc_covers_the_value_of_all_edges(share: float) -> None:
    """An edge's true score enters twice, and the competitors of its queries score alike; pools may hold a share."""
    is_whole = share == 1.0
    random = np.random.default_rng(5)
    num_edges, num_competitors = 1000, 10
    true_E = random.standard_normal(num_edges) + 0.5
    competing_ESC = random.standard_normal((num_edges, 2, 1)) + random.standard_normal((num_edges, 2, num_competitors))

    def pool(edge_U: np.ndarray) -> SortedPool:
        cluster_U = np.arange(len(edge_U))
        scores = np.repeat(true_E[edge_U], 2), competing_ESC[edge_U].flatten()
        clusters = np.repeat(cluster_U, 2), np.repeat(cluster_U, 2 * num_competitors)
        images = [sortable_int32(torch.from_numpy(of.astype(np.float32))) for of in scores]
        true, competing = (with_clusters(*of) for of in zip(images, clusters, strict=True))
        return ScorePool([true], [competing]).share(1.0 if len(edge_U) == num_edges else share).sort()

    whole = summary.pooled_auc([pool(np.arange(num_edges))], all_true=True, all_competing=True)
    covered = 0
    for seed in range(400):
        sample = EdgeSample.of_size([(0, Bucket(0, 0), num_edges)], 150, seed)
        drawn = pool(sample.draw(0, Bucket(0, 0), 1)[0])
        found = summary.pooled_auc([drawn], all_true=is_whole, all_competing=is_whole, design=sample.design())
        interval = found.interval()
        covered += interval["low"] <= whole.value <= interval["high"]

    assert 0.93 * 400 <= covered <= 0.97 * 400
    if not is_whole:
        return
    of_few = [EdgeSample.of_size([(0, Bucket(0, 0), num_edges)], size, 3) for size in (1, 2)]
    errors = [
        summary.pooled_auc(
            [pool(of.draw(0, Bucket(0, 0), 1)[0])], all_true=True, all_competing=True, design=of.design()
        ).standard_error
        for of in of_few
    ]
    assert errors[0] == math.inf > errors[1] > 0  # of one edge nothing is known


# Coverage on the ranks of a real model.


def queries_of(counts: dict[tuple[int, Bucket], dict[Side, RankCounts]], sample: EdgeSample) -> Any:
    parts = []
    for place, of_bucket in counts.items():
        drawn, first_cluster = sample.draw(*place)
        units, cluster = torch.from_numpy(drawn), first_cluster + torch.arange(len(drawn))
        for side, of_side in of_bucket.items():
            parts.append((of_side.select(units), torch.full((len(units),), side.value), cluster))
    counts_of_parts, *columns = zip(*parts, strict=True)
    return SampledQueries(RankCounts.concatenate(list(counts_of_parts)), *map(torch.cat, columns))


def counts_of(folder: Path) -> dict[tuple[int, Bucket], dict[Side, RankCounts]]:
    found = {}
    for path_index, bucket in find_ranks(folder):
        ranks = read_ranks(folder, path_index, bucket)
        found[path_index, bucket] = {
            side: RankCounts(*(torch.from_numpy(c) for c in (of["better"], of["tied"], of["num_candidates"] - 1)))
            for side, of in ranks.columns.items()
        }
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.reference
def test_intervals_cover_the_exact_value_of_a_real_model(
    reference_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = reference_path / "golden" / "fb237_4p_complex"
    monkeypatch.chdir(case)
    config = load_config(case / "eval_allnegs.py", ["candidates=all", "save_ranks=True"])
    report = evaluate(config, output=tmp_path, workers=1)
    counts = counts_of(tmp_path)
    population = [(*place, of[Side.LHS].better_Q.numel()) for place, of in counts.items()]

    covered = {(key, num_edges): 0 for key in (MRR, HITS) for num_edges in (500, 4000)}
    for num_edges, seed in itertools.product((500, 4000), range(200)):
        sample = EdgeSample.of_size(population, num_edges, seed)
        found = sample_intervals(queries_of(counts, sample), sample.design(), list(ENDS), (1,), keys=[MRR, HITS])
        for key in (MRR, HITS):
            covered[key, num_edges] += found[key].low <= report[key] <= found[key].high

    assert {of: times for of, times in covered.items() if not 180 <= times <= 198} == {}
