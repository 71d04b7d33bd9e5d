"""PyKEEN's TransE on its bundled Nations data, with a share of the triples held out and watched; a runnable example.

scripts/peers pykeen
PYTHONPATH=. .venv-peers/pykeen/bin/python scripts/monitor_pykeen.py --output run/monitor
kgeval-dist monitor run/monitor
"""

import argparse
from pathlib import Path

from pykeen.datasets import Nations
from pykeen.pipeline import pipeline

from pbgeval.integrations.pykeen_training import hold_out


def main() -> None:
    """Train until the held-out triples have not improved for some epochs."""
    parser = argparse.ArgumentParser(description="Train TransE on Nations under a monitor.")
    parser.add_argument("--output", type=Path, help="folder of training_stats.json (default: none)")
    parser.add_argument("--epochs", type=int, default=100, help="at most [%(default)s]")
    parser.add_argument("--patience", type=int, default=5, help="epochs without an improvement [%(default)s]")
    arguments = parser.parse_args()
    dataset = Nations()
    training, callback = hold_out(dataset.training, arguments.output, eval_fraction=0.1, all_entities=True)
    stopper = callback.stopper("mrr", patience=arguments.patience)
    result = pipeline(
        training=training,
        testing=dataset.testing,
        model="TransE",
        model_kwargs={"embedding_dim": 16},
        optimizer_kwargs={"lr": 0.02},
        stopper=stopper,
        training_kwargs={"num_epochs": arguments.epochs, "callbacks": callback, "use_tqdm": False},
        evaluation_kwargs={"use_tqdm": False},
        random_seed=0,
        device="cpu",
    )
    print(f"trained {len(result.losses)} epochs; the model is that of epoch {stopper.best_epoch}")


if __name__ == "__main__":
    main()
