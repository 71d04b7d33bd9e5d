"""Measure what the tests notice: draw mutants of the package, run the tests that reach each one, count the killed.

    python -m scripts.mutation_score --map map.json                 record which tests reach which function, once
    python -m scripts.mutation_score --map map.json --count 300     draw mutants by --seed, and try them

The checkout is copied to a temporary folder, where mutants are written one at a time. A mutant is killed by a test that
fails or takes too long. Survivors are listed: each is equivalent to the original, or shows a test that is missing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import pytest
from attrs import frozen

ROOMS = ("ranking", "scoring", "stats", "metrics", "worker", "inputs/edge_sample")  # or single modules
TESTS = ("tests/unit", "tests/laws", "tests/golden", "tests/contracts/test_backends.py")
UNMARKED = "not slow and not peers and not slurm and not netns and not browser and not gpu"
KINDS = ("comparison", "boundary", "arithmetic", "constant", "return")
SHORTEST = 25  # tests of a mutant that run first
USAGE_ERROR, NO_TESTS = 4, 5  # exit statuses of pytest
START_SECONDS = 60.0  # that a pytest process may take beside its tests

Function = tuple[str, int]  # a file's path in the tree, the line of `def` or of the first decorator

_NEGATED = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_SHIFTED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}


# Mutants


@frozen
class Mutant:
    """An expression of a module, or a `return`, and what takes its place."""

    path: str
    kind: str
    line: int
    start: int  # offsets in the file's bytes
    stop: int
    before: str
    after: str
    functions: tuple[Function, ...]  # those around it, the innermost first

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {_short(self.before)} -> {_short(self.after)}"


def _short(text: str) -> str:
    return " ".join(text.split())[:60]


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Yield all mutants of the functions of a module.

    What stands outside functions is left out, where constants only bound blocks, and so are annotations, assertions,
    messages of errors and default values.
    """
    source = text.encode()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, functions in _nodes(ast.parse(text), path, ()):
        for kind, after in changes_of(node):
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            yield Mutant(path, kind, node.lineno, start, stop, source[start:stop].decode(), after, functions)


def _nodes(
    node: ast.AST, path: str, functions: tuple[Function, ...]
) -> Iterator[tuple[ast.expr | ast.Return, tuple[Function, ...]]]:
    """Yield what may be changed, with the functions around it."""
    if isinstance(node, (ast.Assert, ast.Raise)):
        return
    fields = ast.iter_fields(node)
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        functions, fields = ((path, first_line(node)), *functions), iter([("body", node.body)])
    elif functions and isinstance(node, (ast.expr, ast.Return)):
        yield node, functions
    for name, value in fields:
        inside = value if isinstance(value, list) else [value]
        for inner in inside if name not in ("annotation", "decorator_list") else ():
            if isinstance(inner, ast.AST):
                yield from _nodes(inner, path, functions)


def first_line(function: ast.FunctionDef | ast.Lambda) -> int:
    """Return the line that a function's code object names: that of its first decorator, if it has one."""
    decorators = function.decorator_list if isinstance(function, ast.FunctionDef) else []
    return min([function.lineno, *(of.lineno for of in decorators)])


def changes_of(node: ast.expr | ast.Return) -> Iterator[tuple[str, str]]:
    """Yield (kind, new text) for each change of one node."""
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            for kind, table in (("comparison", _NEGATED), ("boundary", _SHIFTED)):
                if type(operator) in table:
                    changed = copy.deepcopy(node)
                    changed.ops[at] = table[type(operator)]()
                    yield kind, f"({ast.unparse(changed)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in _OTHER and not _is_text(node):
        yield "arithmetic", f"({ast.unparse(ast.BinOp(node.left, _OTHER[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", str(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return", "return None"


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(of, ast.JoinedStr) or (isinstance(of, ast.Constant) and isinstance(of.value, str))
        for of in (node.left, node.right)
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def draw(tree: Path, rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutants of the modules of some rooms: first the kind, then one of that kind, none twice."""
    paths = [path for room in rooms for path in sorted((tree / "pbgeval").glob(f"{room}/**/*.py"))]
    paths += [path for room in rooms for path in (tree / "pbgeval").glob(f"{room}.py")]
    by_kind = defaultdict(list)
    for path in paths:
        for mutant in mutants_of(path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8")):
            by_kind[mutant.kind].append(mutant)
    source = random.Random(seed)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(by_kind.values()):
        of_kind = by_kind[source.choice([kind for kind in KINDS if by_kind[kind]])]
        drawn.append(of_kind.pop(source.randrange(len(of_kind))))
    return drawn


# Which tests reach a function: this module is a plugin of pytest too


class Recorder:
    """Notes the functions of the package that each passed test calls, and how long the test takes."""

    def __init__(self, tree: Path, output: Path) -> None:
        self.tree, self.output = tree, output
        self.package = f"{tree / 'pbgeval'}{os.sep}"
        self.calls: set[tuple[str, int]] = set()
        self.tests: dict[str, tuple[float, list[str]]] = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; its lines are not looked at."""
        code = frame.f_code
        if code.co_filename.startswith(self.package):
            self.calls.add((code.co_filename, code.co_firstlineno))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a test, with its fixtures."""
        self.calls.clear()
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a test."""
        if report.when == "call" and report.passed:
            named = sorted(f"{os.path.relpath(path, self.tree)}:{line}" for path, line in self.calls)
            self.tests[report.nodeid] = round(report.duration, 3), named

    def pytest_sessionfinish(self) -> None:
        """Write the map."""
        sys.settrace(None)
        self.output.write_text(json.dumps(self.tests), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record, in the process that `record` has started."""
    config.pluginmanager.register(Recorder(Path.cwd(), Path(os.environ["PBGEVAL_MUTATION_MAP"])))


def record(tree: Path, tests: Sequence[str], output: Path) -> int:
    """Run the tests of a tree once, and write which functions each of them calls; return pytest's status."""
    plugin = ["-p", "scripts.mutation_score", "-m", UNMARKED, "-q", "--no-header"]
    return _pytest(tree, [*plugin, *tests], None, {"PBGEVAL_MUTATION_MAP": str(output)})


@frozen
class Reached:
    """Which tests reach which function."""

    tests: dict[str, tuple[float, list[str]]]  # by name: seconds, functions
    by_function: dict[str, list[str]]  # the shortest first

    @classmethod
    def read(cls, path: Path) -> Reached:
        """Read a map."""
        tests = {name: (float(seconds), of) for name, (seconds, of) in json.loads(path.read_text()).items()}
        by_function = defaultdict(list)
        for name in sorted(tests, key=lambda of: tests[of][0]):
            for function in tests[name][1]:
                by_function[function].append(name)
        return cls(tests, dict(by_function))

    def tests_of(self, mutant: Mutant, callers: dict[Function, set[Function]]) -> list[str]:
        """Return the tests that reach a mutant, the shortest first.

        What is compiled is called by no frame of Python: then the tests of the functions that mention it count.
        """
        for path, line in mutant.functions:
            if found := self.by_function.get(f"{path}:{line}"):
                return found
        waiting, seen, names = {mutant.functions[-1]}, set[Function](), set[str]()
        while waiting and not names:
            seen |= waiting
            waiting = set().union(*(callers.get(of, set()) for of in waiting)) - seen
            names = {name for path, line in waiting for name in self.by_function.get(f"{path}:{line}", ())}
        return sorted(names, key=lambda name: self.tests[name][0])


def callers_in(tree: Path) -> dict[Function, set[Function]]:
    """Return for each function of the package those that mention its name: in its own file, if some do.

    Elsewhere the same name is mostly another function's, and a compiled loop's inner functions lie in its file.
    """
    named, mentioned = defaultdict(set), defaultdict(set)
    for path in (tree / "pbgeval").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                function = path.relative_to(tree).as_posix(), first_line(node)
                named[node.name].add(function)
                for inner in ast.walk(node):
                    if isinstance(inner, (ast.Name, ast.Attribute)):
                        mentioned[inner.id if isinstance(inner, ast.Name) else inner.attr].add(function)
    found = {}
    for name, functions in named.items():
        for function in functions:
            beside = {other for other in mentioned[name] if other[0] == function[0] and other != function}
            found[function] = beside or mentioned[name]
    return found


# Trying


def copy_of(tree: Path, folder: Path) -> Path:
    """Copy the files of a checkout that git lists, or all of a folder that is none."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else []
    names = names or [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()]
    for name in names:
        if (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((tree / name).read_bytes())
            (folder / name).chmod((tree / name).stat().st_mode)
    return folder


def _pytest(tree: Path, arguments: Sequence[str], timeout: float | None, more: dict[str, str] | None = None) -> int:
    """Run tests of a tree in a process; return its status, 1 where it takes too long."""
    here = str(Path(__file__).resolve().parents[1])
    environment = {
        **{"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
        **os.environ,
        **{"PYTHONPATH": f"{tree}{os.pathsep}{here}", "PYTHONDONTWRITEBYTECODE": "1"},
        **(more or {}),
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--hypothesis-profile", "quick", *arguments]
    process = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return 1
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()


def is_killed(tree: Path, mutant: Mutant, reached: Reached, tests: Sequence[str], limit: float) -> bool:
    """Run the tests that reach a mutant, first the shortest, then as many as `limit` seconds allow."""
    path = tree / mutant.path
    whole = path.read_bytes()
    path.write_bytes(whole[: mutant.start] + mutant.after.encode() + whole[mutant.stop :])
    try:
        for part in (list(tests[:SHORTEST]), _within(tests[SHORTEST:], reached, limit)):
            seconds = sum(reached.tests[name][0] for name in part)
            status = _pytest(tree, ["-x", "-q", *part], START_SECONDS + 10 * seconds) if part else 0
            if status == USAGE_ERROR:  # a module that cannot be imported; or a name of the map that is no test's
                path.write_bytes(whole)
                assert _pytest(tree, ["--collect-only", "-q", *part], None) == 0, "the map is of other tests"
            if status not in (0, NO_TESTS):
                return True
        return False
    finally:
        path.write_bytes(whole)


def _within(tests: Sequence[str], reached: Reached, limit: float) -> list[str]:
    """Return tests of one file after the other, so many that they take `limit` seconds at the most."""
    files = defaultdict(list)
    for name in tests:
        files[name.partition("::")[0]].append(name)
    chosen, seconds = [], 0.0
    for place in range(max(map(len, files.values()), default=0)):
        for of_file in files.values():
            if place < len(of_file) and seconds + reached.tests[of_file[place]][0] <= limit:
                chosen.append(of_file[place])
                seconds += reached.tests[of_file[place]][0]
    return chosen


def arguments_of() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="the checkout (default: the current folder)")
    parser.add_argument("--map", type=Path, required=True, help="which tests reach what; recorded where it is missing")
    parser.add_argument("--count", type=int, default=300, help="number of mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawing (default: 0)")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help=f"packages to change (default: {' '.join(ROOMS)})")
    parser.add_argument("--tests", nargs="+", default=TESTS, help=f"tests to record (default: {' '.join(TESTS)})")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of tests per mutant (default: 120)")
    return parser.parse_args()


def main() -> None:
    """Record a map if need be, try the mutants, and print a line for each and the score."""
    given = arguments_of()
    with tempfile.TemporaryDirectory(prefix="pbgeval-mutants-") as folder:
        tree = copy_of(given.tree.resolve(), Path(folder))
        if not given.map.exists():
            status = record(tree, given.tests, given.map.resolve())
            print(f"recorded {given.map}, pytest's status {status}", flush=True)
        reached, callers = Reached.read(given.map), callers_in(tree)
        survivors, unreached, began = [], 0, time.monotonic()
        drawn = draw(tree, given.rooms, given.count, given.seed)
        for number, mutant in enumerate(drawn, 1):
            tests = reached.tests_of(mutant, callers)
            unreached += not tests
            if tests and is_killed(tree, mutant, reached, tests, given.limit):
                word = "killed"
            else:
                word = "survived" if tests else "not reached"
                survivors.append(mutant)
            print(f"{number}/{len(drawn)} {word} {mutant} ({len(tests)} tests)", flush=True)
    print("\n".join(["survivors:", *(f"  {mutant}" for mutant in survivors)]))
    num_killed = len(drawn) - len(survivors)
    share = num_killed / max(1, len(drawn))
    print(f"killed {num_killed} of {len(drawn)} ({share:.1%}), {unreached} reached by no test, seed {given.seed}, "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
