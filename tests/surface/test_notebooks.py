"""What a notebook user has: every object prints as something to read, once, and arrays are enough for a comparison."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from pbgeval import Comparison, Report, Side, compare, edge_scorer, evaluate_triples, read_history
from pbgeval.errors import ConfigError, OutputError, StorageError
from pbgeval.metrics.given import from_ranks
from pbgeval.report.comparison_pages import comparison_page
from pbgeval.report.tables import console_of, to_terminal
from pbgeval.results.output import kept_edges_path
from tests.kit.commands import lacking, metrics_of, run_main, run_of
from tests.kit.reports import write_records

NUM_ENTITIES, NUM_RELATIONS = 11, 3
TEST = [(at % 7, at % NUM_RELATIONS, (3 * at + 1) % NUM_ENTITIES) for at in range(24)]


def model(seed: int) -> object:
    table = torch.randint(-3, 4, (NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES), generator=torch.manual_seed(seed))

    def score(lhs: torch.Tensor, rel: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        return table[lhs, rel, rhs].float()  # many ties, and negative scores

    return edge_scorer(score, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS)


def compared(folder: Path, edges: object = TEST) -> Comparison:
    for seed, name in enumerate("ab"):
        evaluate_triples(model(seed), edges, output=folder / name)  # type: ignore[arg-type] - many kinds of arrays
    return compare(folder / "a", folder / "b")


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Pretend to be in Jupyter; return what is displayed there."""
    shown: list[object] = []
    display = ModuleType("IPython.display")
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    return shown


def test_in_a_notebook_text_is_whole_and_nothing_is_displayed_besides(displayed: list[object], tmp_path: Path) -> None:
    comparison, report = compared(tmp_path), Report.read(tmp_path / "a")
    file = StringIO()
    console_of(file).print(to_terminal(report.shown()[0]))

    texts = [str(report), repr(report.table("buckets")), str(report.raw), str(comparison), file.getvalue()]

    assert [lacking(text, "ank", "0.") for text in texts] == [[]] * len(texts)
    assert displayed == []


# A program without a file in which IPython has a kernel: DuckDB takes it for Jupyter.
IN_JUPYTER = """
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

sys.modules["IPython"] = ipython = ModuleType("IPython")
ipython.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["ipywidgets"] = None

import duckdb

try:
    duckdb.connect().execute("SET enable_progress_bar = false")
except duckdb.InvalidInputException as error:
    print("ipywidgets" in str(error))

from pbgeval.importing.engine import Engine
from pbgeval.progress import Observer

with Engine(Path("scratch"), None, Observer()) as engine:
    print(engine.row("SELECT current_setting('enable_progress_bar')"))
"""


def test_files_are_read_in_a_notebook_without_ipywidgets(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", IN_JUPYTER], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert (done.stdout.splitlines(), done.stderr) == (["True", "(False,)"], "")


# Edges in memory


@pytest.mark.parametrize(
    "edges",
    [
        TEST,
        np.asfortranarray(TEST),
        torch.tensor(TEST, dtype=torch.uint8),
        [(*edge, 5) for edge in TEST],
    ],
    ids=["list", "Fortran", "tensor", "times"],
)
def test_runs_of_arrays_are_compared_with_their_keys_and_relations(edges: object, tmp_path: Path) -> None:
    found = compared(tmp_path, edges)

    array = np.asarray(edges)
    assert (found.clusters, found.num_queries) == ("key", 2 * len(array))
    assert sum(of.num_queries for of in found.relations) == 2 * len(array)
    kept = np.load(kept_edges_path(tmp_path / "a", 0))
    assert (kept.dtype, kept.tolist()) == (np.dtype(np.int64), array.tolist())
    assert run_of(tmp_path / "a")["edge_paths"] == ["ranks/0/edges.npy"]
    assert "ranks/0/edges.npy" in (tmp_path / "a" / "files.txt").read_text().splitlines()


def test_what_is_kept_changes_neither_figures_nor_digest_and_goes_where_the_result_goes(tmp_path: Path) -> None:
    first = compared(tmp_path)
    evaluate_triples(model(0), TEST, output=tmp_path / "none", save_ranks=False)
    (tmp_path / "moved").mkdir()
    for name in "ab":
        (tmp_path / name).rename(tmp_path / "moved" / name)

    moved = compare(tmp_path / "moved" / "a", tmp_path / "moved" / "b")

    assert moved.differences == first.differences
    without, kept = (metrics_of(tmp_path / name) for name in ("none", "moved/a"))
    assert without["provenance"]["data"]["edges"] == kept["provenance"]["data"]["edges"]
    assert without["provenance"].keys() == kept["provenance"].keys()
    assert without | {"provenance": {}} == kept | {"provenance": {}}
    assert not (tmp_path / "none" / "ranks").exists()
    assert "edge_paths" not in run_of(tmp_path / "none")
    evaluate_triples(model(0), TEST[:3], output=tmp_path / "moved" / "a", overwrite=True, save_ranks=False)
    assert not (tmp_path / "moved" / "a" / "ranks" / "0" / "edges.npy").exists(), "it was of the earlier result"


def test_edges_that_were_changed_or_are_gone_are_refused_with_advice_for_python(tmp_path: Path) -> None:
    compared(tmp_path)
    kept = kept_edges_path(tmp_path / "a", 0)
    (tmp_path / "edges.tsv").write_text("0\t0\t1\n")
    np.save(kept, np.array([*TEST[1:], TEST[0]]))
    with pytest.raises(StorageError, match=r"edges\.npy: expected the edges that were evaluated"):
        compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StorageError, match=r"edges\.tsv: no run has made buckets of this file as it is now"):
        compare(tmp_path / "a", tmp_path / "b", edge_paths=[tmp_path / "edges.tsv"])
    for name in "ab":
        kept_edges_path(tmp_path / name, 0).unlink()
    with pytest.raises(OutputError) as gone:
        compare(tmp_path / "a", tmp_path / "b")

    assert str(gone.value) == (
        f"{tmp_path / 'a'}: the evaluated edges are no longer at the edge_paths of run.json; copy them there (for "
        'edges by name, copy the folder imported), pass edge_paths=[...], or clusters="edge", which ignores keys and '
        "relations"
    )
    done = run_main("compare", "a", "b", cwd=tmp_path)
    assert done.fault == (
        "a: the evaluated edges are no longer at the edge_paths of run.json; copy them there (for edges by name, copy "
        "the folder imported), pass --edges, or --clusters edge, which ignores keys and relations"
    )
    assert compare(tmp_path / "a", tmp_path / "b", clusters="edge").num_queries == 2 * len(TEST)


def test_a_report_without_a_folder_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="this report has no output directory; evaluate with output=FOLDER"):
        compare(evaluate_triples(model(0), TEST), evaluate_triples(model(1), TEST))
    compared(tmp_path)
    with pytest.raises(ConfigError, match="edge_paths: expected 1"):
        compare(tmp_path / "a", tmp_path / "b", edge_paths=["x", "y"])


# What prints


def test_a_comparison_prints_as_its_tables(tmp_path: Path) -> None:
    found = compared(tmp_path)

    assert str(found) == repr(found)
    assert lacking(str(found), "48 queries (both)", "metric", "MRR", "B − A", "95% interval", "by relation") == []
    assert "Difference(" not in str(found)
    html = found._repr_html_()
    assert html.count("<table>") == 2
    assert lacking(html, "MRR by relation", "p (Holm)") == []
    assert "ranks" not in comparison_page(found).title, "where edges are kept is no data set"


def test_metrics_of_ranks_print_as_their_usual_figures() -> None:
    found = from_ranks([1, 2, 4], [1, 4, 4], [9, 9, 9])

    assert (
        repr(found)
        == "RankMetrics(mrr=0.5278, mean_rank=2.6667, hits@1=0.3333, hits@3=0.6667, hits@10=1.0000, 3 queries)"
    )
    assert repr(from_ranks([], [], [])) == ("RankMetrics(mrr=-, mean_rank=-, hits@1=-, hits@3=-, hits@10=-, 0 queries)")


def test_a_history_of_training_prints_its_passes(tmp_path: Path) -> None:
    write_records(tmp_path)
    history = read_history(tmp_path)

    first, *lines = repr(history).splitlines()
    assert first.startswith(f"{len(history.passes)} pass")
    assert lines == [*map(repr, history.passes[-10:])]


def test_scorers_and_sides_print_on_one_line() -> None:
    assert "\n" not in repr(model(0))
    assert "object at" not in repr(Side.LHS)
