"""Measure what the tests notice: draw mutants of the package, run the tests that reach each one, count the killed.

    python -m scripts.mutation_score --map map.json                 record which tests reach which function, once
    python -m scripts.mutation_score --map map.json --count 300     draw mutants by --seed, and try them

The checkout is copied to a temporary folder, where mutants are written one at a time. A mutant is killed by a test that
fails or takes too long. First come the unmarked tests that reach it, then those marked slow, which run before each
change lands: what only they notice is counted apart. Times are CPU times, so that a busy machine changes nothing.
Survivors are listed: each is equivalent to the original, or shows a test that is missing.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import json
import math
import os
import py_compile
import random
import re
import signal
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

from pbgeval.jit import CompiledLoop

ROOMS = ("ranking", "scoring", "stats", "metrics", "worker", "inputs/edge_sample")  # or single modules
TESTS = ("tests/unit", "tests/laws", "tests/golden", "tests/contracts/test_backends.py")
MARKS = "not peers and not slurm and not netns and not browser and not gpu"
KINDS = ("comparison", "boundary", "arithmetic", "constant", "return")
SHORTEST = 25  # tests of a mutant that run first
USAGE_ERROR, NO_TESTS = 4, 5  # exit statuses of pytest
TOO_LONG = -9  # that of a process that is ended
START_SECONDS = 60.0  # that a pytest process may compute beside its tests
RECORDING_SECONDS = 2 * 3600.0
WAITING = 10  # times as long as it may compute, it may also wait, for others who use the machine

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

    What stands outside functions is left out, where constants only bound blocks, and so are annotations, assertions
    (that of `zip` too, `strict`), messages of errors and default values.
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
    if isinstance(node, (ast.Assert, ast.Raise)) or (isinstance(node, ast.keyword) and node.arg == "strict"):
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
    """Notes the functions of the package that each passed test calls, its CPU time, and whether it is marked slow."""

    def __init__(self, tree: Path, output: Path) -> None:
        self.tree, self.output = tree, output
        self.package = f"{tree / 'pbgeval'}{os.sep}"
        self.calls: set[tuple[str, int]] = set()
        self.tests: dict[str, tuple[float, bool, list[str]]] = {}
        self.began = 0.0

    def trace(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; its lines are not looked at. A compiled loop has no frame: `CompiledLoop`, its caller, has."""
        code = frame.f_code
        if code.co_filename.startswith(self.package):
            self.calls.add((code.co_filename, code.co_firstlineno))
            caller = frame.f_locals.get("self") if code.co_name == "__call__" else None
            if isinstance(caller, CompiledLoop):
                loop = caller.loop.__code__
                self.calls.add((loop.co_filename, loop.co_firstlineno))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a test, with its fixtures."""
        self.calls.clear()
        self.began = cpu_seconds()
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a part of a test."""
        if report.when == "call" and report.passed:
            named = sorted(f"{os.path.relpath(path, self.tree)}:{line}" for path, line in self.calls)
            self.tests[report.nodeid] = round(cpu_seconds() - self.began, 3), "slow" in report.keywords, named
        self.began = cpu_seconds()

    def pytest_sessionfinish(self) -> None:
        """Write the map."""
        sys.settrace(None)
        self.output.write_text(json.dumps(self.tests), encoding="utf-8")


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def pytest_configure(config: pytest.Config) -> None:
    """Record, in the process that `record` has started."""
    config.pluginmanager.register(Recorder(Path.cwd(), Path(os.environ["PBGEVAL_MUTATION_MAP"])))


def record(tree: Path, tests: Sequence[str], output: Path) -> int:
    """Run the tests of a tree once, and write which functions each of them calls; return pytest's status."""
    plugin = ["-p", "scripts.mutation_score", "-m", MARKS]
    return _pytest(tree, [*plugin, *tests], RECORDING_SECONDS, {"PBGEVAL_MUTATION_MAP": str(output)})[0]


@frozen
class Reached:
    """Which tests reach which function."""

    seconds: dict[str, float]  # of CPU time, by test
    slow: set[str]  # tests that are marked so
    by_function: dict[str, list[str]]  # the shortest first, those marked slow at the end

    @classmethod
    def read(cls, path: Path) -> Reached:
        """Read a map."""
        by_function = defaultdict(list)
        tests = sorted(json.loads(path.read_text(encoding="utf-8")).items(), key=lambda of: (of[1][1], of[1][0]))
        for name, (_, _, functions) in tests:
            for function in functions:
                by_function[function].append(name)
        seconds = {name: float(seconds) for name, (seconds, _, _) in tests}
        return cls(seconds, {name for name, (_, is_slow, _) in tests if is_slow}, dict(by_function))

    def tests_of(self, mutant: Mutant, callers: dict[Function, set[Function]]) -> list[str]:
        """Return the tests that reach a mutant, the shortest first, those marked slow at the end.

        Of what is called by no frame of Python, as inner loops, the tests of the functions that mention it count.
        """
        for path, line in mutant.functions:
            if found := self.by_function.get(f"{path}:{line}"):
                return found
        waiting, seen, names = {mutant.functions[-1]}, set[Function](), set[str]()
        while waiting and not names:
            seen |= waiting
            waiting = set().union(*(callers.get(of, set()) for of in waiting)) - seen
            names = {name for path, line in waiting for name in self.by_function.get(f"{path}:{line}", ())}
        return sorted(names, key=lambda name: (name in self.slow, self.seconds[name]))


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
    """Copy the files of a checkout that git lists, or all of a folder that is none, and compile them.

    Tests start many processes. Bytecode is told by the hash of its source: a mutant may be as long, and as old.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else []
    names = names or [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()]
    for name in names:
        if (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((tree / name).read_bytes())
            (folder / name).chmod((tree / name).stat().st_mode)
    compileall.compile_dir(folder, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return folder


def _pytest(tree: Path, arguments: Sequence[str], limit: float, more: dict[str, str] | None = None) -> tuple[int, str]:
    """Run tests of a tree in a process that may compute so many seconds; return its status and what it prints.

    They run as in CI: random examples are the same each time, and those that an earlier mutant failed are not tried.
    """
    here = Path(__file__).resolve().parents[1]
    environment = {
        **{"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "CI": "true"},
        **os.environ,
        "PBGEVAL_REFERENCE": str((here / os.environ.get("PBGEVAL_REFERENCE", "../shared")).resolve()),
        **{"PYTHONPATH": f"{tree}{os.pathsep}{here}", "PYTHONDONTWRITEBYTECODE": "1"},
        **(more or {}),
    }
    command = ["prlimit", f"--cpu={math.ceil(limit)}", sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile", "quick", "-q", "--no-header", *arguments]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(WAITING * limit)
        except subprocess.TimeoutExpired:
            status = TOO_LONG
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        printed.seek(0)
        return status, printed.read()


def killer_of(tree: Path, mutant: Mutant, reached: Reached, tests: Sequence[str], limit: float) -> str:
    """Return which test fails with a mutant, or what else ends the tests that reach it; "" where they pass.

    The shortest come first, then as many as `limit` seconds allow, then those marked slow, in as many seconds again.
    """
    path = tree / mutant.path
    whole = path.read_bytes()
    path.write_bytes(whole[: mutant.start] + mutant.after.encode() + whole[mutant.stop :])
    unmarked = [name for name in tests if name not in reached.slow]
    slow = [name for name in tests if name in reached.slow]
    try:
        for part in (
            unmarked[:SHORTEST],
            _within(unmarked[SHORTEST:], reached, limit),
            _within(slow, reached, limit),
        ):
            seconds = START_SECONDS + 10 * sum(reached.seconds[name] for name in part)
            status, printed = _pytest(tree, ["-x", "--tb=no", *part], seconds) if part else (0, "")
            if status == USAGE_ERROR:  # a module that cannot be imported; or a name of the map that is no test's
                path.write_bytes(whole)
                assert _pytest(tree, ["--collect-only", *part], seconds)[0] == 0, "the map is of other tests"
            if status not in (0, NO_TESTS):
                failed = re.search("^(?:FAILED|ERROR) (.*?)(?: - |$)", printed, re.MULTILINE)
                return failed[1] if failed else f"pytest's status {status}"
        return ""
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
            if place < len(of_file) and seconds + reached.seconds[of_file[place]] <= limit:
                chosen.append(of_file[place])
                seconds += reached.seconds[of_file[place]]
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
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds of tests per mutant, and of those marked slow"
    )
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
        survivors, unreached, by_slow, began = [], 0, 0, time.monotonic()
        drawn = draw(tree, given.rooms, given.count, given.seed)
        for number, mutant in enumerate(drawn, 1):
            tests = reached.tests_of(mutant, callers)
            unreached += not tests
            killer = killer_of(tree, mutant, reached, tests, given.limit)
            by_slow += killer in reached.slow
            if not killer:
                survivors.append(mutant)
            word = f"killed by {killer}:" if killer else "survived" if tests else "not reached"
            print(f"{number}/{len(drawn)} {word} {mutant} ({len(tests)} tests)", flush=True)
    print("\n".join(["survivors:", *(f"  {mutant}" for mutant in survivors)]))
    num_killed = len(drawn) - len(survivors)
    share = num_killed / max(1, len(drawn))
    print(f"killed {num_killed} of {len(drawn)} ({share:.1%}), {by_slow} of them by tests marked slow alone, "
          f"{unreached} reached by no test, seed {given.seed}, {time.monotonic() - began:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
