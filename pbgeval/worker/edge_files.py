"""Files of edges by name in a group: worker 0 makes buckets of them, the others wait and then read the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import evolve, frozen

from pbgeval.config import EvalConfig, names_file_of_edges
from pbgeval.distributed.lifeline import signs_of_life
from pbgeval.distributed.team import Team
from pbgeval.errors import EvalError, IncompleteError
from pbgeval.inputs.edge_files import buckets_of_files
from pbgeval.inputs.opening import Inputs, open_inputs
from pbgeval.progress import Observer


@frozen
class _Made:
    """What one worker tells the others."""

    config: EvalConfig | None = None
    faults: tuple[str, ...] = ()
    incomplete: bool = False


@contextmanager
def inputs_of_group(config: EvalConfig, output: Path | None, observer: Observer) -> Iterator[tuple[Inputs, Team]]:
    """Join the group; yield the inputs, with buckets in place of files, to every worker.

    Raises:
        EvalError: the faults of any worker, on every worker; the group has ended then.
    """
    team = Team.join()
    with ExitStack() as stack:
        with signs_of_life(team):  # the evaluation gives its own
            made = _Made()
            if team.rank_in_team == 0:
                try:
                    made = _Made(stack.enter_context(buckets_of_files(config, output, observer)))
                except EvalError as error:
                    made = _Made(None, error.faults, isinstance(error, IncompleteError))
            inputs = _open(team, config, team.broadcast_object(made))
        yield inputs, team


def _open(team: Team, config: EvalConfig, made: _Made) -> Inputs:
    """Open what worker 0 has made, on every worker."""
    inputs, mine = None, made.faults
    if made.config is not None:
        try:
            inputs = open_inputs(_with_buckets_of(made.config, config))
        except EvalError as error:
            mine = error.faults
    faults = tuple(dict.fromkeys(fault for of_worker in team.gather_objects(mine) for fault in of_worker))
    if inputs is None or faults:
        team.leave()
        raise (IncompleteError if made.incomplete else EvalError)(*faults)
    return inputs


def _with_buckets_of(made: EvalConfig, mine: EvalConfig) -> EvalConfig:
    """Take worker 0's folders in place of files of edges; copies of objects are this host's own."""

    def chosen(theirs: list[str], ours: list[str]) -> list[str]:
        return [b if names_file_of_edges(a) else a for a, b in zip(ours, theirs, strict=True)]

    return evolve(
        made,
        entity_path=mine.entity_path,
        checkpoint_path=mine.checkpoint_path,
        edge_paths=chosen(made.edge_paths, mine.edge_paths),
        filter_paths=chosen(made.filter_paths, mine.filter_paths),
        train_paths=chosen(made.train_paths, mine.train_paths),
    )
