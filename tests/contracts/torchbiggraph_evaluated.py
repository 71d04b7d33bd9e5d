"""Evaluates small checkpoints with PyTorch-BigGraph's own evaluator, one after the other; run by the peer's Python.

Its command line: `.venv-peers/torchbiggraph/bin/python torchbiggraph_evaluated.py FOLDER...`: folders with a config
file of PyTorch-BigGraph. Prints the figures of each as a line of JSON. The processes of the pools are forked: new ones
would import torch for seconds.
"""

import contextlib
import json
import multiprocessing
import sys
from unittest import mock

from torchbiggraph.config import ConfigFileLoader
from torchbiggraph.eval import do_eval_and_report_stats

from pbgeval.integrations.torchbiggraph import _unpack_optional


def evaluate_here() -> dict[str, float]:
    """Evaluate in the working directory; return the figures of all edges."""
    *_, (_, _, stats) = do_eval_and_report_stats(ConfigFileLoader().load_config("eval.py"))
    return {"count": stats.count, **stats.metrics}


if __name__ == "__main__":
    forked = multiprocessing.get_context("fork").Pool
    with (
        mock.patch("torchbiggraph.eval.create_pool", lambda number, **_: forked(number)),
        mock.patch("torchbiggraph.schema.unpack_optional", _unpack_optional),
    ):
        for folder in sys.argv[1:]:
            with contextlib.chdir(folder):
                sys.stdout.write(json.dumps(evaluate_here()) + "\n")
