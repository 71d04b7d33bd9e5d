"""A signal while the command imports or reads its config ends it with status 75 and one line."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pbgeval.cluster.signals import ended_by_signals, raise_if_ended
from pbgeval.errors import IncompleteError
from tests.kit.case import TinyCase
from tests.kit.commands import Done, start

# The command, which sends itself a signal when it imports a module.
PROGRAM = """
import os, sys

class Sending:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(NUMBER))

MODULE, NUMBER = sys.argv[1:3]
sys.argv[1:3] = []
sys.meta_path.insert(0, Sending())
from pbgeval.__main__ import main
main()
"""
ENDED = "This process was ended by {}. Run the same command again to resume."


def run(case: TinyCase, module: str, number: int, *arguments: str) -> Done:
    words = [sys.executable, "-c", PROGRAM, module, str(int(number)), "--config", str(case.config), *arguments]
    return start(words, case.root)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("typer", signal.SIGTERM),
        ("typer", signal.SIGINT),
        ("numpy", signal.SIGQUIT),
        ("torch", signal.SIGTERM),
        ("torch", signal.SIGHUP),
        ("pbgeval.evaluation", signal.SIGINT),
    ],
)
def test_a_signal_while_the_command_imports(module: str, number: signal.Signals, tmp_path: Path) -> None:
    done = run(TinyCase.write(tmp_path / "case", dynamic=True), module, number, "--workers", "2")

    assert (done.status, done.out, done.err) == (75, "", ENDED.format(number.name) + "\n")


@pytest.mark.one_case
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, "1"), (signal.SIGQUIT, "2")])
def test_a_signal_while_the_config_is_read(number: signal.Signals, workers: str, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", dynamic=True)
    text = f"import os\nos.kill(os.getpid(), {int(number)})\n" + case.config.read_text(encoding="utf-8")
    case.config.write_text(text, encoding="utf-8")

    done = run(case, "no module", number, "--workers", workers)

    assert (done.status, done.out, done.err) == (75, "", ENDED.format(number.name) + "\n")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    case = TinyCase.write(tmp_path / "case", dynamic=True)
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", PROGRAM, "torch", "1", "--version"]

    assert start(words, case.root).printed


def test_a_signal_whose_exception_was_dropped_ends_the_work_at_its_next_unit() -> None:
    """As Python drops it in the callback of a weak reference."""

    def work() -> None:
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)
        raise_if_ended()

    with pytest.raises(IncompleteError, match="ended by SIGTERM"), ended_by_signals():
        work()
    raise_if_ended()  # which has forgotten it
