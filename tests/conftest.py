"""What all tests share: reference data, peers, seeds, and the rule that CI does not skip what it could run."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import os
import random
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings

from tests.examples import ALL, FIFTH, QUICK

REPOSITORY = Path(__file__).resolve().parent.parent
REFERENCE = os.environ.get("PBGEVAL_REFERENCE", "../shared")  # relative to the repository
# Without a GPU, Triton interprets its kernels; it decides when it is imported, and so must we.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

settings.register_profile("local", deadline=None, max_examples=ALL)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "local")
# The profiles of scripts/test, with and without --all.
settings.register_profile("fifth", settings(), max_examples=FIFTH)
settings.register_profile("quick", settings(), max_examples=QUICK)

Counts = dict[str, int]
REFERENCE_COUNTS = pytest.StashKey[Counts]()


def reference_folder() -> Path:
    return (REPOSITORY / REFERENCE).resolve()


def has_root_and_apt() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def could_have(*programs: str) -> bool:
    """Whether we may start these programs of root's: they are here, or scripts/test could have installed them."""
    return has_root_and_apt() or (os.geteuid() == 0 and all(map(shutil.which, programs)))


@functools.cache
def may_make_network_namespaces() -> bool:
    """Whether the system lets us; containers often may not, even as root."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "--net", "true"], capture_output=True).returncode == 0


@functools.cache
def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@functools.cache
def has_working_pip() -> bool:
    """Whether pip finds a peer, without installing it."""
    ask = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "torchbiggraph==1.0.0"]
    return subprocess.run(ask, capture_output=True, check=False).returncode == 0


# Marker -> whether its tests can run on this machine. With CI=true they may then not be skipped.
COULD_RUN: dict[str, Callable[[], bool]] = {
    "reference": lambda: reference_folder().is_dir(),
    "slow": lambda: True,
    "peers": has_working_pip,
    "slurm": lambda: could_have("slurmctld", "slurmd", "munged"),
    "netns": lambda: could_have("ip") and may_make_network_namespaces(),
    "browser": lambda: shutil.which("chromium") is not None or has_root_and_apt(),
    "gpu": has_gpu,
}

CANNOT_RUN = {
    "slurm": "neither Slurm and munge nor root with apt-get",
    "netns": "no right to make network namespaces",
    "browser": "neither chromium nor root with apt-get",
    "gpu": "no CUDA device",
}

pytest_plugins = ["tests.browsers", "tests.clusters", "tests.installed_wheel"]


@pytest.fixture
def reference_path(request: pytest.FixtureRequest) -> Path:
    """The folder of reference data; skips where there is none. Tests that use it are marked `reference`."""
    assert request.node.get_closest_marker("reference"), "a test that uses reference_path is marked reference"
    folder = reference_folder()
    if not folder.is_dir():
        pytest.skip(f"no reference data: PBGEVAL_REFERENCE ({REFERENCE}) is not a folder")
    return folder


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all its test processes have."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextlib.contextmanager
def one_process_at_a_time(path: Path) -> Iterator[None]:
    """Wait until no other process is in here with the same path, which becomes an empty file."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder in the shared one, which the first test process that asks for it makes."""
    with one_process_at_a_time(folder.with_name(f"{folder.name}.lock")):
        if not folder.with_name(f"{folder.name}.made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            folder.with_name(f"{folder.name}.made").touch()
    return folder


@pytest.fixture(scope="session", autouse=True)
def loops_compiled_by_one_process(shared_folder: Path) -> Iterator[None]:
    """Test processes wait for the one that compiles a loop, and load what it has kept."""
    from pbgeval.jit import CompiledLoop

    prepare = CompiledLoop._compile

    def prepare_to_wait(loop: CompiledLoop) -> Any:
        found = prepare(loop)
        compile_for = found.compile

        def compile_alone(types: Any) -> Any:
            with one_process_at_a_time(shared_folder / f"{loop.loop.__name__}.lock"):
                return compile_for(types)

        found.compile = compile_alone
        return found

    with mock.patch.object(CompiledLoop, "_compile", prepare_to_wait):
        yield


@pytest.fixture(scope="session")
def peer(shared_folder: Path) -> Callable[[str], Path]:
    """Installs a peer by scripts/peers and returns its bin folder. Tests that use it are marked `peers`."""

    def install(name: str) -> Path:
        with one_process_at_a_time(shared_folder / f"{name}.lock"):
            done = subprocess.run([REPOSITORY / "scripts" / "peers", name], capture_output=True, text=True, check=False)
        if done.returncode != 0 and not has_working_pip():
            pytest.skip(f"cannot install {name}: pip reaches no package index")
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.splitlines()[-1])

    return install


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of the test's own, the same in every run."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Runs in this process do not wait until their files are on the disk: no test stops the machine.

    A run waits some thirty times, for milliseconds where the disk is idle. What is no open file is still refused.
    """
    with mock.patch("os.fsync", os.fstat):
        yield


@pytest.fixture(scope="session", autouse=True)
def templates_compiled_once() -> Iterator[None]:
    """Pages of this process share what jinja2 makes of their templates, two thirds of the time of a page."""
    import jinja2

    compile_template = jinja2.Environment.compile
    kept: dict[tuple[object, ...], Any] = {}

    def compile_once(environment: jinja2.Environment, *source: Any, **more: Any) -> Any:
        key = (*source, *more.items())
        if key not in kept:
            kept[key] = compile_template(environment, *source, **more)
        return kept[key]

    with mock.patch.object(jinja2.Environment, "compile", compile_once):
        yield


@pytest.fixture(autouse=True)
def fixed_state() -> None:
    """Every test starts with one thread and fixed global generators, whatever the test before it did."""
    random.seed(0)
    if "torch" in sys.modules:  # not imported here: tests of the start-up time and of messages do not need it
        torch = sys.modules["torch"]
        torch.default_generator.manual_seed(
            0
        )  # torch.manual_seed looks for devices of all kinds, for as long as a test
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, missing in CANNOT_RUN.items():
        if item.get_closest_marker(name) and not COULD_RUN[name]():
            pytest.skip(f"{missing} here")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Notes the test's markers on the report; in CI, turns a skip of what could run here into a failure."""
    report = yield
    report.own_markers = [name for name in COULD_RUN if item.get_closest_marker(name)]
    report.was_skipped = report.skipped
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        forbidden = [name for name in report.own_markers if COULD_RUN[name]()]
        if forbidden:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            report.outcome = "failed"
            report.longrepr = f"CI=true: a test marked {', '.join(forbidden)} can run here and was skipped: {reason}"
    return report


@pytest.hookimpl(tryfirst=True)  # before -m looks at markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all but the first case of a test `one_case` as slow, and puts first what waits more than it computes."""
    seen = set()
    for item in items:
        if item.get_closest_marker("one_case") and not item.get_closest_marker("slow"):
            name = item.nodeid.partition("[")[0]
            if name in seen:
                item.add_marker("slow")
            seen.add(name)
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in ("slurm", "netns")))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REFERENCE_COUNTS] = {"ran": 0, "skipped": 0}
    config.pluginmanager.register(ReferenceCounter(config.stash[REFERENCE_COUNTS]))


class ReferenceCounter:
    """Counts reference tests from their reports, so that it sees those of other test processes too."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "reference" in getattr(report, "own_markers", []):
            self.counts["skipped"] += report.was_skipped
            self.counts["ran"] += report.when == "call" and not report.was_skipped


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash[REFERENCE_COUNTS]
    where = REFERENCE if reference_folder().is_dir() else f"{REFERENCE}, absent"
    terminalreporter.write_line(
        f"reference tests: {counts['ran']} ran, {counts['skipped']} skipped (reference data: {where})"
    )


@pytest.fixture(scope="module", params=["general", "compiled"])
def counting_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Counts on the general path alone, then on the compiled one for blocks of any size."""
    from tests.kit.loops import loops_used

    with loops_used(request.param == "compiled"):
        yield request.param


@pytest.fixture(scope="session")
def interpreted_checks() -> dict[tuple[ModuleType, str], Callable[..., Any]]:
    """The self-checks of kernels that Triton interprets: what they find is kept for all tests, apart from the CPU's."""
    from pbgeval.ranking import cpu_counting
    from pbgeval.scoring import self_check

    checks = ((cpu_counting, "_agrees"), (self_check, "_check_device"), (self_check, "_screens"))
    return {(module, name): functools.cache(getattr(module, name).__wrapped__) for module, name in checks}


@pytest.fixture(scope="session")
def language_of_kernels() -> Callable[[Any], SimpleNamespace]:
    """Prepares the language for a kernel, once and for good: Triton's interpreter does it at each launch and call."""
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang

    @functools.cache
    def prepare_once(function: Any) -> SimpleNamespace:
        prepare(function)
        return SimpleNamespace(restore=lambda: None)

    return prepare_once


@pytest.fixture
def kernel_device(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The device on which a GPU's kernels compute in this process: a GPU, or the CPU by Triton's interpreter."""
    if has_gpu():
        return "cuda"
    import torch

    from pbgeval.scoring import device_scores, self_check

    assert device_scores.is_installed(), "triton comes with the extra 'gpu', which scripts/test installs"
    monkeypatch.setattr(device_scores, "DEVICE_TYPES", ("cuda", "cpu"))
    monkeypatch.setattr(device_scores, "_devices_by_loop", functools.cache(set))
    monkeypatch.setattr(device_scores, "TILES", device_scores.Tiles(rows=16, columns=32))
    monkeypatch.setattr(device_scores, "LOOP_TILES", device_scores.Tiles(rows=32, columns=16))
    monkeypatch.setattr(device_scores, "PAIRS_PER_PROGRAM", 1024)
    for (module, name), check in request.getfixturevalue("interpreted_checks").items():
        monkeypatch.setattr(module, name, check)
    monkeypatch.setattr(self_check, "DEVICE_DIMENSIONS", (16, 17))
    monkeypatch.setattr(self_check, "DEVICE_SHAPES", ((1, 1), (3, 17), (20, 40)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Triton's interpreter")
    add_in_order_when_interpreted(monkeypatch)
    interpret_with_this_numpy(monkeypatch)
    interpret_without_bookkeeping(monkeypatch)
    monkeypatch.setattr("triton.runtime.interpreter._patch_lang", request.getfixturevalue("language_of_kernels"))
    return "cpu"


def interpret_with_this_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops be interpreted with numpy 2.4: before Triton 3.7, a bound is read in a way that it refuses."""
    from triton.runtime import interpreter

    if not hasattr(interpreter.InterpreterBuilder, "get_int1_ty"):
        pytest.skip("the interpreter of Triton before 3.4 has no truth values")
    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_and_mend)


TYPES: dict[tuple[Any, ...], dict[str, Any]] = {}  # what the interpreter makes of a block's type, and of its shape


def interpret_without_bookkeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter make each type once, and look for no overflow, of which it would not tell: half the time."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
    number_type, make_type, make_tensor = interpreter._get_np_dtype, tl.block_type.__init__, tl.tensor.__init__
    broadcast = TritonSemantic.broadcast_impl_value
    by_name: dict[str, Any] = {}

    def number_type_once(of: Any) -> Any:
        if of.name not in by_name:
            by_name[of.name] = number_type(of)
        return by_name[of.name]

    def make_type_once(of: Any, element: Any, shape: Any) -> None:
        key = (element.name, *[getattr(size, "value", size) for size in shape])
        if key not in TYPES:
            make_type(of, element, shape)
            TYPES[key] = vars(of).copy()
        vars(of).update(TYPES[key])

    def make_tensor_once(of: Any, handle: Any, of_type: Any) -> None:
        key = (of_type.name,)
        if key not in TYPES:
            make_tensor(of, handle, of_type)
            TYPES[key] = {name: value for name, value in vars(of).items() if name not in ("handle", "type")}
        vars(of).update(TYPES[key], handle=handle, type=of_type)

    def broadcast_where_shapes_differ(semantic: Any, one: Any, other: Any) -> tuple[Any, Any]:
        same = one.type.is_block() and other.type.is_block() and [*one.type.shape] == [*other.type.shape]
        return (one, other) if same else broadcast(semantic, one, other)

    monkeypatch.setattr(interpreter, "_get_np_dtype", number_type_once)
    monkeypatch.setattr(TritonSemantic, "broadcast_impl_value", broadcast_where_shapes_differ)
    monkeypatch.setattr(tl.block_type, "__init__", make_type_once)
    monkeypatch.setattr(tl.tensor, "__init__", make_tensor_once)


def add_in_order_when_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter add up the products of a score one after the other, as each thread of a GPU does.

    Its dot multiplies by BLAS, whose kernels round differently in different places of one tile. A product and the sum
    it goes into are rounded apart here, in a dot as where the chain is spelled out.
    """
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        total = d.data
        x, y = (of.data.astype(total.dtype) for of in (a, b))  # products of float16 are added in float32
        with np.errstate(all="ignore"):  # a GPU does not warn either
            for k in range(x.shape[1]):
                total = total + x[:, k : k + 1] * y[k : k + 1, :]
        return TensorHandle(total, d.dtype.scalar)

    def create_fma(self, x, y, z):
        with np.errstate(all="ignore"):
            return TensorHandle(x.data * y.data + z.data, z.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "create_fma", create_fma)
