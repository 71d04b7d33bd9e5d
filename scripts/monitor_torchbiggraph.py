"""`torchbiggraph_train` with a monitor: the same config file, and held-out edges that are watched; a runnable example.

scripts/peers torchbiggraph
PYTHONPATH=. .venv-peers/torchbiggraph/bin/python scripts/monitor_torchbiggraph.py config.py --output run/monitor
kgeval-dist monitor run/monitor
"""

import argparse
import sys
from pathlib import Path

from torchbiggraph.config import ConfigFileLoader, add_to_sys_path
from torchbiggraph.util import SubprocessInitializer, set_logging_verbosity, setup_logging


def main() -> None:
    """Train as PyTorch-BigGraph's own command does."""
    parser = argparse.ArgumentParser(description="Train with PyTorch-BigGraph under a monitor.")
    parser.add_argument("config", help="a config file of PyTorch-BigGraph")
    parser.add_argument("-p", "--param", action="append", default=[], help="key=value, over the file")
    parser.add_argument("--output", type=Path, required=True, help="folder of the monitor's training_stats.json")
    arguments = parser.parse_args()
    loader = ConfigFileLoader()
    config = loader.load_config(arguments.config, arguments.param)
    # After the config: its loader fails on optional keys once Python has forgotten the types that it was made with.
    from pbgeval.errors import EvalError
    from pbgeval.integrations.torchbiggraph import train

    setup_logging(config.verbose)
    set_logging_verbosity(config.verbose)
    initializer = SubprocessInitializer()
    initializer.register(setup_logging, config.verbose)
    initializer.register(add_to_sys_path, loader.config_dir.name)
    try:
        monitor = train(config, arguments.output, subprocess_init=initializer)
    except EvalError as error:
        sys.exit(str(error))
    print(f"best epoch of the held-out edges: {monitor.best_epoch('mrr')}")


if __name__ == "__main__":
    main()
