"""`kgeval-dist verify` and `publish`: honest results pass, planted changes are found, files are those of the Hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from pbgeval import Report
from pbgeval.command_line.verification import SequentialTest
from pbgeval.storage.row_files import find_ranks, query_path
from tests.kit.case import TinyCase
from tests.kit.commands import Done, flags, run_command, run_main

SEED = ("--seed", "4", "--workers", "1")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    folder = tmp_path_factory.mktemp("case")
    return TinyCase.write(folder, partition_sizes=(40, 39), edges_per_bucket=500, candidates="all")


@pytest.fixture(scope="module")
def result(case: TinyCase) -> Path:
    return evaluate(case, case.root / "result")


def evaluate(case: TinyCase, output: Path, *overrides: str) -> Path:
    done = run_command(case, "--workers", "1", "--quiet", "--output", str(output), *flags(overrides))
    assert (0, "") == (done.status, done.err)
    return output


def verify(case: TinyCase, result: Path, *arguments: str) -> Done:
    return run_main("verify", str(result), str(case.config), *SEED, *arguments, cwd=case.root)


def forged(result: Path, folder: Path, share: float) -> Path:
    """Improve the ranks of a share of the edges, on both sides, and let all figures follow from them."""
    shutil.copytree(result, folder)
    generator = np.random.default_rng(1)
    files = [h5py.File(query_path(folder, "ranks", index, bucket), "r+") for index, bucket in find_ranks(folder)]
    for file in files:
        for side in file.values():
            better, known = side["better"][:], side["excluded_better"][:]
            could = np.flatnonzero(better > known)
            chosen = generator.choice(could, max(1, round(share * len(better))), replace=False)
            better[chosen] -= 1
            side["better"][:] = better
        file.close()
    report = Report.read(folder)
    recomputed = report.recompute().document
    document = dict(report.document)
    for part in ("metrics", "raw_metrics"):
        if part in document:
            better_figures = {name: value for name, value in recomputed[part].items() if value is not None}
            document[part] = {**document[part], **better_figures}
    (folder / "metrics.json").write_text(json.dumps(document), encoding="ascii")
    return folder


@pytest.mark.parametrize(
    ("overrides", "again"),
    [
        ((), 764),
        (("precision=certified",), 688),
        (("candidates=partition", "comparator=l2"), 764),
        (("candidates=sampled",), 2006),
        (("sample_edges=300",), 300),
    ],
)
def test_an_honest_result_can_be_true(case: TinyCase, tmp_path: Path, overrides: tuple[str, ...], again: int) -> None:
    folder = evaluate(case, tmp_path / "result", *overrides)

    done = verify(case, folder, "--share", "0.01", *flags(overrides))

    assert 0 == done.status, done.err
    assert "the figures can be true" in done.out
    assert f"edges ranked again (seed 4): {again:,}, 0 of them differ" in done.out
    assert "a share of 0.01 of edges with wrong ranks would be found with probability 0.999" in done.out


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5])
def test_a_planted_change_of_ranks_is_found(case: TinyCase, result: Path, tmp_path: Path, share: float) -> None:
    folder = forged(result, tmp_path / "forged", share)

    done = verify(case, folder, "--quiet")

    assert 1 == done.status
    assert "" == done.out
    assert f"{folder}: the figures cannot be true: bucket " in done.err
    assert "the result says " in done.err
    assert Report.read(folder)["mrr"] > Report.read(result)["mrr"]  # type: ignore[operator]


def test_a_model_in_place_is_ranked_again(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, shape in (("entity.npy", (30, 4)), ("relation.npy", (2, 4))):
        np.save(tmp_path / name, random.standard_normal(shape).astype(np.float32))
    np.save(tmp_path / "edges.npy", random.integers(0, [30, 2, 30], (50, 3)))
    (tmp_path / "model.json").write_text('{"model": "distmult"}')
    config = tmp_path / "eval.json"
    config.write_text(json.dumps({"model": ".", "edge_paths": ["edges.npy"], "candidates": "all"}))
    first = run_main("run", str(config), "--output", str(tmp_path / "result"), "--quiet", cwd=tmp_path)
    assert (0, "") == (first.status, first.err)

    done = run_main("verify", str(tmp_path / "result"), str(config), *SEED, cwd=tmp_path)

    assert 0 == done.status, done.err
    assert "edges ranked again (seed 4): 50, 0 of them differ" in done.out


def test_figures_that_do_not_follow_from_the_ranks_are_found(case: TinyCase, result: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(result, tmp_path / "forged")
    document = json.loads((folder / "metrics.json").read_text())
    document["metrics"]["tail.realistic.hits_at_10"] += 0.001
    (folder / "metrics.json").write_text(json.dumps(document), encoding="ascii")

    done = verify(case, folder)

    assert 1 == done.status
    assert "metrics: tail.realistic.hits_at_10 is 0." in done.err


def test_another_checkpoint_is_not_what_the_result_was_made_of(result: Path, tmp_path: Path) -> None:
    other = TinyCase.write(
        tmp_path / "other", partition_sizes=(40, 39), edges_per_bucket=500, candidates="all", scale=0.5
    )

    done = verify(other, result)

    assert (1, "") == (done.status, done.out)
    assert f"this is not what {result} was made of: data.embeddings." in done.err
    assert "give the config of that run" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--share", "0"), "share: expected a number between 0 and 1, got 0.0"),
        (("--error", "1"), "error: expected a number between 0 and 1, got 1.0"),
        (
            ("-p", "hits_at=7"),
            "settings.hits_at ([7], there None); give the config of that run, and its -p options",
        ),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    case: TinyCase, result: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = verify(case, result, *arguments)

    assert (1, 1) == (done.status, len(done.err.splitlines()))
    assert message in done.err


@pytest.mark.parametrize("honest", [0.0, 0.001])
def test_the_test_errs_as_seldom_as_it_says(honest: float) -> None:
    """In 2,000 results of each kind, looked at as `verify` does."""
    test, generator = SequentialTest(0.01, 0.05, honest), np.random.default_rng(7)

    def share_rejected(share: float) -> float:
        rejected = 0
        for _ in range(2000):
            num_edges, num_different, decision = 0, 0, None
            while decision is None:
                more = num_edges or test.first_look
                num_edges, num_different = num_edges + more, num_different + generator.binomial(more, share)
                decision = test.decide(num_edges, num_different)
            rejected += not decision
        return rejected / 2000

    assert share_rejected(honest) <= 0.05 + 0.01
    assert share_rejected(0.01) >= 1 - 0.05 - 0.01
    assert 0 < test.first_look < 1000


def test_what_is_published_is_what_the_hub_reads(result: Path, tmp_path: Path) -> None:
    arguments = ["--dataset", "me/graph-1", "--task", "test", "--metric", "hits@10", "--source", "https://a.example/r"]

    done = run_main("publish", str(result), "--output", "hub", *arguments, cwd=tmp_path)
    [entry] = yaml.safe_load((tmp_path / "hub/.eval_results/test.yaml").read_text())
    report = Report.read(result)

    assert (0, "hub/.eval_results/test.yaml\nhub/evaluation.md\n") == (done.status, done.out)
    assert {"id": "me/graph-1", "task_id": "test"} == entry["dataset"]
    assert report["hits@10"] == entry["value"]
    assert {"url": "https://a.example/r", "name": "pbgeval result"} == entry["source"]
    assert report.run["started"][:10] == entry["date"]
    assert entry["notes"].startswith("both.realistic.hits_at_10: 2,006 edges, ")
    assert {"dataset", "value", "date", "source", "notes"} == set(entry)
    assert "| hits\\@10 |" in (tmp_path / "hub/evaluation.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "graph"], "dataset 'graph': expected OWNER/NAME"),
        (["--dataset", "a/b", "--task", "../x"], "task '../x': expected letters"),
        (["--dataset", "a/b", "--metric", "hist@10"], "no metric 'hist@10' in this report; nearest: "),
        (["--dataset", "a/b", "--source", "file"], "source 'file': expected an address"),
    ],
)
def test_what_the_hub_does_not_take_is_refused(
    result: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run_main("publish", str(result), "--output", "hub", *arguments, cwd=tmp_path)

    assert (1, "", 1) == (done.status, done.out, len(done.err.splitlines()))
    assert message in done.err
    assert not (tmp_path / "hub").exists()


def test_an_unfinished_run_is_not_published(result: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(result, tmp_path / "unfinished")
    document = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps({**document, "complete": False}), encoding="ascii")

    done = run_main("publish", str(folder), "--output", "hub", "--dataset", "a/b", cwd=tmp_path)

    assert (1, f"{folder}: this evaluation is not complete; finish it first\n") == (done.status, done.err)
