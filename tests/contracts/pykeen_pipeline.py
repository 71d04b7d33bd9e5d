"""Runs PyKEEN's pipeline, early stopper and evaluation loop with our evaluator and with its own.

A part of pykeen_programs.py. Writes FOLDER/found.json: by job, the flat metrics of both, or what was chosen by them.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pykeen.datasets import Nations
from pykeen.evaluation import (
    Evaluator,
    LCWAEvaluationLoop,
    MacroRankBasedEvaluator,
    MetricResults,
    RankBasedEvaluator,
    evaluator_resolver,
)
from pykeen.pipeline import PipelineResult, pipeline

from pbgeval import EvalError, Report
from pbgeval.integrations.pykeen import RankBasedEvaluator as Ours

Found = dict[str, Any]


def main(folder: Path) -> None:
    """Run each job with both evaluators."""
    both = {"theirs": RankBasedEvaluator, "ours": Ours}
    found: Found = {"resolved": evaluator_resolver.lookup("exact") is Ours}
    results = {name: train(of, "TransE") for name, of in both.items()}
    found["pipeline"] = flat(results)
    found["printed"] = repr(results["ours"].metric_results)
    found["black box"] = flat({name: train(of, "TuckER") for name, of in both.items()})
    macro = {"theirs": train(MacroRankBasedEvaluator, "DistMult")}
    macro["ours"] = train(Ours, "DistMult", evaluator_kwargs={"macro": True})
    found["macro"] = flat(macro)
    kept = folder / "kept"
    stopped = {
        name: train(
            of,
            "TransE",
            stopper="early",
            stopper_kwargs={"frequency": 1, "metric": "mrr"},
            evaluator_kwargs={"output": kept} if of is Ours else {},
        )
        for name, of in both.items()
    }
    found["stopper"] = {name: of.stopper.results for name, of in stopped.items()}
    found["kept"] = [Report.read(kept)["mrr"], stopped["ours"].metric_results.report["mrr"]]
    found["loop"] = {name: dict(by_loop(of(), results["ours"]).to_flat_dict()) for name, of in both.items()}
    found["report"] = results["ours"].metric_results.report["mrr"]
    named = train(Ours, "TransE", evaluation_kwargs={"training": Nations().training})
    found["named"] = [row["relation"] for row in named.metric_results.report.rows["relations"]]
    shapes = (results["ours"].metric_results, by_loop(Ours(), results["ours"]))
    found["frames"] = [
        {f"{row.Side}.{row.Rank_type}.{row.Metric}": row.Value for row in of.to_df().itertuples()} for of in shapes
    ]
    found["dicts"] = [dict(of.to_flat_dict()) for of in shapes]
    found["mrr"] = [of.get_metric("both.realistic.inverse_harmonic_mean_rank") for of in shapes]
    results["ours"].save_to_directory(folder / "saved")
    triple, scores = torch.tensor([[0, 0, 1]]), torch.tensor([[math.nan, 0.0, math.nan]])
    faulty: dict[str, Callable[[], Any]] = {
        "NaN": lambda: Ours(filtered=False).process_scores_(triple, "tail", scores),
        "target": lambda: Ours().process_scores_(triple, "relation", scores),
    }
    for name, call in faulty.items():
        try:
            call()
        except EvalError as error:
            found[name] = str(error)
    (folder / "found.json").write_text(json.dumps(found), encoding="ascii")


def train(evaluator: type[Evaluator], model: str, **more: Any) -> PipelineResult:
    """Train on Nations; the same model every time."""
    return pipeline(
        dataset="Nations",
        model=model,
        model_kwargs={"embedding_dim": 8},
        evaluator=evaluator,
        training_kwargs={"num_epochs": 2, "use_tqdm": False},
        random_seed=3,
        **{"evaluation_kwargs": {"use_tqdm": False}, **more},
    )


def flat(results: dict[str, PipelineResult]) -> Found:
    return {name: dict(of.metric_results.to_flat_dict()) for name, of in results.items()}


def by_loop(evaluator: Evaluator, result: PipelineResult) -> MetricResults:
    """Return the results of PyKEEN's evaluation loop, which hands over scores batch by batch."""
    nations = Nations()
    loop = LCWAEvaluationLoop(
        model=result.model,
        triples_factory=nations.testing,
        evaluator=evaluator,
        additional_filter_triples=[nations.training, nations.validation],
    )
    return loop.evaluate(use_tqdm=False)
