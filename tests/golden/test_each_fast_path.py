"""Golden figures and the vectors of a complete evaluation, with no fast path, with each of them alone, with all.

The jobs and the figures are those of the other tests here, which run with whatever paths the package chooses by
itself; of the golden cases one bucket is enough.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from pbgeval import evaluate
from pbgeval.ranking import auc_sampling
from tests.fast_paths import OF_A_CPU, PATHS, switch, with_needs
from tests.golden import test_full_nations as full_nations
from tests.golden import test_global_ranks as global_ranks
from tests.golden import test_golden_figures as golden_figures

BUCKET = (0, 0)
Document = dict[str, Any]


def case_of_one_bucket(source: Path, folder: Path) -> Path:
    """Link the files of a golden case, but of the evaluated edges those of one bucket."""
    case = folder / source.name
    (case / "edges_test").mkdir(parents=True)
    for path in source.iterdir():
        if path.name != "edges_test":
            (case / path.name).symlink_to(path)
    name = "edges_{}_{}.h5".format(*BUCKET)
    (case / "edges_test" / name).symlink_to(source / "edges_test" / name)
    return case


def golden(case: str, name: str, reference: Path, folder: Path, patch: pytest.MonkeyPatch) -> Document:
    """One bucket of PBG's answers, without the loss, which wants all scores."""
    source = case_of_one_bucket(reference / "golden" / case, folder)
    setting = golden_figures.settings_of(source)[name]
    of_bucket = [part for part in setting["first_run"] if part["bucket"] == [*BUCKET]]
    assert len(of_bucket) == 1

    metrics, buckets = golden_figures.run(source, setting, folder / "output", patch, with_loss=False)

    compared = golden_figures.parts({**setting, "first_run": of_bucket}, metrics, buckets)
    if name.startswith("allnegs"):
        golden_figures.assert_ranks_equal_pbgs(name, setting["params"], compared)
    else:
        golden_figures.assert_pbg_lies_between(compared)
    return metrics


def golden_among_all(precision: str, reference: Path, folder: Path, patch: pytest.MonkeyPatch) -> Document:
    """One bucket against all entities of its types, operators being on the candidates' side."""
    case = case_of_one_bucket(reference / "golden" / "fb237_het", folder)
    ranks = slow_ranks(reference)

    report = global_ranks.run(case, folder / "output", patch, f"precision={precision}")

    global_ranks.assert_ranks_are(ranks, report, precision)
    return report.to_dict()


@functools.cache
def slow_ranks(reference: Path) -> Any:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        case = case_of_one_bucket(reference / "golden" / "fb237_het", Path(folder))
        patch.chdir(case)
        return global_ranks.pessimistic_ranks(case)


def vectors(
    model: str,
    setting: str,
    num_partitions: int,
    dynamic: bool,
    precision: str | None,
    reference: Path,
    folder: Path,
    patch: pytest.MonkeyPatch,
) -> Document:
    """A complete evaluation of a small model: every query's ranks, all averages of ranks."""
    source = reference / "vectors" / "full_nations"
    nations = full_nations.Nations(source, folder, model, num_partitions, dynamic)
    config = nations.config(setting, metrics=["rank"])  # a small evaluation's AUC wants all scores

    config = evolve(config, precision=precision or config.precision)
    report = evaluate(config, output=folder / "output", workers=1)

    expected: Mapping[str, Any] = json.loads((source / f"{model}.json").read_text())["settings"][setting]
    without_auc = {name: of for name, of in expected.items() if name != "auc"}
    full_nations.assert_averages(report.document, without_auc, exact="exact" in model, without_macro=())
    full_nations.assert_ranks(nations, folder / "output", np.load(source / f"{model}.ranks.npz"), setting)
    return report.to_dict()


# Each evaluates reference data below a folder, has another to write to, asserts the figures, returns metrics.json;
# and the paths that it takes, each where it alone is on.
JOBS: Mapping[str, tuple[Callable[[Path, Path, pytest.MonkeyPatch], Document], tuple[str, ...]]] = {
    "golden complex, partition": (
        functools.partial(golden, "fb237_4p_complex", "allnegs"),
        ("compiled", "blocks", "repeated_counts"),
    ),
    "golden cos, partition": (
        functools.partial(golden, "fb237_4p_transe", "allnegs"),
        ("compiled", "blocks"),
    ),
    "golden distances, partition": (
        functools.partial(golden, "fb237_het", "allnegs_squared_l2"),
        ("compiled", "blocks"),
    ),
    "golden batches, dynamic": (
        functools.partial(golden, "fb237_4p_complex", "batch100"),
        ("compiled", "gathered_chunks", "repeated_counts"),
    ),
    "golden operators, all": (
        functools.partial(golden_among_all, "float32"),
        ("compiled", "blocks", "moved_operators"),
    ),
    "golden certified, all": (
        functools.partial(golden_among_all, "certified"),
        ("compiled", "blocks", "bfloat16", "float32", "pairs"),
    ),
    "vectors distmult": (
        functools.partial(vectors, "distmult", "filtered", 3, False, None),
        ("compiled", "blocks", "semi_join", "moved_operators", "repeated_counts"),
    ),
    "vectors complex": (
        functools.partial(vectors, "complex", "filtered_type_constrained", 1, True, None),
        ("compiled", "blocks", "semi_join", "fused", "operators"),
    ),
    "vectors l1": (
        functools.partial(vectors, "transe_l1", "raw", 1, True, None),
        ("compiled", "distances"),
    ),
    "vectors moduli": (
        functools.partial(vectors, "rotate_moduli", "filtered_train_and_test_only", 3, False, None),
        ("compiled", "distances", "semi_join"),
    ),
    "vectors certified": (
        functools.partial(vectors, "distmult_exact_ties", "filtered", 1, True, "certified"),
        ("compiled", "blocks", "bfloat16", "float32", "pairs"),
    ),
}
# Without --all a third of them; tests/laws/test_fast_paths_equal_general_path.py has every path on small graphs.
EACH_ALONE = [
    pytest.param(job, path, marks=[pytest.mark.slow] if (row + column) % 3 else [])
    for row, (job, (_, paths)) in enumerate(JOBS.items())
    for column, path in enumerate(paths)
]


@pytest.fixture(scope="module")
def general(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Document]:
    """Evaluates a job without any fast path, once."""

    @functools.cache
    def run(job: str, reference: Path) -> Document:
        return document_of(job, reference, tmp_path_factory.mktemp("general"), expected=set())

    return run


def document_of(job: str, reference: Path, folder: Path, *on: str, expected: set[str]) -> Document:
    """Evaluate a job with some paths on; the figures are asserted, and that just the expected ones were taken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auc_sampling, "EXACT_CELLS", 0)  # else all scores are wanted
        taken = switch(patch, *on)
        document = JOBS[job][0](reference, folder, patch)
    assert taken == expected
    return document


@pytest.mark.one_case
@pytest.mark.reference
@pytest.mark.parametrize("job", JOBS)
def test_figures_are_met_without_any_fast_path(
    job: str, reference_path: Path, general: Callable[[str, Path], Document]
) -> None:
    assert general(job, reference_path)["num_queries"] > 100


@pytest.mark.one_case
@pytest.mark.reference
@pytest.mark.parametrize(("job", "path"), EACH_ALONE)
def test_figures_are_met_with_each_fast_path_alone(
    job: str,
    path: str,
    reference_path: Path,
    tmp_path: Path,
    general: Callable[[str, Path], Document],
    request: pytest.FixtureRequest,
) -> None:
    """And where a path keeps the bits of scores, all other figures are those of the general path, too."""
    if path == "fused":
        request.getfixturevalue("fused_device")

    document = document_of(job, reference_path, tmp_path, path, expected=with_needs(path))

    if PATHS[path].same_bits:
        assert general(job, reference_path) == document


@pytest.mark.one_case
@pytest.mark.reference
@pytest.mark.parametrize("job", JOBS)
def test_figures_are_met_with_all_fast_paths_of_a_cpu(job: str, reference_path: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        taken = switch(patch, *OF_A_CPU)
        JOBS[job][0](reference_path, tmp_path, patch)

    assert taken
