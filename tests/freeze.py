"""Record what the program answers, or compare it with a record: a refactoring must leave every byte equal.

    .venv/bin/python -m tests.freeze record FILE.json                    # status 1 if a job fails
    .venv/bin/python -m tests.freeze compare FILE.json                   # status 1 and a line per difference
    .venv/bin/python -m tests.freeze compare FILE.json --only het --keep FOLDER   # keep the files of some jobs

A job is one command line, run in a fork of this process: golden checkpoints under every setting of PyTorch-BigGraph's
and of ours, the reference vectors, small graphs with each fast path alone, commands that read a result, `--help`,
public names, and bad input with its exit status and text. A record holds a digest of every file and output.

Sums of floats differ between kinds of processors, so compare records made on one machine. A record names its own.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["COLUMNS"] = "100"
os.environ["TERM"] = "dumb"

import h5py
import numpy as np
import pytest
import torch

import pbgeval
from pbgeval.scoring.comparators import COMPARATORS
from tests import fast_paths
from tests.golden.test_full_nations import MODELS, SETTINGS, Nations
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, flags, last_of_each, run_main
from tests.kit.faults import Fault, make, world_of
from tests.surface import test_bad_input, test_bad_input_of_commands

CHECKOUT = Path(__file__).resolve().parents[1]
REFERENCE = Path(os.environ.get("PBGEVAL_REFERENCE", CHECKOUT.parent / "shared"))
MAY_DIFFER = {"units.jsonl", "run.json", "report.html"}  # times and paths of a run; pages are looked at, not compared
Answer = dict[str, Any]
Job = Callable[[Path], Answer]  # works in a new folder, which is the current one
ROWS = (*test_bad_input.ROWS, *test_bad_input_of_commands.ROWS)

# Jobs


def all_jobs() -> dict[str, Job]:
    """Return every job by name."""
    return {
        "names": _names,
        **{f"help: {' '.join(words)}": _command(*words) for words in HELP},
        **_on_reference_data(),
        **_on_small_graphs(),
        **{f"result: {name}": _on_result(arguments) for name, arguments in READING.items()},
        **{f"bad: {at}: {row.lines[0][:60]}": _on_spoiled(row) for at, row in enumerate(ROWS)},
    }


def _on_reference_data() -> dict[str, Job]:
    cases = sorted(path.name for path in (REFERENCE / "golden").glob("fb237*"))
    golden = {f"golden: {case}: {name}": _on_golden(case, *of) for case in cases for name, of in _golden(case)}
    layouts = itertools.product(MODELS, SETTINGS, ((1, True), (3, False)))
    vectors = {f"vectors: {model}: {of}: {layout[0]}": _on_vectors(model, of, *layout) for model, of, layout in layouts}
    return golden | vectors


def _on_small_graphs() -> dict[str, Job]:
    tiny = {
        f"tiny: {name}{': dynamic' if dynamic else ''}": _on_tiny(settings, dynamic)
        for name, settings in TINY.items()
        for dynamic in (False, True)
    }
    return tiny | {
        f"path: {path}: {name}": _on_tiny(settings, dynamic=True, path=path, size=40)
        for path in (*fast_paths.OF_A_CPU, "none")
        for name, settings in PATH_SETTINGS.items()
    }


HELP = [
    ("--help",),
    ("--help-config",),
    *(
        (name, "--help")
        for name in (
            "run",
            "submit",
            "publish",
            "verify",
            "topk",
            "import-graph",
            "import-model",
            "inspect",
            "metrics",
            "types",
            "monitor",
            "report",
            "compare",
        )
    ),
    ("metrics",),
    ("metrics", "amri"),
]

OURS = {
    "all": ("candidates=all", "metrics=rank,auc,average_precision,classification"),
    "all, all breakdowns": (
        "candidates=all",
        "breakdowns=relation,entity_types,cardinality,relation_frequency,entity_frequency",
        "train_paths=edges_valid",
    ),
    "all, filtered, files": ("candidates=all", "filter_paths=edges_valid", "save_ranks=True", "save_topk=5"),
    "all, exact": ("candidates=all", "filter_paths=edges_valid", "precision=exact", "metrics=rank"),
    "all, float64": ("candidates=all", "precision=float64"),
    "all, observed": ("candidates=all", "filter_paths=edges_valid", "type_constraint=observed"),
    "all, a sample of edges": ("candidates=all", "sample_edges=500", "seed=3"),
    "all, a target": ("candidates=all", "target_error=0.02"),
    "partition": ("candidates=partition", "filter_paths=edges_valid", "save_ranks=True"),
    "partition, exact": ("candidates=partition", "precision=exact", "metrics=rank"),
    "sampled": ("candidates=sampled", "num_batch_negs=50", "num_uniform_negs=50", "save_ranks=True"),
    "sampled, filtered": (
        "candidates=sampled",
        "num_batch_negs=20",
        "num_uniform_negs=30",
        "filter_paths=edges_valid",
        "breakdowns=relation,entity_types",
    ),
    "sampled, a sample of edges": (
        "candidates=sampled",
        "num_batch_negs=20",
        "num_uniform_negs=30",
        "sample_edges=800",
    ),
}


def _golden(case: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    settings = json.loads((REFERENCE / "golden" / case / "expected.json").read_text())["settings"]
    for name, setting in settings.items():
        overrides = [*setting["params"], "pbg_semantics=True", f"compute_loss={not name.endswith('filtered')}"]
        yield name, (setting["config"], *_overrides(*overrides))
    for name, overrides in OURS.items():
        yield name, ("eval_allnegs.py", *_overrides(*overrides))


TINY: Mapping[str, tuple[str, ...]] = {
    **{
        f"{candidates}: {comparator}": (f"candidates={candidates}", f"comparator={comparator}", "save_ranks=True")
        for candidates in ("sampled", "partition", "all")
        for comparator in COMPARATORS
    },
    "unset": (),
    "loss": ("compute_loss=True", "metrics=rank"),
    "classification": ("candidates=all", "metrics=rank,auc,average_precision,classification", "hits_at=1,2,7"),
    "pessimistic": ("rank_type=pessimistic", "candidates=all"),
    "one side": ("disable_lhs_negs=True", "candidates=sampled"),
    "top k": ("candidates=all", "save_topk=7", "filter_paths=edges"),
    **{
        f"protocols: {candidates}": (
            f"candidates={candidates}",
            "filter_paths=edges",
            "train_paths=edges",
            "relation_prediction=True",
            "breakdowns=relation,popularity,time",
            "time_bin=2",
            "time_window=1",
            "topk_metrics=True",
            *(["save_topk=3"] if candidates == "all" else []),
        )
        for candidates in ("partition", "all")
    },
    "by degree": ("num_degree_negs=4", "train_paths=edges", "breakdowns=time", "time_bin=2"),
    "the past alone": ("train_paths=edges", "known_until=query", "breakdowns=time", "time_bin=2"),
}
PATH_SETTINGS = {
    "all": ("candidates=all", "filter_paths=edges", "comparator=dot"),
    "all l1": ("candidates=all", "comparator=l1"),
    "all exact": ("candidates=all", "precision=exact", "metrics=rank", "comparator=cos"),
    "partition": ("candidates=partition", "comparator=dot"),
    "partition l2": ("candidates=partition", "comparator=l2", "filter_paths=edges"),
    "sampled": ("candidates=sampled", "comparator=dot"),
    "sampled filtered": ("candidates=sampled", "filter_paths=edges"),
}
READING = {
    "compare": ("compare", "result", "other"),
    "compare by edge": ("compare", "result", "other", "--clusters", "edge"),
    "report md": ("report", "result", "--format", "md"),
    "report latex": ("report", "result", "--format", "latex"),
    "inspect": ("inspect", "checkpoint", "edges", "entity"),
    "finished": ("--config", "eval.py", "--output", "result", "-p", "save_ranks=True", "--quiet"),
}

# Running a job


def _overrides(*overrides: str) -> tuple[str, ...]:
    return tuple(flags(overrides))


def _call(*arguments: str, cwd: Path | None = None) -> Answer:
    """Return what a command says, without paths and sizes of this process."""
    done = run_main(*arguments, cwd=cwd or Path.cwd())
    return {"status": done.status, "out": _plain(done.out), "err": _plain(done.err)}


def _plain(text: str) -> str:
    """Leave out what differs from run to run: paths, addresses, memory and speed."""
    for path, name in ((Path.cwd(), "<folder>"), (REFERENCE, "<reference>"), (CHECKOUT, "<checkout>")):
        text = text.replace(str(path), name)
    return re.sub(r"\d+ ?MB|0x[0-9a-f]+|in [\d.]+ s, [\d,]+ edges/s", "<varies>", text)


def _command(*arguments: str) -> Job:
    return lambda _: _call(*arguments)


def _evaluate(folder: Path, *arguments: str) -> Answer:
    output = folder / "output"
    answer = _call("--config", *arguments, "--output", str(output), "--workers", "1", "--quiet")
    return {"status": answer["status"], "err": answer["err"].replace(str(folder), "<folder>"), **_files(output)}


def _on_golden(case: str, config: str, *arguments: str) -> Job:
    def job(folder: Path) -> Answer:
        os.chdir(REFERENCE / "golden" / case)
        return _evaluate(folder, config, *arguments)

    return job


def _on_vectors(model: str, setting: str, parts: int, dynamic: bool) -> Job:
    def job(folder: Path) -> Answer:
        nations = Nations(REFERENCE / "vectors" / "full_nations", model, parts, dynamic)
        breakdowns = ["relation", "cardinality"] if setting == "filtered" else []
        config = nations.config(folder / "data", setting, breakdowns=breakdowns)
        pbgeval.evaluate(config, output=folder / "output", workers=1)
        return _files(folder / "output")

    return job


def _on_tiny(settings: tuple[str, ...], dynamic: bool, path: str | None = None, size: int = 17) -> Job:
    def job(folder: Path) -> Answer:
        case = TinyCase.write(folder, dynamic=dynamic, partition_sizes=(size, size - 1, size))
        if "time_bin=2" in settings:
            for edges in case.root.glob("edges/*.h5"):
                with h5py.File(edges, "r+") as file:
                    file["time"] = np.arange(len(file["rel"])) % 7
        with pytest.MonkeyPatch.context() as patch:
            if path is not None:
                fast_paths.switch(patch, *([] if path == "none" else [path]))
            return _evaluate(folder, case.config.name, *_overrides(*settings))

    return job


def _on_result(arguments: tuple[str, ...]) -> Job:
    def job(folder: Path) -> Answer:
        case = TinyCase.write(folder)
        for name, comparator in (("result", "dot"), ("other", "l2")):
            evaluated(case, "save_ranks=True", f"comparator={comparator}", output=name)
        return {**_call(*arguments), **_files(case.root / "other")}

    return job


def _on_spoiled(row: Fault) -> Job:
    world_of(row)  # made once, before the forks

    def job(folder: Path) -> Answer:
        root = make(row, folder / "case").root
        answer = _call(*last_of_each([*row.world.arguments, *row.arguments]), cwd=root)
        return {**answer, "left": sorted(str(path.relative_to(root)) for path in root.glob("output/**/*"))}

    return job


def _names(_: Path) -> Answer:
    found = {}
    for name in sorted(pbgeval.__all__):
        value = getattr(pbgeval, name)
        with contextlib.suppress(TypeError, ValueError):
            found[name] = str(inspect.signature(value))
        found.setdefault(name, type(value).__name__)
    return found


# What a run leaves


def _files(folder: Path) -> Answer:
    """Return a digest of every file of a result; of HDF5 the datasets."""
    found: Answer = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or path.name in MAY_DIFFER:
            continue
        if path.name == "metrics.json":
            document = json.loads(path.read_text())
            document["schema_version"] = 1  # of the record: a file's layout is no figure
            found[name] = _digest(json.dumps(document).encode())
        elif path.suffix == ".h5":
            found[name] = _digest_of_datasets(path)
        else:
            found[name] = _digest(path.read_bytes())
    return found


def _digest_of_datasets(path: Path) -> str:
    parts: list[bytes] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            parts.extend((name.encode(), str(item.dtype).encode(), item[()].tobytes()))

    with h5py.File(path) as file:
        file.visititems(visit)
        parts.extend(f"{key}={file.attrs[key]}".encode() for key in sorted(file.attrs))
    return _digest(b"\0".join(parts))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _in_a_fork(job: Job, folder: Path) -> Answer:
    """Run a job in a fork, so that no job sees what another has left in the process."""
    answer = folder.with_suffix(".json")
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            answer.write_text(json.dumps(job(folder), sort_keys=True))
        except BaseException:
            answer.write_text(json.dumps({"traceback": traceback.format_exc().splitlines()[-1]}))
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(pid, 0)
    return dict(json.loads(answer.read_text())) if answer.exists() else {"traceback": "no answer"}


def _shortened(answer: Answer) -> Answer:
    """Keep short texts, for a difference that can be read, and the digests of long ones."""
    return {
        key: _digest(value.encode()) if isinstance(value, str) and len(value) > 600 else value
        for key, value in answer.items()
    }


def _machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            return f"{name}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    return torch.backends.cpu.get_cpu_capability()


def run_jobs(only: str, keep: Path | None) -> dict[str, Answer]:
    """Run the jobs whose names hold a text."""
    jobs = {name: job for name, job in all_jobs().items() if only in name}
    answers = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, job) in enumerate(jobs.items()):
            folder = (keep or Path(scratch)).resolve() / f"{number:04}"
            folder.mkdir(parents=True)
            answers[name] = _shortened(_in_a_fork(job, folder))
            if keep is None:
                shutil.rmtree(folder, ignore_errors=True)
            if sys.stderr.isatty():
                print(f"\r{number + 1}/{len(jobs)} {name:70.70}", end="", file=sys.stderr, flush=True)
    return answers


def differences(expected: Mapping[str, Answer], found: Mapping[str, Answer], only: str) -> Iterator[str]:
    """Yield a line for each answer that is not the recorded one."""
    for name in sorted({*expected, *found}):
        if only not in name:
            continue
        if name not in found or name not in expected:
            yield f"{name}: only in {'the record' if name in expected else 'this checkout'}"
            continue
        before, after = expected[name], found[name]
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                yield f"{name}: {key}:\n    recorded {before.get(key)!r}\n    found    {after.get(key)!r}"


def freeze() -> int:
    """Record or compare, as the command line says."""
    parser = argparse.ArgumentParser(prog="tests.freeze")
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="only jobs whose names hold this text")
    parser.add_argument("--keep", type=Path, help="keep the files of the jobs here, in numbered folders")
    asked = parser.parse_args()
    import pbgeval.evaluation  # noqa: F401 - once, before the forks

    answers = run_jobs(asked.only, asked.keep)
    # Jobs that failed in the same way before and after would be equal.
    failed = [f"{name}: failed: {of['traceback']}" for name, of in answers.items() if "traceback" in of]
    if asked.what == "record":
        document = {"machine": _machine(), "jobs": answers}
        asked.file.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
        print("\n".join([*failed, f"{asked.file}: {len(answers)} jobs, {len(failed)} failed"]))
        return 1 if failed else 0
    document = json.loads(asked.file.read_text())
    if document["machine"] != _machine():
        print(f"recorded on {document['machine']}, this is {_machine()}: sums of floats may differ")
    lines = list(differences(document["jobs"], answers, asked.only))
    print("\n".join([*failed, *lines, f"{len(answers)} jobs, {len(failed)} failed, {len(lines)} differences"]))
    return 1 if failed or lines else 0


if __name__ == "__main__":
    sys.exit(freeze())
