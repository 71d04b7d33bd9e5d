"""docs/reference: its pages name all that there is, and the page of output files is what runs write."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from attrs import frozen
from torch import Tensor

import pbgeval
from pbgeval.config.explain import explained_keys
from pbgeval.monitor.followed import Followed, followed_file, write_followed
from pbgeval.monitor.records import PassDetails, PassKey, PassRecord, PbgFigures, VisitDetails, VisitRecord
from pbgeval.notation import Bucket
from pbgeval.results.output import JOURNAL, LINES, METRICS, PAGES, SCRATCH, SUMMARY, UNIT_LOG
from pbgeval.storage.topk import TABLE_COLUMNS, TIMED_COLUMNS
from scripts import reference_docs
from tests.kit.commands import run_main
from tests.kit.outputs import every_output
from tests.kit.projects import write_suite
from tests.kit.reports import rows_of
from tests.unit.test_adapters_topk import RANKING, TEST, written
from tests.unit.test_taxonomy import DATA

TYPES = {"object": [dict], "list": [list], "string": [str], "integer": [int], "boolean": [bool], "null": [type(None)]}
TYPES["number"] = [int, float]
OUTPUT_FILES = reference_docs.FOLDER / "output_files.md"
SEVERAL = "*"  # in the path of a key: any key of an object, any item of a list


@frozen
class Part:
    """A key of a JSON document, or a column of a table, as the page has it."""

    name: str
    type: str
    text: str
    when: str  # empty: always


def declared_files() -> dict[str, tuple[Part, ...]]:
    """The keys or columns of every file on the page, in its order."""
    found = {}
    for section in OUTPUT_FILES.read_text(encoding="utf-8").split("\n### ")[1:]:
        parts = [
            Part(*row)
            for row in re.findall(r"^- `(.*?)` \((.*?)\)(?:: (.*?))?(?: \*\(only: (.*)\)\*)?$", section, re.MULTILINE)
        ]
        names = section.partition("\n")[0].replace("`", "").split(", ")
        for name in names if names[0].endswith(".csv") else [", ".join(names)]:  # of several tables: those of its own
            found[name] = tuple(
                part for part in parts if len(names) == 1 or part.when in ("", None) or name in part.when
            )
    return found


FILES = declared_files()
OTHERS = [
    name for name in FILES if name.startswith(("compare", "suite", "topk --", "types", "import-graph", "Monitor"))
]


def test_the_pages_name_every_key_and_every_command() -> None:
    pages = reference_docs.pages()

    assert [key.name for key in explained_keys() if f"| `{key.name}` |" not in pages["config.md"]] == []
    for command in ("submit", "import-graph", "report", "metrics"):
        assert f"Usage: kgeval-dist {command} [OPTIONS]" in pages["command_line.md"]
    headings = re.findall(r"^      heading: pbgeval\.(\w+)$", pages["python.md"], re.MULTILINE)
    assert sorted(headings) == sorted({*pbgeval.__all__} - {"__version__"})


# What is declared of files, and what runs write


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Output directories of runs that together write every file and every key."""
    root = tmp_path_factory.mktemp("case")
    found = every_output(root)

    def score(lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
        return -(lhs + rel + 1 - rhs).abs().float()

    model = pbgeval.edge_scorer(score, num_entities=5, num_relations=1)
    pbgeval.evaluate_triples(model, [(0, 0, 1)], output=root / "scorer")
    return found | {"scorer": root / "scorer"}


def tree_of(parts: tuple[Part, ...]) -> dict[str, Any]:
    """The declared keys as nested dictionaries; one without entries is not looked into."""
    tree: dict[str, Any] = {}
    for part in parts:
        branch = tree
        for name in part.name.split("."):
            branch = branch.setdefault(name, {})
    return tree


def found_keys(value: Any, tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths of keys, as they are declared, and values, as deep as the declaration goes."""
    if not tree or value is None:
        return
    if SEVERAL in tree:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from found_keys(inner, tree[SEVERAL], f"{path}{SEVERAL}.")
        return
    for key, inner in value.items():
        yield f"{path}{key}", inner
        yield from found_keys(inner, tree.get(key, {}), f"{path}{key}.")


def assert_declared(parts: tuple[Part, ...], documents: list[Any]) -> None:
    """Every key that is found is declared with its type, and every key that is declared is found somewhere."""
    declared = {part.name: part for part in parts}
    assert len(parts) == len(declared)
    found: set[str] = set()
    for document in documents:
        keys = list(found_keys(document, tree_of(parts)))
        assert [name for name, _ in keys if name not in declared] == [], f"describe these in {OUTPUT_FILES}"
        for name, value in keys:
            assert is_of_type(value, declared[name].type), f"{name}: {declared[name].type}, found {value!r}"
        found |= {name for name, _ in keys}
        assert {part.name for part in parts if not part.when and "." not in part.name} <= {name for name, _ in keys}
    assert set(declared) - found == set(), "nothing writes these"


def is_of_type(value: object, words: str) -> bool:
    return any(type(value) in TYPES[word] for word in words.split(" or "))


@pytest.mark.parametrize("name", [METRICS, SUMMARY, "run.json", LINES, UNIT_LOG])
def test_documents_and_lines_of_json_have_the_declared_keys(outputs: dict[str, Path], name: str) -> None:
    texts = [(folder / name).read_text(encoding="utf-8") for folder in outputs.values()]
    documents = [line for text in texts for line in (text.splitlines() if name.endswith(".jsonl") else [text])]

    assert_declared(FILES[name], [json.loads(document) for document in documents])


def matches(column: str, name: str) -> bool:
    """Whether a column is a declared one: `<side>.<rank type>.<metric>` stands for all of three words."""
    return re.fullmatch(re.sub("<.*?>", "[^.]+", name), column) is not None


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".csv")])
def test_tables_have_the_declared_columns(outputs: dict[str, Path], name: str) -> None:
    columns = {column for folder in outputs.values() for path in folder.glob(name) for column in rows_of(path)[0]}

    names = [part.name for part in FILES[name]]
    assert [column for column in columns if not any(matches(column, name) for name in names)] == []
    assert [name for name in names if not any(matches(column, name) for column in columns)] == []


def test_files_of_queries_have_the_declared_columns(outputs: dict[str, Path]) -> None:
    declared = {name: [part.name for part in parts] for name, parts in FILES.items()}

    for kind in ("ranks", "topk"):
        with h5py.File(outputs["everything"] / kind / "0" / f"{kind}_0_1.h5") as file:
            for side in ("head", "tail"):
                assert {*declared[f"{kind}/<path index>/{kind}_<l>_<r>.h5"]} == {*file[side]}
    first = (outputs["everything"] / "topk" / "0" / "topk_0_1.tsv").read_text().splitlines()[0]
    assert tuple(first.split("\t")) == TABLE_COLUMNS
    assert tuple(declared["topk/<path index>/topk_<l>_<r>.tsv"]) == TIMED_COLUMNS


def test_no_other_file_lies_in_an_output_directory(outputs: dict[str, Path]) -> None:
    declared = {name.split("/")[0] for name in FILES if name not in OTHERS}

    found = {path.name for folder in outputs.values() for path in folder.iterdir()}
    assert found <= declared
    assert declared - found == {*PAGES, JOURNAL, SCRATCH, "owner.json, owner.heartbeat", "sinks", "imported"}
    assert METRICS in found


# What other commands write


def write_lists(root: Path) -> None:
    written(root / "test.tsv", TEST)
    written(root / "ranking.txt", RANKING)


def write_edges(root: Path) -> None:
    (root / "train.tsv").write_text("a\tlikes\tb\nb\tlikes\tc\n")
    (root / "test.tsv").write_text("a\tlikes\tz\na\tlikes\tc\n")


IMPORT = "--output graph --edges train=train.tsv --edges test=test.tsv --dictionary-of train --quiet"
LISTS = [f"--{name}={DATA / name}.tsv" for name in ("taxonomy", "truth", "ranking")]


@pytest.mark.parametrize(
    ("prepare", "words", "written_to", "name"),
    [
        (
            write_lists,
            ["topk", "--test", "test.tsv", "--ranking", "ranking.txt", "--output", "o.json"],
            "o.json",
            "topk --output",
        ),
        (Path.exists, ["types", *LISTS, "--output", "o.json"], "o.json", "types --output"),
        (write_edges, ["import-graph", *IMPORT.split()], "graph/import.json", "import-graph: import.json"),
    ],
)
def test_files_of_other_commands_have_the_declared_keys(
    prepare: Callable[[Path], object], words: list[str], written_to: str, name: str, tmp_path: Path
) -> None:
    prepare(tmp_path)
    assert run_main(*words, cwd=tmp_path).status == 0
    (parts,) = (parts for declared, parts in FILES.items() if declared.startswith(name))
    assert_declared(parts, [json.loads((tmp_path / written_to).read_text())])
    for path in tmp_path.glob("graph/*/unknown.tsv"):
        header = path.read_text().splitlines()[0]
        assert [part.name for part in FILES["import-graph: <name>/unknown.tsv"]] == header.split("\t")


def test_a_comparison_has_the_declared_keys(outputs: dict[str, Path]) -> None:
    folder = outputs["everything"]
    done = run_main("compare", str(folder), str(folder), "--format", "json", cwd=folder.parent)

    assert len(done.warnings) == 2  # of the edges, which the model was trained on
    document = json.loads(done.out)
    assert document["relations"]
    assert_declared(FILES["compare --output FILE"], [document])


def test_a_comparison_of_several_runs_has_the_declared_keys(outputs: dict[str, Path]) -> None:
    folder = outputs["everything"]
    same = [shutil.copytree(folder, folder.with_name(f"same-{number}")) for number in range(3)]
    named = [f"{name}={path}" for name, path in zip("xxyy", [folder, *same], strict=True)]
    done = run_main("compare", *named, "--format", "json", cwd=folder.parent)

    assert len(done.warnings) == 2
    assert_declared(FILES["compare --output FILE (several runs)"], [json.loads(done.out)])


def test_a_suite_has_the_declared_keys(tmp_path: Path) -> None:
    write_suite(tmp_path / "many.yaml", {"one": 9})
    assert run_main("suite", "many.yaml", "--quiet", "--workers", "1", cwd=tmp_path).status == 0

    document = json.loads((tmp_path / "results" / "many" / "suite.json").read_text(encoding="utf-8"))
    assert_declared(FILES["suite: suite.json"], [document])


def test_records_of_training_have_the_declared_keys() -> None:
    figures = PbgFigures(3, {"mrr": 0.5})
    visit = VisitRecord(PassKey(0), Bucket(0, 1), 0, figures, figures, figures, VisitDetails(reason="NaN", training={}))
    summary = PassRecord(PassKey(0), 0, figures, PassDetails(lost=0.1, level=0.05))

    assert_declared(FILES["Monitor: training_stats.json, a visit"], [visit.to_json()])
    assert_declared(FILES["Monitor: training_stats.json, a pass"], [summary.to_json()])


def test_what_a_monitor_follows_has_the_declared_keys(tmp_path: Path) -> None:
    ranks_E = np.ones(3, np.int64)
    followed = Followed.with_visit(None, 0, 7, ranks_E, ranks_E)
    file = followed_file(tmp_path, 2)
    write_followed(file, PassKey(0), PassDetails(), 3, {(0, 0, Bucket(0, 1)): followed})

    assert file.name == "followed.2.bin"
    assert_declared(FILES["Monitor: followed.<n>.bin"], [json.loads(file.read_bytes().partition(b"\n")[0])])
