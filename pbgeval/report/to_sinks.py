"""A result that is on the disk -> the sinks that the config names; one that fails costs a warning, not the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pbgeval.errors import OutputError
from pbgeval.report.output import SINK_FOLDER
from pbgeval.report.report import Report
from pbgeval.report.result_line import result_line
from pbgeval.sinks.opening import make_sink
from pbgeval.sinks.sink import closed_on_failure


def send_to_sinks(report: Report, names: Sequence[str], warn: Callable[[str], None]) -> None:
    """Write the figures of a finished run into `sinks/<name>` of its output directory.

    Args:
        report: with its output directory.
        names: of the sinks, whose libraries are there.
        warn: is told of each sink that could not be written.
    """
    if report.path is None:
        raise RuntimeError("a result that is nowhere has no sinks")
    run, step, values = result_line(report, report.path.absolute().name)
    for name in dict.fromkeys(names):
        sink = make_sink(name, report.path / SINK_FOLDER / name)
        try:
            with closed_on_failure(sink):
                sink.open(run)
                sink.log(step, values)
                sink.close()
        except OutputError as error:
            warn(f"{error}; the result itself is complete, only the sink {name} is not")
