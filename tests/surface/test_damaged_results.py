"""Results, records and owners that were edited or damaged: every reader works, or says in one line what is wrong."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pbgeval import Report, read_history
from pbgeval.cluster.claim import OWNER, Ownership, describe_process
from pbgeval.errors import EvalError, OutputError, StorageError
from pbgeval.monitor.curves import read_curves
from pbgeval.report.page import Source, latex, markdown, page_of
from pbgeval.results.saved_run import SavedRun
from pbgeval.results.sending import refuse_another_result
from pbgeval.storage.json_files import MAX_DEPTH, parse_json
from pbgeval.storage.objects import read_object_folder
from tests.kit.commands import run_main
from tests.kit.faults import REMOVED, set_at
from tests.kit.outputs import every_output
from tests.kit.reports import make_incomplete

# Values that stand in the place of another; texts in <> are written without quotes
INFINITE, HUGE = "<1e400>", "<1" + "0" * 400 + ">"
VALUES = (0, -1, "text", None, [], {}, True, INFINITE, HUGE, REMOVED)
ROWS_KEPT = 4
FIGURES_KEPT = 4  # of a mapping by metric: all of its figures are read alike


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small results that together have every key, finished and not."""
    found = every_output(tmp_path_factory.mktemp("case"))
    for name, with_metrics in (("begun", False), ("so far", True)):
        found[name] = found["plain"].with_name(name)
        shutil.copytree(found["plain"], found[name])
        make_incomplete(found[name], with_metrics=with_metrics)
    for folder in found.values():
        path = folder / "metrics.json"
        path.write_text(json.dumps(with_few_figures(json.loads(path.read_text()))))
        for table in folder.glob("*.csv"):
            table.write_bytes(b"".join(table.read_bytes().splitlines(keepends=True)[:ROWS_KEPT]))
        read_by_all(folder)
    return found


def with_few_figures(value: Any) -> Any:
    if isinstance(value, list):
        return [with_few_figures(part) for part in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    if len(keys) > FIGURES_KEPT and all("." in key for key in keys):
        usual = [key for key in keys if key.startswith(("both.realistic.mean_reciprocal", "both.realistic.hits_at_10"))]
        keys = [*usual, *keys][:FIGURES_KEPT]
    return {key: with_few_figures(value[key]) for key in keys}


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value; of a list, the first one's."""
    yield place
    for key in inner_keys(value):
        yield from places(value[key], (*place, key))


def inner_keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else [0] if isinstance(value, list) and value else []


def shape(value: Any) -> Any:
    """Return the names in an object and in what it holds."""
    return {key: shape(value[key]) for key in inner_keys(value)}


def tried(
    value: Any, place: tuple[Any, ...] = (), values: Sequence[Any] = VALUES
) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yield places with the values that are tried there.

    Objects side by side that hold the same names, such as the sides and the popularity of answers and queries, share
    the values between them: each is tried in one.
    """
    yield place, values
    keys = inner_keys(value)
    for key in keys:
        alike = [other for other in keys if place and shape(value[key]) and shape(value[other]) == shape(value[key])]
        turn = alike.index(key) if alike else 0
        yield from tried(value[key], (*place, key), values[turn :: max(1, len(alike))])


def some_of(values: Sequence[Any], at: int) -> Sequence[Any]:
    """Return what is tried in the place with this number: a third of the values, in turns."""
    return values[at % 3 :: 3]


def edited(document: Any, place: tuple[Any, ...], value: object) -> str:
    """Return the text of a document with another value in a place."""
    root = {"": copy.deepcopy(document)}
    set_at(root, ("", *place), value)
    text = json.dumps(root.get(""))
    return text.replace(f'"{INFINITE}"', INFINITE[1:-1]).replace(f'"{HUGE}"', HUGE[1:-1])


def read_by_all(folder: Path) -> None:
    """Do what report, publish, compare, notebooks and scripts do with a result."""
    report = Report.read(folder)
    report.to_json()
    if "metrics" in report.document:
        report._printed()
    source = Source(folder.name, report)
    page_of(source)
    markdown(source)
    latex(source)
    for table in report.tables:
        report.table(table)._shown()
    if report.document["complete"] and (folder / "ranks").exists():
        SavedRun.open(report, None)


def assert_told(error: EvalError) -> None:
    lines = str(error).splitlines()
    assert lines
    assert all(len(line) < 1000 and "Traceback" not in line for line in lines), lines


@pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param("everything", "metrics.json", marks=pytest.mark.slow),
        *((name, "metrics.json") for name in ("plain", "sample", "sampled", "begun", "so far")),
        ("plain", "run.json"),
    ],
)
def test_any_value_may_be_damaged(results: dict[str, Path], name: str, file: str) -> None:
    path = results[name] / file
    whole = path.read_text()
    refused, others = 0, set()
    covered = set(places(json.loads((results["everything"] / file).read_text())))
    if name not in {"plain", "sample", "sampled"} or file == "run.json":  # which are of the same shape
        covered = set()
    try:
        for at, (place, values) in enumerate(of for of in tried(json.loads(whole)) if of[0] not in covered):
            for value in some_of(values, at):
                path.write_text(edited(json.loads(whole), place, value))
                try:
                    read_by_all(results[name])
                except EvalError as error:
                    assert_told(error)
                    refused += 1
                except Exception as error:
                    others.add((".".join(map(str, place)), str(value)[:20], repr(error)[:100]))
    finally:
        path.write_text(whole)

    assert sorted(others) == []
    assert refused


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"both": 0', "expected an object at diagnostics.both, found 0; the file was edited or damaged: copy it again"),
        ('"gone": 0', "expected diagnostics.both, found nothing; the file was edited or damaged: copy it again"),
        ('"both": "text"', 'expected an object at diagnostics.both, found "text"; the file was edited or damaged'),
    ],
)
def test_the_line_names_the_file_and_the_place(results: dict[str, Path], tmp_path: Path, text: str, told: str) -> None:
    folder = shutil.copytree(results["plain"], tmp_path / "result")
    document = json.loads((folder / "metrics.json").read_text())
    document["diagnostics"] = json.loads(f"{{{text}}}")
    (folder / "metrics.json").write_text(json.dumps(document))

    for command in (
        ["report", "result"],
        ["publish", "result", "--dataset", "a/b", "-o", "card"],
        ["compare", "result", "result"],
    ):
        done = run_main(*command, cwd=tmp_path)
        assert (done.status, done.out, len(done.err.splitlines())) == (1, "", 1), done.err
        assert f"metrics.json: {told}" in done.err


@pytest.mark.parametrize("file", ["metrics.json", "run.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 100_000, b"[]", b"NaN", b"9" * 5000, b"\xff\xfe{\x00}\x00", b'{"complete": true, "complete": true}'],
    ids=range(7),
)
def test_what_is_no_result_is_one_line(results: dict[str, Path], tmp_path: Path, file: str, content: bytes) -> None:
    folder = shutil.copytree(results["plain"], tmp_path / "result")
    (folder / file).write_bytes(content)

    with pytest.raises(OutputError) as fault:
        Report.read(folder)

    assert str(fault.value).startswith(f"{folder / file}: ")
    assert len(str(fault.value).splitlines()) == 1


def test_tables_may_be_damaged(results: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(results["everything"], tmp_path / "result")
    for at, path in enumerate(sorted(folder.glob("*.csv"))):
        whole = path.read_bytes()
        head, first, *others = whole.split(b"\n")
        cells, names = first.split(b","), head.split(b",")
        columns = [column for column, name in enumerate(names) if b"." not in name or b"both.realistic" in name]
        replaced = [
            b",".join([*cells[:column], value, *cells[column + 1 :]])
            for column in columns[:8]
            for value in (b"", b"-1", b"text", b"1e400", b"9" * 5000, b"\xff", b"nan")
        ]
        for row in (*some_of(replaced, at), first + b",1", b"", b'"'):
            path.write_bytes(b"\n".join([head, row, *others]))
            try:
                read_by_all(folder)
            except EvalError as error:
                assert_told(error)
        for content in (b"", b"\n", head, head + b"\n", whole[: len(whole) // 2], b"a,b\n1,2\n", b"\x00" * 9):
            path.write_bytes(content)
            try:
                read_by_all(folder)
            except EvalError as error:
                assert_told(error)
        path.write_bytes(whole)


@pytest.mark.parametrize("content", [b"\xff" * 99, b"../../metrics.json\n", b"\x00"])
def test_the_list_of_files_may_be_damaged(results: dict[str, Path], tmp_path: Path, content: bytes) -> None:
    root = shutil.copytree(results["plain"].parent, tmp_path / "case")
    (tmp_path / "metrics.json").write_text("mine")
    (root / "plain" / "files.txt").write_bytes(content)

    done = run_main("--config", "eval.py", "--output", "plain", "--workers", "1", "--overwrite", "--quiet", cwd=root)

    assert len(done.faults) == (1 if done.status else 0), done.err
    assert (tmp_path / "metrics.json").read_text() == "mine"


# Records of a training run


def test_records_may_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "training_stats.json"
    figures = {"count": 8, "metrics": {"mrr": 0.25, "r1": None}}
    estimates = {"both.realistic.mean_reciprocal_rank": {"value": 0.25, "standard_error": 0.01}}
    values = {"both.realistic.mean_reciprocal_rank": 0.5}
    key = {"epoch_idx": 0, "edge_path_idx": 0, "edge_chunk_idx": 0, "index": 0}
    ours = {"before": values, "after": values, "training": values, "gap": estimates, "generalization": estimates}
    of_visit = {**ours, "diverged": False, "reason": None, "worker": 0, "cluster": "edge", "seconds": 0.5}
    of_pass = {**ours, "num_buckets": 2, "num_diverged": 0, "verdict": "shrinking", "best_pass": 0, "best_mrr": 0.5}
    visit = {
        **{"lhs_partition": 0, "rhs_partition": 0, "stats": figures, "eval_stats_before": figures},
        **{"eval_stats_after": figures, **key, "pbgeval": {"version": 1, "num_clusters": 1, **of_visit}},
    }
    average = {**key, "eval_stats_chunk_avg": figures, "pbgeval": {"version": 1, "lost": 0.1, "level": 0.05, **of_pass}}
    others, refused = set(), 0
    for index, line in enumerate((visit, average)):
        for at, place in enumerate(places(line)):
            for value in some_of(VALUES, at):
                lines = [json.dumps(visit), json.dumps(average)]
                lines[index] = edited(line, place, value)
                path.write_text("".join(f"{line}\n" for line in [*lines, json.dumps({**average, "epoch_idx": 1})]))
                try:
                    repr(read_history(path, lambda _: None))
                    source = Source("records", None, read_curves(tmp_path, "mrr", lambda _: None))
                    page_of(source)
                    markdown(source)
                except EvalError as error:
                    assert_told(error)
                    refused += 1
                except Exception as error:
                    others.add((".".join(map(str, place)), str(value)[:20], repr(error)[:100]))

    assert sorted(others) == []
    assert refused


# The owner of a folder: a file that is none is taken for one of a dead process


def test_an_owner_may_be_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pbgeval.cluster.claim.HEARTBEAT_SECONDS", 0.01)
    owner = {**describe_process("host", {}), "process": 2**22 + 1}
    for place in list(places(owner))[1:]:
        for value in (*VALUES, "../../x", "a\x00b"):
            (tmp_path / OWNER).write_text(edited(owner, place, value))
            claim = Ownership(tmp_path, describe_process("host", {}), say=lambda _: None)
            try:
                claim.acquire()
            except EvalError as error:
                assert_told(error)
                (tmp_path / OWNER).unlink()
            else:
                claim.release()
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == []


# The shared reader of JSON


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, '{"a":' * 5000, "NaN", "[-Infinity]", "1e999", "9" * 5000, b"\xff"]
)
def test_json_that_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".") as fault:
        parse_json(text)
    assert len(str(fault.value)) < 300


def test_json_that_can_be_read() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH

    assert parse_json('{"a": [1, -0.0, null, "\\u00e9", {}], "b": 1e308}') == {"a": [1, 0.0, None, "é", {}], "b": 1e308}
    assert json.dumps(parse_json(deepest)) == deepest
    with pytest.raises(ValueError, match="within each other"):
        parse_json(f"[{deepest}]")
    with pytest.raises(ValueError, match="the name 'a' occurs twice"):
        parse_json('{"a": 1, "a": 1}')


def test_lists_of_objects_may_be_damaged(tmp_path: Path) -> None:
    for content in (
        b"",
        b"[",
        b"[" * 100_000,
        b"0",
        b"{}",
        b'{"url": 0, "objects": 0}',
        b'{"url": "", "objects": {"a": 0}}',
    ):
        (tmp_path / ".objects.json").write_bytes(content)
        names = [path for path in tmp_path.iterdir()]
        assert names
        with pytest.raises(StorageError, match="cannot read the list of a folder of objects"):
            read_object_folder(tmp_path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b'{"provenance": {}}'])
def test_another_result_at_a_url_may_be_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.json").write_bytes(content)

    with pytest.raises(
        OutputError, match=r"metrics.json: expected a result of pbgeval, got something else; move it away"
    ):
        refuse_another_result(f"file://{tmp_path}", "0" * 32, overwrite=False)
