"""PyKEEN's evaluator: a model object, or a pipeline of PyKEEN's -> its shape of results, our figures.

    from pbgeval.integrations.pykeen import RankBasedEvaluator
    results = RankBasedEvaluator().evaluate(
        model, dataset.testing, additional_filter_triples=[dataset.training, dataset.validation]
    )
    results.get_metric("mrr"), results.to_df(), results.report

    pipeline(dataset="Nations", model="TransE", evaluator=RankBasedEvaluator, stopper="early")

What PyKEEN's evaluators get wrong (docs/metrics.md) is right here. Models whose formula we know hand over their vectors
(`models/pykeen.py`); any other model is asked for the scores of each query once. PyKEEN 1.11 is only needed for
pipelines: a model that has the methods of its models is evaluated without it, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from attrs import define, evolve, field, frozen
from attrs.converters import optional
from torch import Tensor

from pbgeval.cluster.resources import torch_device
from pbgeval.config import EvalConfig, config_of_keys
from pbgeval.errors import ConfigError, DataError
from pbgeval.evaluation import check_before_training, evaluate
from pbgeval.integrations.metric_objects import RankMetric
from pbgeval.metrics.names import DEFAULT, resolve
from pbgeval.metrics.registry import Value
from pbgeval.models.pykeen import pykeen_scorer, pykeen_vectors
from pbgeval.notation import ENDS, ENTITY_TYPE, Side
from pbgeval.progress import Observer
from pbgeval.report.report import OF_LAST_CUTOFF, Report, frame_of, items_of
from pbgeval.results.output import digest_in
from pbgeval.scoring.block_scorer import Scorer
from pbgeval.stats.rank_types import RankType
from pbgeval.storage.checkpoint_files import write_entities, write_relations
from pbgeval.storage.edges import Array, Edges
from pbgeval.storage.writing import temporary_folder

try:
    from pykeen import evaluation as pykeen_evaluation
except ModuleNotFoundError as error:
    if error.name != "pykeen":  # PyKEEN is there, but lacks a library of its own
        raise
    pykeen_evaluation = None

if TYPE_CHECKING:
    import pandas


_Results: Any = getattr(pykeen_evaluation, "RankBasedMetricResults", object)
_Evaluator: Any = getattr(pykeen_evaluation, "Evaluator", object)
_USUAL = ("inverse_harmonic_mean_rank", "hits_at_")  # metrics that results print


@frozen(eq=False, repr=False, slots=False)
class RankBasedMetricResults(_Results):  # type: ignore[misc] # PyKEEN is not installed where types are checked
    """The figures of an evaluation by PyKEEN's keys; all of them, also by ours, are in `report`."""

    figures: Mapping[str, Value]  # what the keys are taken from, by the report's own keys
    hits_at: tuple[int, ...]
    report: Report | None = None  # None: of scores that a loop of PyKEEN's handed over

    def __repr__(self) -> str:
        data = self.data
        usual = [
            f"{metric}={value:.4f}"
            for (side, rank_type, metric), value in data.items()
            if (side, rank_type) == ("both", RankType.REALISTIC.value) and metric.startswith(_USUAL)
        ]
        return f"{type(self).__name__}({', '.join([*usual, f'{len(data)} figures in all'])})"

    @property
    def data(self) -> dict[tuple[str, str, str], float]:
        """Figures by (side, rank type, metric), of the sides that were evaluated; NaN where one is undefined."""
        return dict(items_of(self.figures, self.hits_at))

    def get_metric(self, name: str | tuple[str, str, str]) -> Value:
        """Return a figure by any of its names, PyKEEN's or ours; without side and rank type, both and realistic.

        Raises:
            KeyError: no such metric; the message names the nearest.
        """
        name = name if isinstance(name, str) else ".".join(name)
        if name.rpartition(".")[2] in (f"{prefix}k" for prefix in OF_LAST_CUTOFF) and self.hits_at:
            name = f"{name[:-1]}{self.hits_at[-1]}"
        return self.figures[resolve(name, RankType.REALISTIC.value, self.figures.keys())]

    def to_flat_dict(self) -> dict[str, float]:
        """Return `side.rank_type.metric` -> value."""
        return {".".join(key): value for key, value in self.data.items()}

    def to_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return side -> rank type -> metric -> value."""
        nested: dict[str, dict[str, dict[str, float]]] = {}
        for (side, rank_type, metric), value in self.data.items():
            nested.setdefault(side, {}).setdefault(rank_type, {})[metric] = value
        return nested

    def to_df(self) -> pandas.DataFrame:
        """Return a row per figure: Side, Rank_type, Metric, Value.

        Raises:
            OutputError: pandas, which PyKEEN brings along, is not installed.
        """
        return frame_of(self.data.items())


Triples: TypeAlias = Any  # a triples factory, or an `Array` of ids: head, relation, tail
WITHOUT_EFFECT = {"use_tqdm", "tqdm_kwargs", "pre_filtered_triples", "do_time_consuming_checks"}
_NO_FILTER = (
    "filtered only by the evaluated edges; pass additional_filter_triples=[dataset.training, dataset.validation]"
)
_ID_MAPS = ("entity_to_id", "relation_to_id")
_TAKE_ENTITIES = ("save_topk", "restrict_entities", "head_candidates", "tail_candidates")  # keys that need their names


@define(eq=False, slots=False)
class RankBasedEvaluator(_Evaluator):  # type: ignore[misc] # PyKEEN is not installed where types are checked
    """In place of PyKEEN's `RankBasedEvaluator`, and with `macro` of its `MacroRankBasedEvaluator`.

    It is an `Evaluator` wherever PyKEEN takes one: pipelines, searches, early stopping, callbacks, evaluation loops.

    Each call of `evaluate` replaces what the call before wrote into `output`: after a pipeline, the final evaluation is
    there, not the checks of its stopper. A folder that has a result before is refused at once, before a pipeline
    trains, unless `overwrite` is set; so are settings that are wrong.
    """

    metric_result_cls = RankBasedMetricResults
    requires_positive_mask = False

    filtered: bool = True
    batch_size: int | None = field(default=None, kw_only=True)  # where `evaluate` is given none
    slice_size: int | None = field(default=None, kw_only=True)
    mode: str | None = field(default=None, kw_only=True)  # of inductive models; the entities are the evaluated ones
    macro: bool = field(default=False, kw_only=True)  # every query key weighs alike
    hits_at: Sequence[int] = field(default=(1, 3, 5, 10), kw_only=True, converter=tuple)
    ks: Sequence[int] | None = field(default=None, kw_only=True)  # PyKEEN's word for `hits_at`, which it replaces
    metrics: Sequence[str] = field(default=(), kw_only=True)  # by any of their names; none: all that are usual
    add_defaults: bool = field(default=True, kw_only=True)  # whether `metrics` come with all that are usual
    # Further keys of `EvalConfig`: {"save_ranks": True, "sample_edges": 20000, "type_constraint": "observed"}.
    settings: Mapping[str, Any] = field(factory=dict, kw_only=True)
    output: Path | None = field(default=None, kw_only=True, converter=optional(Path))  # folder of the last result
    device: str = field(default="auto", kw_only=True)  # auto, cpu or cuda
    overwrite: bool = field(default=False, kw_only=True)  # replace an earlier result in `output`
    observer: Observer | None = field(default=None, kw_only=True)
    _scored: dict[Side, RankMetric] = field(factory=dict, init=False, repr=False)  # what loops have handed over
    _written: str | None = field(default=None, init=False, repr=False)  # digest of what it wrote last into `output`

    def __attrs_post_init__(self) -> None:
        """Refuse what no evaluation can be done with: pipelines make the evaluator before they train.

        Raises:
            EvalError: faults of settings, the device or the output folder.
        """
        check_before_training(self._config({}), self.output, self.device, overwrite=self.overwrite)

    @classmethod
    def get_normalized_name(cls) -> str:
        """Return the name by which PyKEEN finds it again, for example in the config of a search."""
        return "exact"

    def evaluate(
        self,
        model: Any,  # noqa: ANN401 - a class of a library that is not imported
        mapped_triples: Triples,
        batch_size: int | None = None,
        slice_size: int | None = None,
        *,
        additional_filter_triples: Triples | Sequence[Triples] | None = None,
        restrict_entities_to: Collection[int | str] | None = None,
        restrict_relations_to: Collection[int | str] | None = None,
        targets: Collection[str] = ("head", "tail"),
        device: Any = None,  # noqa: ANN401 - as torch takes it
        training: Triples | None = None,
        **without_effect: Any,  # noqa: ANN401 - see `WITHOUT_EFFECT`
    ) -> RankBasedMetricResults:
        """Rank the triples against all entities.

        Args:
            model: a trained model, not a pipeline's result.
            mapped_triples: the triples to evaluate: a triples factory or ids (n, 3). They are always known.
            batch_size: queries that a model without a formula of ours scores at once.
            slice_size: as in PyKEEN, for the same models.
            additional_filter_triples: known too, if this evaluator filters; one or several.
            restrict_entities_to: ids, or labels if the factory has them; others are dropped, also as candidates.
            restrict_relations_to: ids or labels. Triples of other relations are dropped.
            targets: what is hidden: head, tail or both, and relation besides.
            device: where the model is moved to; None: it stays.
            training: known too; frequencies, leakage and unseen entities are computed from it.
            without_effect: PyKEEN's progress bar and checks; triples are always restricted.

        Raises:
            EvalError: no such model, ids out of range, a score that is NaN, factories that number labels in other ways.
        """
        for name in without_effect.keys() - WITHOUT_EFFECT:
            raise ConfigError(f"evaluate: unknown argument {name}")
        if self.filtered and additional_filter_triples is None and training is None:
            warnings.warn(_NO_FILTER, stacklevel=2)
        filters, training = _as_list(additional_filter_triples), _as_list(training)
        factories = [mapped_triples, *filters, *training]
        _check_id_maps(factories)
        num_entities = None if self.mode is None else getattr(mapped_triples, "num_entities", None)
        if self.mode is not None and num_entities is None:
            raise DataError("mapped_triples: an inductive model needs a triples factory of its mode")
        model = model if device is None else model.to(torch_device(device))
        scorer = pykeen_scorer(
            model,
            num_entities=num_entities,
            batch_size=batch_size or self.batch_size,
            slice_size=slice_size or self.slice_size,
            mode=self.mode,
        )
        edges = self._edges(mapped_triples, filters, training)
        restrictions = {
            "restrict_entities": _names(restrict_entities_to, mapped_triples, "entity_to_id", "all:0:"),
            "restrict_relations": _names(restrict_relations_to, mapped_triples, "relation_to_id", "rel:"),
        }
        config = self._config({**_hidden(targets), **restrictions})
        vectors = pykeen_vectors(model, scorer) if self.mode is None else None
        run = partial(evaluate, model=vectors or scorer, edges=edges, observer=self.observer)
        there = None if self.output is None else digest_in(self.output)
        is_ours = there is not None and there == self._written
        with _with_labels(config, factories, scorer) as labelled:
            report = run(labelled, output=self.output, device=self.device, overwrite=self.overwrite or is_ours)
        if there is None or is_ours or self.overwrite:
            self._written = report.document["provenance"]["digest"]
        figures = report.document["macro_metrics" if self.macro else "metrics"]
        return RankBasedMetricResults(figures, tuple(config.hits_at), report)

    def process_scores_(
        self,
        hrt_batch: Tensor,
        target: str,
        scores: Tensor,
        true_scores: Tensor | None = None,
        dense_positive_mask: Tensor | None = None,
    ) -> None:
        """Rank a batch of scores of all entities (b, N), as PyKEEN's evaluation loops hand them over.

        Filtered entities have the score NaN there, so another NaN among them passes for one: `evaluate` refuses it.

        Raises:
            ConfigError: macro averages need all triples at once; or the target is no entity.
            DataError: the score of a true entity is NaN; if nothing is filtered, any score.
        """
        if self.macro:
            raise ConfigError("RankBasedEvaluator: macro averages need evaluate(), which has all triples at once")
        side = next((side for side in ENDS if side.label == target), None)
        if side is None:
            raise ConfigError(f"RankBasedEvaluator: expected the target head or tail, got {target}")
        true_b = hrt_batch[:, 0 if side is Side.LHS else 2]
        excluded_bN = scores.isnan() if self.filtered else None
        if true_scores is not None:
            scores = scores.scatter(1, true_b[:, None], true_scores.reshape(-1, 1).to(scores.dtype))
        self._scored.setdefault(side, RankMetric(self._cutoffs)).update(scores, true_b, excluded=excluded_bN)

    def clear(self) -> None:
        """Forget the scores so far."""
        self._scored.clear()

    def finalize(self) -> RankBasedMetricResults:
        """Return the results of the scores so far, and forget them."""
        both = RankMetric(self._cutoffs)
        for metric in self._scored.values():
            both.merge_state(metric)
        metrics = {side.label: metric for side, metric in self._scored.items()} | {"both": both}
        figures = {
            f"{label}.{key.removeprefix('both.')}": value
            for label, metric in metrics.items()
            for key, value in metric.compute().items()
            if metric.num_queries
        }
        self.clear()
        return RankBasedMetricResults(figures, self._cutoffs)

    @property
    def _cutoffs(self) -> tuple[int, ...]:
        return tuple(self.ks or self.hits_at)

    def _edges(self, evaluated: Triples, filters: Sequence[Triples], training: Sequence[Triples]) -> Edges:
        edges = Edges(_array(evaluated))
        if not self.filtered:
            return edges
        return evolve(
            edges,
            known=[_array(triples) for triples in filters] or [edges.evaluated],
            train=[_array(triples) for triples in training],
        )

    def _config(self, restrictions: Mapping[str, Any]) -> EvalConfig:
        metrics = [*(DEFAULT if self.add_defaults else ()), *self.metrics]
        own = {"candidates": "all", "hits_at": list(self._cutoffs), **restrictions}
        return config_of_keys({**own, **({"metrics": metrics} if self.metrics else {}), **self.settings})


def _as_list(triples: Triples | Sequence[Triples] | None) -> list[Triples]:
    """Return a list of triples; a list of lists of three ids is one entry."""
    if triples is None:
        return []
    if not isinstance(triples, list | tuple):
        return [triples]
    is_one = bool(triples) and isinstance(triples[0], list | tuple) and not hasattr(triples[0][0], "__len__")
    return [triples] if is_one else list(triples)


def _array(triples: Triples) -> Array:
    return cast("Array", getattr(triples, "mapped_triples", triples))


def _check_id_maps(factories: Sequence[Triples]) -> None:
    """Refuse factories that number the same labels differently."""
    for name in _ID_MAPS:
        maps = [found for found in (getattr(of, name, None) for of in factories) if found is not None]
        for other in maps[1:]:
            differing = next((label for label, number in maps[0].items() if other.get(label, number) != number), None)
            if differing is not None:
                raise DataError(
                    f"triples factories: expected one {name} in all of them, got {differing!r} as {maps[0][differing]} "
                    f"and as {other[differing]}; make them with {name}=training.{name}"
                )


@contextmanager
def _with_labels(config: EvalConfig, factories: Sequence[Triples], scorer: Scorer) -> Iterator[EvalConfig]:
    """Yield the config with a folder of the labels of relations and entities that a factory has."""
    # A label that begins with rel: would be taken for an id, as `restrict_relations` writes them (`_names`).
    relations = _labels(factories, "relation_to_id", scorer.num_relations)
    if any(label.startswith("rel:") for label in relations or ()):
        relations = None
    takes_entities = not config.entities and any(getattr(config, key) is not None for key in _TAKE_ENTITIES)
    entities = _labels(factories, "entity_to_id", scorer.num_entities) if takes_entities else None
    if config.entity_path or (relations is None and entities is None):
        yield config
        return
    with temporary_folder() as folder:
        write_relations(folder, None, relations)
        if entities is not None:
            write_entities(folder, ENTITY_TYPE, 0, len(entities), entities)
        yield evolve(config, entity_path=str(folder))


def _labels(factories: Sequence[Triples], id_map: str, num_ids: int) -> list[str] | None:
    """Return the labels of all ids in their order, from the first factory that has them all."""
    for factory in factories:
        found: Mapping[Any, int] = getattr(factory, id_map, None) or {}
        by_id = {int(number): str(label) for label, number in found.items()}
        if by_id.keys() == {*range(num_ids)}:
            return [by_id[number] for number in range(num_ids)]
    return None


def _names(chosen: Collection[int | str] | None, triples: Triples, id_map: str, prefix: str) -> list[str] | None:
    """Return a config's names of entities or relations given by id or label."""
    if chosen is None:
        return None
    ids: Mapping[str, int] = getattr(triples, id_map, None) or {}
    unknown = [label for label in chosen if isinstance(label, str) and label not in ids]
    if unknown:
        where = "restrict_entities_to" if id_map == "entity_to_id" else "restrict_relations_to"
        raise ConfigError(f"{where}: expected ids, or labels of the evaluated factory, got {unknown[0]!r}")
    return [f"{prefix}{ids[one] if isinstance(one, str) else int(one)}" for one in chosen]


def _hidden(targets: Collection[str]) -> dict[str, bool]:
    wanted = set(targets) - {Side.REL.label}
    if not wanted or not wanted <= {side.label for side in ENDS}:
        raise ConfigError(
            f"targets: expected head or tail, or both, and if wanted relation, got {sorted(map(str, targets))}"
        )
    return {
        "disable_lhs_negs": "head" not in targets,
        "disable_rhs_negs": "tail" not in targets,
        "relation_prediction": "relation" in targets,
    }


if pykeen_evaluation is not None:
    # PyKEEN's own class keeps the name of the class; ours is found as "exact".
    pykeen_evaluation.evaluator_resolver.register(RankBasedEvaluator, synonyms=["exact"], raise_on_conflict=False)
