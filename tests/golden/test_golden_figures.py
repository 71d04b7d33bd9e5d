"""PyTorch-BigGraph's own answers on four trained checkpoints: every setting in a case at least."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pbgeval import evaluate, load_config

NAMES = {
    "pos_rank": "mean_rank",
    "mrr": "mean_reciprocal_rank",
    "r1": "hits_at_1",
    "r10": "hits_at_10",
    "r50": "hits_at_50",
}
OUR_DATA = Path(__file__).resolve().parents[1] / "reference_data"

Parts = Iterator[tuple[str, int, Mapping[str, float], Mapping[str, float]]]  # what, count, PBG's figures, ours


@functools.cache
def settings_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text())["settings"]


def run(
    case: Path, setting: Mapping[str, Any], output: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], dict[tuple[int, int, int], dict[str, float]]]:
    """Evaluate a setting as PBG was run; return metrics.json and the rows of buckets.csv by path and bucket."""
    monkeypatch.chdir(case)
    overrides = [*setting["params"], "pbg_semantics=True", "compute_loss=True"]
    report = evaluate(load_config(case / setting["config"], overrides), output=output, workers=1)
    rows = report.rows["buckets"]
    paths = list(dict.fromkeys(row["edge_path"] for row in rows))
    buckets = {(paths.index(row["edge_path"]), row["lhs_partition"], row["rhs_partition"]): row for row in rows}
    shutil.rmtree(output)
    return report.to_dict(), buckets


def parts(
    setting: Mapping[str, Any], metrics: dict[str, Any], buckets: dict[tuple[int, int, int], dict[str, float]]
) -> Parts:
    """Yield (what, count, PBG's figures, ours) of every bucket, every edge path, and the total."""
    for part in setting["first_run"]:
        path, bucket = part["edge_path"], part["bucket"]
        if bucket is not None:
            ours = buckets[path, bucket[0], bucket[1]]
            assert part["count"] == ours["num_edges"]
        else:
            of_path = metrics if path is None else metrics["edge_paths"][path]
            assert part["count"] == of_path["num_edges"]
            ours = of_path["metrics"]
        yield f"path {path} bucket {bucket}", part["count"], part["metrics"], ours


def closeness(params: list[str], metric: str, count: int) -> dict[str, float]:
    """Return the tolerances of the reference data's README."""
    if any("l2" in param for param in params):
        return {"rel": 1e-5, "abs": 2 / count}
    return {"abs": {"pos_rank": 2 / count, "mrr": 1e-7}.get(metric, 1 / (2 * count))}


def assert_ranks_equal_pbgs(params: list[str], of_setting: Parts) -> None:
    """Within the tolerances."""
    for what, count, expected, ours in of_setting:
        for metric, key in NAMES.items():
            tolerance = closeness(params, metric, count)
            assert expected[metric] == pytest.approx(ours[f"both.pessimistic.{key}"], **tolerance), (what, metric)


def bounds(ours: Mapping[str, float], key: str) -> tuple[float, float]:
    """Return our figures where copies never count and where they always do, the smaller first."""
    low, high = sorted(ours[f"both.{rank_type}.{key}"] for rank_type in ("optimistic", "pessimistic"))
    return low, high


# Each takes seconds. Comparators and losses see vectors and scores, whatever the case; a bias differs by operator,
# which changes the entry that a bias takes, and relations may have operators, types and parts of the loss of their own.
SETTINGS = {
    "fb237_4p_complex": ("allnegs_no_lhs", "allnegs_no_rhs", "allnegs_two_paths"),  # allnegs is the first of two paths
    "fb237_4p_transe": (
        *(f"allnegs{of}" for of in ("", "_l2", "_squared_l2", "_dot", "_bias")),
        *("allnegs_loss_logistic", "allnegs_loss_softmax"),  # its own loss is ranking, its comparator cos
        *("batch100", "batch1000", "batch64_bs640", "batch100_workers1", "default", "uniform1000"),
    ),
    "fb237_1p_complex": ("allnegs", "allnegs_bias_cos", "allnegs_maxnorm", "batch100", "batch64_bs640", "default"),
    "fb237_het": (
        *(f"allnegs{of}" for of in ("", "_no_lhs", "_no_rhs", "_cos", "_l2", "_bias", "_loss_ranking", "_noglobal")),
        *("batch100", "batch100_noglobal", "default", "default_noglobal", "uniform1000"),
    ),
}


def is_all_negatives(name: str) -> bool:
    return name.startswith("allnegs")


NAMED = [(case, name) for case, names in SETTINGS.items() for name in names]
WITHOUT_NOISE = [of for of in NAMED if is_all_negatives(of[1]) or (of[1].startswith("batch") and of[0] != "fb237_het")]


@pytest.mark.one_case
@pytest.mark.reference
@pytest.mark.parametrize(("case", "name"), WITHOUT_NOISE)
def test_figures_equal_pbgs_bucket_by_bucket_or_lie_on_both_sides_of_them_with_batch_negatives(
    case: str, name: str, reference_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = settings_of(reference_path / "golden" / case)[name]

    metrics, buckets = run(reference_path / "golden" / case, setting, tmp_path / "output", monkeypatch)

    if is_all_negatives(name):
        assert_ranks_equal_pbgs(setting["params"], parts(setting, metrics, buckets))
    for what, count, expected, ours in parts(setting, metrics, buckets):
        for metric, key in NAMES.items():
            low, high = bounds(ours, key)
            assert low - 1 / (2 * count) <= expected[metric] <= high + 1 / (2 * count) or is_all_negatives(name), what
        assert expected["loss"] == pytest.approx(ours["both.loss"], rel=1e-5), what


# PBG's workers rescale shared rows to max_norm in place and without a lock: a row that two of them find too long at
# once is rescaled twice. Its figures then differ from run to run (mean rank 236.43 to 236.51 in three runs of the
# first); expected.json holds one outcome. With one worker there is no race: those figures are ours to compare with.
@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("case", ["fb237_4p_transe", "fb237_het"])
def test_max_norm_equals_pbg_with_one_worker(
    case: str, reference_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = json.loads((OUR_DATA / "pbg_one_worker" / "maxnorm.json").read_text())[case]
    setting = settings_of(reference_path / "golden" / case)["allnegs_maxnorm"]

    metrics, buckets = run(reference_path / "golden" / case, setting, tmp_path / "output", monkeypatch)

    assert len(recorded) == 17
    for part in recorded:
        ours = metrics["metrics"] if part["bucket"] is None else buckets[(0, *part["bucket"])]
        for metric, key in NAMES.items():
            six_digits = {"rel": 6e-6, **closeness([], metric, int(part["count"]))}
            assert part[metric] == pytest.approx(ours[f"both.pessimistic.{key}"], **six_digits), (part, metric)


@pytest.mark.one_case
@pytest.mark.reference
@pytest.mark.parametrize(("case", "name"), [of for of in NAMED if of not in WITHOUT_NOISE])
def test_pbg_lies_between_our_figures_within_its_noise_where_draws_differ(
    case: str, name: str, reference_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = reference_path / "golden" / case
    setting = settings_of(folder)[name]
    deviations = setting["mean_std"][-1]["metrics"] if setting.get("mean_std") else {}

    metrics, _ = run(folder, setting, tmp_path / "output", monkeypatch)

    expected = setting["first_run"][-1]["metrics"]
    for metric, key in NAMES.items():
        low, high = bounds(metrics["metrics"], key)
        deviation = deviations.get(metric, [0, 0])[1]
        slack = 4 * deviation if deviation else 0.02 * expected[metric]
        assert low - slack <= expected[metric] <= high + slack, metric
