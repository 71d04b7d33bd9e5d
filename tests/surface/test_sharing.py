"""`kgeval-dist verify` and `publish`: honest results pass, planted changes are found, files are those of the Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from pbgeval import Report, compare, compare_runs
from pbgeval.command_line.verification import SequentialTest
from pbgeval.storage.row_files import create_query_file, find_ranks, open_query_file, query_path
from tests.kit.case import TinyCase
from tests.kit.commands import Done, evaluated, flags, lacking, run_command, run_main

SEED = ("--seed", "4", "--workers", "1")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    folder = tmp_path_factory.mktemp("case")
    return TinyCase.write(folder, partition_sizes=(40, 39), edges_per_bucket=500, candidates="all")


@pytest.fixture(scope="module")
def result(case: TinyCase) -> Path:
    return evaluate(case, case.root / "result")


def evaluate(case: TinyCase, output: Path, *overrides: str) -> Path:
    evaluated(case, *overrides, output=output)
    return output


def verify(case: TinyCase, result: Path, *arguments: str) -> Done:
    return run_main("verify", str(result), str(case.config), *SEED, *arguments, cwd=case.root)


def forged(result: Path, folder: Path, share: float) -> Path:
    """Improve the ranks of a share of the edges, on both sides, and let all figures follow from them."""
    shutil.copytree(result, folder)
    generator = np.random.default_rng(1)
    for file in rank_files(folder):
        for side in file.values():
            better = side["better"][:]
            could = np.flatnonzero(better > side["excluded_better"][:])
            better[generator.choice(could, max(1, round(share * len(better))), replace=False)] -= 1
            side["better"][:] = better
    return follow(folder)


def rank_files(folder: Path) -> Iterator[h5py.File]:
    for index, bucket in find_ranks(folder):
        with h5py.File(query_path(folder, "ranks", index, bucket), "r+") as file:
            yield file


def follow(folder: Path) -> Path:
    """Let all figures follow from the ranks; tables, which need not be published, are left out."""
    report = Report.read(folder)
    document = with_known(report.document, report.recompute(edge_paths=[folder.parent.parent / "edges"]).document)
    (folder / "metrics.json").write_text(json.dumps(document), encoding="ascii")
    for table in folder.glob("*.csv"):
        table.unlink()
    return folder


def with_known(claimed: Any, found: Any) -> Any:
    if isinstance(claimed, dict) and isinstance(found, dict):
        return {
            key: value if key == "provenance" else with_known(value, found.get(key)) for key, value in claimed.items()
        }
    if isinstance(claimed, list) and isinstance(found, list):
        return [with_known(*pair) for pair in zip(claimed, found, strict=True)]
    return claimed if found is None else found


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("overrides", "again"),
    [
        (("candidates=partition", "pbg_semantics=True"), 2006),
        (("restrict_relations=knows,has", "breakdowns=relation,entity_types", "filter_paths=edges"), 688),
        (("metrics=rank,classification", "candidates=partition", "comparator=l2", "compute_loss=True"), 688),
        (("precision=float32",), 764),
        (
            (
                "type_constraint=observed",
                "train_paths=edges",
                "breakdowns=relation,popularity",
                "relation_prediction=True",
            ),
            764,
        ),
        (("train_paths=edges", "topk_metrics=True", "save_topk=3"), 688),
        (("candidates=sampled", "sample_edges=300"), 288),
    ],
)
def test_an_honest_result_can_be_true(case: TinyCase, tmp_path: Path, overrides: tuple[str, ...], again: int) -> None:
    done = verify(case, evaluate(case, tmp_path / "result", *overrides), "--share", "0.01", *flags(overrides))

    assert not lacking(
        done.out,
        ": verified",
        f"edges ranked again (seed 4): {again:,}, 0 of them differ",
        "wrong ranks of 1% of the edges would be found with a probability of 99.9%",
    )


@pytest.mark.one_case
@pytest.mark.parametrize("share", [0.001, 0.5])
def test_a_planted_change_of_ranks_is_found(case: TinyCase, result: Path, tmp_path: Path, share: float) -> None:
    folder = forged(result, case.root / f"{tmp_path.name}/forged", share)

    refusal = verify(case, folder, "--quiet").refusal
    assert not lacking(refusal, f"{folder}: verification failed: bucket ", "the result says ")
    assert Report.read(folder)["mrr"] > Report.read(result)["mrr"]  # type: ignore[operator]


@pytest.mark.one_case
@pytest.mark.parametrize("overrides", [("restrict_relations=knows",), ("candidates=sampled", "sample_edges=200")])
def test_ranks_of_queries_that_were_not_ranked_are_found(
    case: TinyCase, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    folder = evaluate(case, case.root / f"{tmp_path.name}/forged", *overrides)
    for file in rank_files(folder):
        for side in file.values():
            candidates = side["num_candidates"][:]
            side["num_candidates"][:] = np.where(candidates == 0, 40, candidates)

    expected = "the result says 0 better, 0 tied of 40, the checkpoint gives 0 better, 0 tied and no rank"
    assert expected in verify(case, follow(folder), *flags(overrides)).refusal


def test_ranks_of_edges_that_are_not_there_are_found(case: TinyCase, result: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(result, tmp_path / "forged"))
    index, bucket = find_ranks(folder)[0]
    earlier = open_query_file(result, "ranks", index, bucket)
    longer = create_query_file(folder, "ranks", index, bucket, earlier.num_rows + 1, earlier.sides, earlier.digest)
    for side in earlier.sides:
        columns = earlier.read_side(side, 0, earlier.num_rows)
        longer.write_side(
            side, 0, {name: np.append(values, name == "num_candidates") for name, values in columns.items()}
        )

    expected = f"has {earlier.num_rows + 1} rows, and its bucket {earlier.num_rows} edges"
    assert expected in verify(case, folder).refusal


def test_a_model_in_place_is_ranked_again(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, shape in (("entity.npy", (30, 4)), ("relation.npy", (2, 4))):
        np.save(tmp_path / name, random.standard_normal(shape).astype(np.float32))
    np.save(tmp_path / "edges.npy", random.integers(0, [30, 2, 30], (50, 3)))
    (tmp_path / "model.json").write_text('{"model": "distmult"}')
    config = tmp_path / "eval.json"
    config.write_text(json.dumps({"model": ".", "edge_paths": ["edges.npy"], "candidates": "all"}))
    assert run_main("run", str(config), "--output", str(tmp_path / "result"), "--quiet", cwd=tmp_path).printed == ""

    done = run_main("verify", str(tmp_path / "result"), str(config), *SEED, cwd=tmp_path)

    assert "edges ranked again (seed 4): 50, 0 of them differ" in done.out


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("metrics/tail.realistic.hits_at_10", 0.9, "metrics.tail.realistic.hits_at_10 is 0.9, and follows from"),
        ("metrics/both.loss", 0.9, "metrics.both.loss is 0.9, and follows from the saved ranks as nothing"),
        ("metrics/both.realistic.hits_at_7", 0.9, "metrics.both.realistic.hits_at_7 is 0.9, and follows from"),
        ("macro_metrics/both.realistic.mean_rank", 1.5, "macro_metrics.both.realistic.mean_rank is 1.5"),
        ("relation_macro_metrics/both.realistic.mean_rank", 1.5, "relation_macro_metrics.both.realistic.mean_rank"),
        ("edge_paths/0/metrics/both.realistic.mean_rank", 1.5, "edge_paths[0].metrics.both.realistic.mean_rank is 1.5"),
        ("edge_paths/0/num_edges", 7, "edge_paths[0].num_edges is 7, and follows from the saved ranks as 2006"),
        ("num_queries", 10**9, "num_queries is 1000000000, and follows"),
        ("num_edges", 10**9, "num_edges is 1000000000, and follows from the saved ranks as 2006"),
        ("diagnostics/both/num_tied_queries", 7, "diagnostics.both.num_tied_queries is 7, and follows"),
        ("headline", "optimistic", "headline: realistic, in the result optimistic"),
        ("filter", "filtered", "filter: raw, in the result filtered"),
    ],
)
def test_figures_that_do_not_follow_from_the_ranks_are_found(
    case: TinyCase, result: Path, tmp_path: Path, place: str, value: object, message: str
) -> None:
    done = verify(case, changed(result, tmp_path / "forged", place, value))

    is_looked_at = ", in the result " not in message  # else it is refused before
    assert (1, "", 1 + is_looked_at) == (done.status, done.out, len(done.err.splitlines()))
    assert message in done.err


def changed(result: Path, folder: Path, place: str, value: object) -> Path:
    """Copy a result, with another value in metrics.json."""
    shutil.copytree(result, folder)
    document = json.loads((folder / "metrics.json").read_text())
    *parts, rest = place.split("/")
    at = document
    for part in parts:
        at = at[int(part) if isinstance(at, list) else part]
    at[rest] = value
    (folder / "metrics.json").write_text(json.dumps(document), encoding="ascii")
    return folder


def test_another_digest_is_found(case: TinyCase, result: Path, tmp_path: Path) -> None:
    digest = "0" * 32
    folder = changed(result, tmp_path / "forged", "provenance/digest", digest)
    for file in rank_files(folder):
        file.attrs["digest"] = digest

    assert f", in the result {digest}); give the config" in verify(case, folder).fault


def test_tables_that_do_not_follow_from_the_ranks_are_found(case: TinyCase, result: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(result, tmp_path / "forged"))
    (folder / "buckets.csv").write_text((folder / "buckets.csv").read_text().replace(",500,", ",501,", 1))

    expected = "buckets[0].num_edges is 501, and follows from the saved ranks as 500"
    assert expected in verify(case, folder).refusal


def test_passes_are_named_and_a_warning_is_told_once(case: TinyCase, tmp_path: Path) -> None:
    overrides = ("train_paths=edges",)  # all edges are in training, too
    done = run_command(case, "--workers", "1", "--quiet", "--output", str(tmp_path / "result"), *flags(overrides))
    assert done.status == 0

    done = verify(case, tmp_path / "result", *flags(overrides))
    passes = ("computing the figures from the saved ranks\n", "ranking 2,006 edges again in exact precision\n")
    assert not lacking(done.err, "edges are also in train_paths", *passes)
    assert len(done.warnings) == len(set(done.warnings))


def test_another_checkpoint_is_not_what_the_result_was_made_of(result: Path, tmp_path: Path) -> None:
    other = TinyCase.write(
        tmp_path / "other", partition_sizes=(40, 39), edges_per_bucket=500, candidates="all", scale=0.5
    )

    expected = f"{result} was made with another checkpoint (data.embeddings."
    assert not lacking(verify(other, result).refusal, expected, "give the config and the -p options")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--share", "1e-17"), "share: expected a number from 1e-12 to less than 1, got 1e-17"),
        (("--error", "1"), "error: expected a number from 1e-12 to less than 1, got 1.0"),
        (
            ("-p", "hits_at=7"),
            "other settings or edges (settings.hits_at: [7], in the result [1, 3, 5, 10, 50]); give the config and",
        ),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    case: TinyCase, result: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in verify(case, result, *arguments).fault


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
    arguments = ["--dataset", "me/graph-1", "--task", "test", "--metric", "hits@10", "--source", "HTTPS://a.example/r"]

    done = run_main("publish", str(result), "--output", "hub", *arguments, cwd=tmp_path)
    [entry] = yaml.safe_load((tmp_path / "hub/.eval_results/test.yaml").read_text())
    report = Report.read(result)

    assert (done.status, done.out) == (0, "hub/.eval_results/test.yaml\nhub/evaluation.md\n")
    assert entry.pop("notes").startswith("both.realistic.hits_at_10: 2,006 edges, ")
    assert entry == {
        "dataset": {"id": "me/graph-1", "task_id": "test"},
        "value": report["hits@10"],
        "date": report.run["started"][:10],
        "source": {"url": "HTTPS://a.example/r", "name": "pbgeval result"},
    }
    assert "| hits\\@10 |" in (tmp_path / "hub/evaluation.md").read_text()


def test_warnings_of_a_result_are_published_and_stand_on_pages_that_compare_it(case: TinyCase, tmp_path: Path) -> None:
    folder = evaluate(case, tmp_path / "leaks", "train_paths=edges")
    shutil.copytree(folder, tmp_path / "copy")
    warning = "2,006 of 2,006 evaluated edges are also in train_paths"

    done = run_main("publish", "leaks", "--output", "hub", "--dataset", "a/b", cwd=tmp_path)
    compared = run_main("compare", "leaks", "copy", "-o", "page.html", cwd=tmp_path)
    named = run_main("compare", "one=leaks", "other=copy", "-o", "many.html", cwd=tmp_path)

    [entry] = yaml.safe_load((tmp_path / "hub/.eval_results/default.yaml").read_text())
    assert "; 2,006 edges are also training edges; digest " in entry["notes"]
    card = (tmp_path / "hub/evaluation.md").read_text()
    assert not lacking(card.replace("\\", ""), "2,006 edges are also training edges", f"- Warning: {warning}")
    assert [f"{of}: {warning}" in done.err for of, done in (("leaks", done), ("both runs", compared))] == [True, True]
    assert f"both runs: {warning}" in named.err
    for page in ("page.html", "many.html"):
        assert f"both runs: {warning}" in (tmp_path / page).read_text(encoding="utf-8").replace("\u00a0", " ")
    for found in (compare(folder, tmp_path / "copy"), compare_runs({"one": folder, "other": tmp_path / "copy"})):
        assert found.warnings[0].startswith(f"both runs: {warning}")
        for told in (repr(found), found._repr_html_()):
            assert f"Warning: both runs: {warning}" in " ".join(told.split())
        assert found.to_dict()["warnings"] == found.warnings


def test_warnings_call_runs_as_they_were_given(case: TinyCase, tmp_path: Path) -> None:
    leaks = evaluate(case, tmp_path / "leaks", "train_paths=edges")
    for name in ("copy", "last"):
        shutil.copytree(leaks, tmp_path / name)
    evaluate(case, tmp_path / "sound")
    warning = "2,006 of 2,006 evaluated edges are also in train_paths"

    three, seeds, two = (
        run_main("compare", *runs, "--clusters", "edge", "--filter", "raw", "-o", f"{number}.html", cwd=tmp_path)
        for number, runs in enumerate(
            [("one=leaks", "two=sound", "last"), ("one=leaks", "one=copy", "two=sound"), ("one=leaks", "two=sound")]
        )
    )

    for number, (done, name) in enumerate([(three, "one, last"), (seeds, "leaks, copy"), (two, "one")]):
        page = (tmp_path / f"{number}.html").read_text(encoding="utf-8").replace("\u00a0", " ")
        assert f"warning: {name}: {warning}" in done.err
        assert f">{name}: {warning}" in page
        assert "first-letter" not in page, "a name stays as it was given"


@pytest.mark.parametrize(
    ("overrides", "title", "interval"),
    [
        (("sample_edges=300",), "a sample of 300 of 2,006 edges, unfiltered, ", "95% interval"),
        (("candidates=sampled", "sample_edges=300"), "(a sample of ", "95% interval"),
        (("candidates=sampled",), "2,006 edges, unfiltered", None),
        (("target_error=0.04",), "a sample of 2,000 of 2,006 edges, ", "interval, corrected for repeated looks:"),
    ],
)
def test_a_sample_is_published_as_one_with_its_interval(
    case: TinyCase, tmp_path: Path, overrides: tuple[str, ...], title: str, interval: str | None
) -> None:
    folder = evaluate(case, tmp_path / "result", *overrides)

    done = run_main("publish", str(folder), "-o", "hub", "--dataset", "a/b", cwd=tmp_path)
    [entry] = yaml.safe_load((tmp_path / "hub/.eval_results/default.yaml").read_text())
    card = (tmp_path / "hub/evaluation.md").read_text()

    assert [f"warning: {line}" for line in done.warnings] == done.faults
    assert ("the figures are estimates from " in done.err) == (interval is not None)
    assert ("candidates were sampled, so ranks are not those among all" in done.err) == ("sampled" in overrides[0])
    assert title in entry["notes"]
    assert title in card or title[0].upper() + title[1:] in card
    assert ("interval" in card) == (interval is not None)
    if interval is None:
        return
    ends = Report.read(folder).intervals["both.realistic.mean_reciprocal_rank"]
    [low, high] = entry["notes"].partition(f"; {interval} ")[2].partition(";")[0].split(" to ")
    assert [ends["low"], ends["high"]] == pytest.approx([float(low), float(high)], abs=0.06 * ends["low"])
    assert f"{interval} {low} to {high}" in card


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (["--dataset", name], f"dataset '{name}': expected OWNER/NAME")
            for name in ("graph", "../..", "a/-", "é/ü", "a/b.git")
        ),
        *((["--dataset", "a/b", "--task", name], f"task '{name}': expected") for name in ("..", "é", "../x")),
        *(
            (["--dataset", "a/b", "--source", source], "expected an address that starts with https:// and a host")
            for source in ("http:// ", "https://x\nfoo: bar", "https:///x", "ftp://u:secret@x")
        ),
        (["--dataset", "a/b", "--metric", "hist@10"], "no metric 'hist@10' here; nearest: "),
        (
            ["--dataset", "a/b", "--source", "https://u:secret@x/y?sig=secret"],
            "a query, which all would see, got https://x/y",
        ),
        (["--dataset", "a/b", "--output", "memory://bucket/x"], "memory://bucket/x: expected a local folder; copy"),
    ],
)
def test_what_the_hub_does_not_take_is_refused(
    result: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    output = () if "--output" in arguments else ("--output", "hub")
    done = run_main("publish", str(result), *output, *arguments, cwd=tmp_path)

    assert [message] == [words for words in (message, "secret") if words in done.fault]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ("hub", "hub/.eval_results/test.yaml: cannot write this file: "),
        ("hub/.eval_results", "hub/.eval_results/test.yaml: cannot write this file: "),
        ("hub/.eval_results/test.yaml", "hub/.eval_results/test.yaml: this file is not one that publish has written"),
        ("hub/evaluation.md", "hub/evaluation.md: this file is not one that publish has written"),
    ],
)
def test_files_of_others_stay(result: Path, tmp_path: Path, there: str, message: str) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).write_text("mine")

    done = run_main("publish", str(result), "-o", "hub", "--dataset", "a/b", "--task", "test", cwd=tmp_path)

    assert message in done.fault
    assert [tmp_path / there] == [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("command", ["publish", "verify", "report", "compare"])
def test_a_result_at_a_url_is_to_be_copied(case: TinyCase, result: Path, command: str) -> None:
    url = f"file://{result}"
    more = {"publish": ["-o", "hub", "--dataset", "a/b"], "verify": [str(case.config)], "compare": [str(result)]}

    fault = run_main(command, url, *more.get(command, []), cwd=case.root).fault

    assert f"{url}: expected a local folder; copy the result here first" == fault


def test_an_unfinished_run_is_not_published(result: Path, tmp_path: Path) -> None:
    folder = changed(result, tmp_path / "unfinished", "complete", False)

    done = run_main("publish", str(folder), "--output", "hub", "--dataset", "a/b", cwd=tmp_path)

    assert f"{folder}: this evaluation is not complete; finish it first" == done.fault
