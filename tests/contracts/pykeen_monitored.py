"""Trains some PyKEEN models on Nations under the monitor's callback and stopper, and runs the example.

A part of pykeen_programs.py. Of each model writes FOLDER/NAME.json: how the held-out triples rank after each epoch, and
what became of the rest. The monitor's records are in FOLDER/NAME. What the example prints is in FOLDER/example.txt.
"""

import contextlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from pykeen.datasets import Nations
from pykeen.models import ComplEx, DistMult, Model, TransE
from pykeen.trackers import ResultTracker
from pykeen.training import SLCWATrainingLoop, TrainingCallback
from torch.optim import Adam

from pbgeval.errors import ConfigError
from pbgeval.integrations.pykeen_training import BUCKET, MonitorTrainingCallback, hold_out


class Told(ResultTracker):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[tuple[str | None, dict[str, float]]] = []

    def log_metrics(self, metrics: Any, step: int | None = None, prefix: str | None = None) -> None:
        self.metrics.append((prefix, dict(metrics)))


class Oracle(TrainingCallback):
    """Ranks the held-out triples after each epoch: PyKEEN's predictions, counted by hand.

    Its own evaluator is not asked: in 1.11.1 it raises where it is told not to filter.
    """

    def __init__(self, triples: torch.Tensor) -> None:
        super().__init__()
        self.triples = triples
        self.figures: list[dict[str, float]] = []

    def evaluate(self, model: Model) -> None:
        ranks = self.ranks(model, self.triples)
        model.train()
        self.figures.append(
            {
                "mrr": sum(1 / rank for rank in ranks) / len(ranks),
                "pos_rank": sum(ranks) / len(ranks),
                "r10": sum(rank <= 10 for rank in ranks) / len(ranks),
            }
        )

    @staticmethod
    def ranks(model: Model, triples: torch.Tensor) -> list[float]:
        """Return the mean of the best and the worst rank of all heads, then of all tails."""
        # Of a model with inverse relations, head queries are not the scores of triples.
        of_heads, of_tails = model.predict_h(triples[:, 1:]), model.predict_t(triples[:, :2])
        found = []
        for scores, true in ((of_heads, triples[:, :1]), (of_tails, triples[:, 2:])):
            of_true = scores.gather(1, true)
            found += (0.5 + (scores > of_true).sum(dim=1) + (scores == of_true).sum(dim=1) / 2).tolist()
        return found

    def post_epoch(self, epoch: int, epoch_loss: float, **kwargs: Any) -> None:
        self.evaluate(self.model)


def train(
    folder: Path, name: str, make_model: Any, learning_rate: float, num_epochs: int, *, inverse: bool = False
) -> None:
    """Train and write; by the pipeline's parts, so that the first figures can be taken before it."""
    dataset = Nations(create_inverse_triples=inverse)
    training, callback = hold_out(dataset.training, folder / name, eval_fraction=0.2, all_entities=True)
    held_out = callback.monitor.split(dataset.training.mapped_triples, BUCKET).held_out
    torch.manual_seed(5)
    model = make_model(training)
    told = Told()
    optimizer = Adam(model.parameters(), lr=learning_rate)
    loop = SLCWATrainingLoop(model=model, triples_factory=training, optimizer=optimizer, result_tracker=told)
    oracle = Oracle(held_out)
    stopper = callback.stopper("mrr", patience=2, relative_delta=0.0)
    losses = loop.train(
        training, num_epochs, batch_size=64, use_tqdm=False, callbacks=[callback, oracle], stopper=stopper
    )
    after_epochs = list(oracle.figures)
    oracle.evaluate(model)  # what the training leaves
    found = {
        "training": training.mapped_triples.tolist(),
        "held_out": held_out.tolist(),
        "all": dataset.training.mapped_triples.tolist(),
        "after": after_epochs,
        "left": oracle.figures[-1],
        "losses": losses,
        "told": [metrics for prefix, metrics in told.metrics if prefix == "held_out"],
        "stopped": stopper.stopped,
        "best_epoch": stopper.best_epoch,
        "modes": sorted({module.training for module in model.modules()}),
        "refused": refused(callback),
    }
    (folder / f"{name}.json").write_text(json.dumps(found), encoding="ascii")


def refused(callback: MonitorTrainingCallback) -> list[str]:
    """Return what is said to stoppers that cannot judge."""
    messages = []
    for arguments in ({"metric": "mrrr"}, {"frequency": 0}, {"patience": 0}):
        try:
            callback.stopper(**arguments)
        except ConfigError as error:
            messages.append(str(error))
    return messages


def main(folder: Path) -> None:
    """Train models whose predictions differ in kind: distances, complex vectors, inverse relations."""
    train(folder, "transe", lambda of: TransE(triples_factory=of, embedding_dim=8), 0.02, 4)
    train(folder, "complex", lambda of: ComplEx(triples_factory=of, embedding_dim=4), 0.05, 3)
    train(folder, "inverse", lambda of: DistMult(triples_factory=of, embedding_dim=6), 0.05, 3, inverse=True)
    train(folder, "stopped", lambda of: TransE(triples_factory=of, embedding_dim=8), 5.0, 40)
    example = Path(__file__).resolve().parents[2] / "scripts" / "monitor_pykeen.py"
    with (
        (folder / "example.txt").open("w", encoding="utf-8") as printed,
        contextlib.redirect_stdout(printed),
        mock.patch.object(sys, "argv", [str(example), "--output", str(folder / "example"), "--epochs", "3"]),
    ):
        runpy.run_path(str(example), run_name="__main__")
