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
from tests.kit.commands import start

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


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("module", "number", "workers"),
    [
        ("typer", signal.SIGTERM, "2"),
        ("typer", signal.SIGINT, "2"),
        ("numpy", signal.SIGQUIT, "2"),
        ("torch", signal.SIGTERM, "2"),
        ("torch", signal.SIGHUP, "2"),
        ("pbgeval.evaluation", signal.SIGINT, "2"),
        (None, signal.SIGTERM, "1"),
        (None, signal.SIGQUIT, "2"),
    ],
)
def test_a_signal_while_the_command_imports_or_reads_its_config(
    module: str | None, number: signal.Signals, workers: str, tmp_path: Path
) -> None:
    case = TinyCase.write(tmp_path / "case", dynamic=True)
    if module is None:
        text = f"import os\nos.kill(os.getpid(), {int(number)})\n" + case.config.read_text(encoding="utf-8")
        case.config.write_text(text, encoding="utf-8")
    words = [module or "no module", str(int(number)), "--config", str(case.config), "--workers", workers]

    done = start([sys.executable, "-c", PROGRAM, *words], case.root)

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
