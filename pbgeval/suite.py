"""A YAML file of graphs and models -> an ordinary evaluation of each model on each graph, one table, one page.

Each evaluation has a folder of its own, `OUTPUT/GRAPH/MODEL`. An interrupted suite resumes with the same command:
finished evaluations are read, not computed again, and the files have the same bytes as those of an undisturbed run.

A model is a path, as the config key `model` takes it, or a Python function that makes one for a graph. What a function
returns has no digest of its own, so it gets one of everything it was made from: the Python file, the edges, the
settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen

from pbgeval.config import EvalConfig
from pbgeval.config.data_files import read_yaml
from pbgeval.config.loading import code_of_file, config_of_keys, typed_config
from pbgeval.errors import OVERWRITE, ConfigError, EvalError, Faults, OutputError
from pbgeval.evaluation import evaluate, evaluate_triples
from pbgeval.importing.edge_names import edge_names
from pbgeval.metrics.names import PRESETS, UnknownMetricError, key_of_name
from pbgeval.models.model import EmbeddingModel
from pbgeval.notation import labels_of
from pbgeval.progress import Observer
from pbgeval.report.rendering import require_jinja2
from pbgeval.report.report import Report
from pbgeval.report.suite_tables import SuiteResults, SuiteRow
from pbgeval.results.result import METRICS
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS
from pbgeval.storage.edge_columns import EdgeForms
from pbgeval.storage.text import fingerprint, joint_fingerprint, listed, read_bytes
from pbgeval.storage.writing import write_atomically

DEFAULT_METRICS = ("mrr", "hits@10")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_KEYS = ("output", "settings", "metrics", "graphs", "models")
_EDGES = ("train", "known", "test")
_GRAPH = "{graph}"  # in the path of a model: the name of the graph
_FACTORY = re.compile(r"(.+\.py):([A-Za-z_][A-Za-z0-9_]*)")
_LABELS = ".labels"  # folder of the names of a graph's entities and relations; no model can have this name


@frozen(eq=False)
class SuiteGraph:
    r"""A graph as a function of a suite gets it. Entities and relations are numbered as they first occur.

    Examples:
        >>> from pathlib import Path
        >>> import pbgeval
        >>> _ = Path("edges.tsv").write_text("ann\tknows\tbob\nbob\tknows\tcara\n")
        >>> graph = pbgeval.SuiteGraph.read("people", train=["edges.tsv"])
        >>> graph.entities, graph.train.tolist()
        (('ann', 'bob', 'cara'), [[0, 0, 1], [1, 0, 2]])
    """

    name: str
    entities: tuple[str, ...]  # names by id
    relations: tuple[str, ...]
    train: np.ndarray  # int64 (edges, 3): head, relation, tail
    known: np.ndarray
    test: np.ndarray

    @classmethod
    def read(
        cls,
        name: str,
        *,
        train: Iterable[str | PathLike[str]] = (),
        known: Iterable[str | PathLike[str]] = (),
        test: Iterable[str | PathLike[str]] = (),
        forms: EdgeForms | None = None,
        observer: Observer | None = None,
    ) -> SuiteGraph:
        """Read files of edges by name, as `edge_paths` takes them.

        Args:
            name: of the graph.
            train: files of training edges.
            known: files of other known edges.
            test: files of evaluated edges.
            forms: which columns the files have. Default: head, relation, tail.
            observer: is told what is doubtful about a file.

        Raises:
            EvalError: a file does not have the format that its name says.
        """
        forms, warn = forms or EdgeForms(), (observer or Observer()).warn
        entities: dict[str, int] = {}
        relations: dict[str, int] = {}
        arrays = []
        for paths in (train, known, test):
            rows: list[tuple[int, int, int]] = []
            for path in map(Path, paths):
                for block in edge_names(path, forms.of(path), warn):
                    for lhs, rel, rhs in zip(*block, strict=True):
                        lhs_id, rhs_id = (entities.setdefault(label, len(entities)) for label in (lhs, rhs))
                        rows.append((lhs_id, relations.setdefault(rel, len(relations)), rhs_id))
            arrays.append(np.array(rows, np.int64).reshape(-1, 3))
        return cls(name, tuple(entities), tuple(relations), *arrays)

    @property
    def num_entities(self) -> int:
        """As `edge_scorer` takes it."""
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """As `edge_scorer` takes it."""
        return len(self.relations)


@frozen
class ModelSource:
    """Where a model comes from."""

    path: Path  # of a model, in which {graph} stands for a graph; or of a Python file
    function: str = ""  # of the Python file

    def of_graph(self, graph: str) -> Path:
        """Return the path for a graph."""
        return self.path if self.function else Path(str(self.path).replace(_GRAPH, graph))

    def make(self, graph: SuiteGraph) -> Any:  # noqa: ANN401 - what `evaluate` takes as a model
        """Call the function.

        Raises:
            ConfigError: the file has no such function, or its code raises an exception.
        """
        with code_of_file(self.path, self.path.read_bytes(), "suite") as module:
            if not callable(function := getattr(module, self.function, None)):
                raise AttributeError(f"no function {self.function} in this file")
            return function(graph)


@frozen
class Suite:
    """What a file asks for."""

    path: Path
    output: Path
    settings: Mapping[str, Any]  # keys of a config, for all evaluations
    metrics: tuple[str, ...]  # columns of the table
    graphs: Mapping[str, Mapping[str, tuple[Path, ...]]]  # files of edges by `_EDGES`
    models: Mapping[str, ModelSource]
    _forms: EdgeForms = field(repr=False)

    @classmethod
    def read(cls, path: Path, output: Path | None = None) -> Suite:
        """Read a file.

        Args:
            path: of the file; paths in it are relative to its folder.
            output: the folder for all results. Default: the one that the file names, else results/NAME beside the file.

        Raises:
            ConfigError: PyYAML or jinja2 is not installed, or everything that is wrong with the file, one line each.
        """
        document = _read_document(path)
        require_jinja2()  # the page is written last
        faults = Faults(
            f"{path}: unknown key {key!r}; expected one of {listed(_KEYS)}" for key in document if key not in _KEYS
        )
        graphs = {name: _graph(path, name, given, faults) for name, given in _named(path, document, "graphs", faults)}
        models = {
            name: _model(path, name, given, graphs, faults) for name, given in _named(path, document, "models", faults)
        }
        settings, metrics = document.get("settings") or {}, document.get("metrics") or list(DEFAULT_METRICS)
        if not isinstance(settings, dict):
            faults.append(f"{path}: settings: expected keys of a config, such as hits_at: [1, 10]")
            settings = {}
        if not isinstance(metrics, list) or not all(isinstance(name, str) for name in metrics):
            faults.append(f"{path}: metrics: expected a list of names, such as [mrr, hits@10]")
            metrics = []
        with faults.noted():
            config = typed_config(settings)
            faults += (f"{path}: metrics: {fault}" for fault in wrong_names(metrics, config))
        faults.raise_any(ConfigError)
        edges = [file for files in graphs.values() for paths in files.values() for file in paths]
        forms = config.edge_forms([file.name for file in edges])
        with_times = {
            "edge_columns": any("time" in forms.of(file).columns for file in edges),
            "time_window": config.time_window is not None,
            "known_until": config.known_until is not None,
            "breakdowns": "time" in config.breakdowns,
        }
        if given := [key for key, has_times in with_times.items() if has_times]:
            faults += [
                f"{path}: models: {name}: a function in a suite gets no times, but settings ask for them "
                f"({listed(given)}); remove this model or these settings (in edge_columns, write _ for s), or evaluate "
                "it with evaluate_triples in Python"
                for name, source in models.items()
                if source.function
            ]
        faults.raise_any(ConfigError)
        folder = output or path.parent / str(document.get("output") or Path("results", path.stem))
        return cls(path, folder, settings, tuple(metrics), graphs, models, forms)

    def run(
        self,
        *,
        workers: int | None = None,
        device: str = "auto",
        overwrite: bool = False,
        observer: Observer | None = None,
        announce: Callable[[str], object] = lambda _: None,
    ) -> SuiteResults:
        """Evaluate what is not finished, in the order of the file, and collect all results.

        Args:
            workers: as in `evaluate`, for models that are paths.
            device: as in `evaluate`.
            overwrite: evaluate everything again.
            observer: as in `evaluate`.
            announce: is called with the graph and the model that come next.

        Raises:
            EvalError: as in `evaluate`; each line begins with the graph and the model.
        """
        launch = {"device": device, "overwrite": overwrite, "observer": observer}
        rows = []
        for graph in self.graphs:
            first = None
            for model, source in self.models.items():
                announce(f"{graph}, {model}")
                try:
                    if source.function:  # models in memory have no workers
                        report = self._evaluate_made(graph, model, launch)
                    else:
                        report = self._evaluate_read(graph, model, {"workers": workers, **launch})
                    rows.append(SuiteRow.from_report(graph, model, report, self.metrics, first))
                    first = first or (model, report)
                except EvalError as error:
                    raise type(error)(*(f"{graph}, {model}: {fault}" for fault in error.faults)) from error
        return SuiteResults(self.path.stem, tuple(rows))

    def _evaluate_read(self, graph: str, model: str, launch: Mapping[str, Any]) -> Report:
        """Evaluate a model that is a path, as `kgeval-dist run` does."""
        keys = {"test": "edge_paths", "train": "train_paths", "known": "filter_paths"}
        edges = {keys[kind]: [str(path.absolute()) for path in self.graphs[graph][kind]] for kind in _EDGES}
        path = str(self.models[model].of_graph(graph).absolute())
        config = config_of_keys({"candidates": "all", **edges, "model": path, **self.settings})
        return evaluate(config, output=self.output / graph / model, **launch)

    def _evaluate_made(self, graph: str, model: str, launch: Mapping[str, Any]) -> Report:
        """Evaluate the model that a function makes."""
        output, digest = self.output / graph / model, self._digest(graph, model)
        saved = Report.read(output) if (output / METRICS).exists() else None
        if saved is not None and saved.document.get("complete") and not launch["overwrite"]:
            found = saved.document["provenance"]["data"]["model"]
            if found.get("digest") == digest:
                return saved
            if "digest" in found:
                raise OutputError(
                    f"{output}: settings, edges or the Python file have changed since this result was made; "
                    f"{OVERWRITE} evaluates everything again"
                )
        loaded = SuiteGraph.read(graph, **self.graphs[graph], forms=self._forms, observer=launch["observer"])
        scorer = self.models[model].make(loaded)
        has_weights = isinstance(scorer, EmbeddingModel | str | Path)  # then it has a digest of its own
        if not has_weights:
            try:
                object.__setattr__(scorer, "digest", digest)
            except (AttributeError, TypeError):
                source = self.models[model]
                raise ConfigError(
                    f"{source.path.name}: {source.function}(): expected a model that can have the attribute 'digest', "
                    f"got {'None' if scorer is None else type(scorer).__name__}"
                ) from None
        # A function may make another model when it is called again: what an interrupted run has counted is dropped.
        is_begun = saved is not None and not saved.document.get("complete") and not has_weights
        settings = {key: value for key, value in self.settings.items() if not key.startswith("edge_")}
        report = evaluate_triples(
            scorer,
            loaded.test,
            train=[loaded.train] if len(loaded.train) else [],
            known=[loaded.known] if len(loaded.known) else [],
            output=output,
            **{**launch, "overwrite": launch["overwrite"] or is_begun},
            **{"entity_path": str(self._write_labels(loaded)), **settings},
        )
        return Report.read(output) if report.path is None else report

    def _digest(self, graph: str, model: str) -> str:
        """Return a digest of everything that a function's model is made from."""
        source = self.models[model]
        return joint_fingerprint(
            json.dumps([dict(self.settings), source.function], sort_keys=True, default=str),
            fingerprint(source.path),
            *(part for kind in _EDGES for part in (*map(fingerprint, self.graphs[graph][kind]), kind)),
        )

    def _write_labels(self, graph: SuiteGraph) -> Path:
        """Write what ids stand for, as tables and lists show it; return the folder."""
        folder = self.output.absolute() / graph.name / _LABELS
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "dynamic_rel_names.json", json.dumps(graph.relations))
        write_atomically(folder / "entity_names_all_0.json", json.dumps(graph.entities))
        return folder


def wrong_names(metrics: Iterable[str], config: EvalConfig) -> Iterator[str]:
    """Yield why evaluations would not have some metrics."""
    if config.rank_type not in (None, *RANK_TYPE_SYNONYMS) or config.preset not in (None, *PRESETS):
        return  # the first evaluation refuses it
    sides, cutoffs = labels_of(config.sides), sorted({*config.hits_at})
    for name in metrics:
        try:
            key = key_of_name(name, config.headline, sides, cutoffs, with_loss=config.compute_loss)
        except UnknownMetricError as error:
            yield str(error)
        else:
            if not config.selection.has(key):
                chosen = f"preset {config.preset}" if config.preset else f"metrics ({listed(config.metrics)})"
                add = "" if config.preset else "add it there, or "
                yield f"{name!r} is left out by {chosen} in settings; {add}name other columns here"


def _read_document(path: Path) -> dict[Any, Any]:
    """Read a file of keys.

    Raises:
        ConfigError: PyYAML is not installed, or the file has no keys.
    """
    try:
        content = read_bytes(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror or error}") from error
    document = read_yaml(content, str(path), "a suite")
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected the keys graphs and models")
    return document


def _named(path: Path, document: Mapping[str, Any], key: str, faults: Faults) -> list[tuple[str, Any]]:
    """Return the entries of `graphs` or `models`; note what is wrong with their names, which become folders."""
    given = document.get(key)
    if not isinstance(given, dict) or not given:
        faults.append(f"{path}: {key}: expected at least one entry, NAME: ...")
        return []
    faults += [
        f"{path}: {key}: {name!r}: expected a name of letters, digits, '_', '.' and '-'"
        for name in given
        if not _NAME.fullmatch(str(name))
    ]
    return [(str(name), entry) for name, entry in given.items()]


def _graph(path: Path, name: str, given: object, faults: Faults) -> dict[str, tuple[Path, ...]]:
    """Return the files of a graph's edges; note what is wrong with them."""
    where = f"{path}: graphs: {name}"
    if not isinstance(given, dict) or "test" not in given:
        faults.append(f"{where}: expected files of edges: test, and optionally train and known")
        return dict.fromkeys(_EDGES, ())
    faults += [f"{where}: unknown key {key!r}; expected one of {listed(_EDGES)}" for key in given if key not in _EDGES]
    files = {}
    for kind in _EDGES:
        texts = given.get(kind) or []
        files[kind] = tuple(path.parent / str(text) for text in (texts if isinstance(texts, list) else [texts]))
        faults += [f"{where}: {kind}: {file}: no such file" for file in files[kind] if not file.exists()]
    return files


def _model(path: Path, name: str, given: object, graphs: Iterable[str], faults: Faults) -> ModelSource:
    """Return where a model comes from; note what is wrong with it."""
    where = f"{path}: models: {name}"
    if not isinstance(given, str):
        faults.append(f"{where}: expected a path, or FILE.py:FUNCTION")
        return ModelSource(path)
    factory = _FACTORY.fullmatch(given)
    source = ModelSource(path.parent / factory[1], factory[2]) if factory else ModelSource(path.parent / given)
    missing = [home for home in dict.fromkeys(map(source.of_graph, graphs)) if not home.exists()]
    faults += [f"{where}: {home}: no such file or folder" for home in missing]
    return source
