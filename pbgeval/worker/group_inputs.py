"""URLs and files of edges by name in a group: each host copies objects once, worker 0 makes buckets of the files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import evolve

from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig, names_file_of_edges
from pbgeval.inputs.edge_files import buckets_of_files
from pbgeval.inputs.object_storage import local_copies
from pbgeval.inputs.opening import Inputs, open_inputs
from pbgeval.progress import Observer


@contextmanager
def inputs_of_group(config: EvalConfig, output: Path | None, observer: Observer) -> Iterator[tuple[Inputs, Team]]:
    """Join the group; yield the inputs, with folders in place of URLs and files, to every worker.

    Raises:
        EvalError: the faults of any worker, on every worker; the group has ended then.
    """
    team = Team.join()
    with ExitStack() as stack:
        with team.signs_of_life():  # the evaluation gives its own
            mine = stack.enter_context(local_copies(config, team))
            buckets = buckets_of_files(mine, output, observer)
            with team.together():
                made = stack.enter_context(buckets) if team.rank_in_team == 0 else None
            of_worker_0 = team.broadcast_object(made)
            with team.together():
                inputs = open_inputs(_with_buckets_of(of_worker_0, mine))
        yield inputs, team


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
