"""`evaluate` and `Monitor` called from a program: afterwards its process is what it was before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.case import TinyCase
from tests.kit.commands import start

# What a process has of settings that others in it could notice, by name; what an evaluation imports is no change.
SNAPSHOT = """
import pbgeval.results.document, pbgeval.worker.sweep  # what evaluate imports late
import gc, json, logging, multiprocessing, os, random, signal, sys, threading, warnings
import numpy as np
import torch

def snapshot():
    np_state = np.random.get_state()
    umask = os.umask(0)
    os.umask(umask)
    logs = {name: (log.level, log.disabled, len(log.handlers)) for name, log in logging.root.manager.loggerDict.items()
            if isinstance(log, logging.Logger) and name in LOGGERS}
    return {
        "threads of torch": torch.get_num_threads(),
        "threads between operations": torch.get_num_interop_threads(),
        "precision of products": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "type": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "random numbers of torch": torch.get_rng_state().sum().item(),
        "random numbers of Python": hash(random.getstate()),
        "random numbers of numpy": (np_state[0], np_state[1].sum().item(), *np_state[2:]),
        "floating-point errors of numpy": np.geterr(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "children": len(multiprocessing.active_children()),
        "environment": dict(os.environ),
        "signals": {int(number): repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "logs": logs,
        "root log": (logging.root.level, len(logging.root.handlers)),
        "warnings": len(warnings.filters),
        "working directory": os.getcwd(),
        "umask": umask,
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "path": list(sys.path),
        "modules of the user": sorted(name for name in sys.modules if "eval" in name and "pbgeval" not in name),
        "files": sorted(os.listdir("/proc/self/fd")),
        "threads": sorted(one.name for one in threading.enumerate() if not one.name.startswith("blocks")),
        "excepthook": (repr(sys.excepthook), repr(threading.excepthook)),
        "processes": [pid for pid in os.listdir("/proc") if pid.isdigit() and is_child(pid)],
    }

def is_child(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == str(os.getpid())
    except OSError:
        return False

def changes(before, after):
    return {name: [str(before[name]), str(after[name])] for name in before if before[name] != after[name]}

LOGGERS = set(logging.root.manager.loggerDict)
"""

PROGRAM = """
if __name__ == "__main__":
    torch.set_num_threads(3)
    random.seed(5)
    before = snapshot()
    end = run()
    gc.collect()
    print(json.dumps([end, changes(before, snapshot())]))
"""

EVALUATION = """
from pbgeval import evaluate, load_config
from pbgeval.errors import EvalError

def run():
    return [end_of(config) for config in sys.argv[2:]]

def end_of(config):
    try:
        evaluate(load_config(config), output="output", workers=int(sys.argv[1]), device="cpu")
        return "complete"
    except EvalError as error:
        return "fault"
"""

IN_MEMORY = """
from pbgeval import Edges, EvalConfig, edge_scorer, evaluate

def run():
    vectors = torch.arange(27.0).view(9, 3).sin()
    scorer = edge_scorer(lambda lhs, rel, rhs: (vectors[lhs] * vectors[rhs]).sum(-1), num_entities=9, num_relations=1)
    edges = Edges(torch.tensor([[0, 0, 1], [2, 0, 3], [4, 0, 8]]))
    evaluate(EvalConfig(candidates="all"), device="cpu", model=scorer, edges=edges)
    return "complete"
"""

MONITOR = """
import pbgeval.monitor.monitor
from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.notation import Bucket

def run():
    schema = ModelSchema([MonitoredRelation("links", "e", "e", "none")], {"e": 1}, "dot")
    keys = {"eval_num_batch_negs": 5, "eval_num_uniform_negs": 5}
    monitor = Monitor(schema, "monitor", eval_fraction=0.5, **keys)
    model = ModelTensors({("e", 0): torch.arange(60.0).view(20, 3).sin()}, {})
    edges = torch.tensor([[lhs, 0, rhs] for lhs in range(10) for rhs in range(10, 20)])
    monitor.split(edges, Bucket(0, 0))
    with monitor.watch(0, Bucket(0, 0), model):
        pass
    return "complete"
"""


def ended_and_changed(tmp_path: Path, work: str, *arguments: str) -> str:
    """Run a program that compares its process before and after; return what it prints."""
    program = tmp_path / "program.py"
    program.write_text(SNAPSHOT + work + PROGRAM, encoding="utf-8")
    return start([sys.executable, program, *arguments], tmp_path).printed


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_evaluation_leaves_its_callers_process_as_it_was(tmp_path: Path, workers: str) -> None:
    case, spoiled = (TinyCase.write(tmp_path / name, dynamic=True) for name in ("case", "spoiled"))
    spoiled.spoil_embeddings("user", 1, row=3, value=float("nan"))

    printed = ended_and_changed(tmp_path, EVALUATION, workers, str(case.config), str(spoiled.config))

    assert printed == '[["complete", "fault"], {}]\n'


@pytest.mark.slow
@pytest.mark.parametrize("work", [IN_MEMORY, MONITOR], ids=["in memory", "monitor"])
def test_what_works_in_the_process_itself_leaves_it_as_it_was(tmp_path: Path, work: str) -> None:
    assert ended_and_changed(tmp_path, work) == '["complete", {}]\n'
