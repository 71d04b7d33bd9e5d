"""metrics.json -> where its figures come from: settings, data, and the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pbgeval.report.page.tables import Column, DataTable, fitting

MOST_ENTRIES = 64  # of a list or a mapping that are told one by one
MOST_BYTES = 150_000  # of each table


def settings_of(document: Mapping[str, Any], meanings: Mapping[str, str]) -> DataTable | None:
    """Return a row per setting that can change a number.

    Args:
        document: the content of metrics.json.
        meanings: what each key of a config means.
    """
    settings = (document.get("provenance") or {}).get("settings")
    if not settings:
        return None
    rows = [(name, text, meanings.get(name.partition(".")[0], "")) for name, text in flat(settings)]
    columns = tuple(Column(title, is_number=False) for title in ("setting", "value", "meaning"))
    return DataTable("settings", "Settings", columns, fitting(_without_repeats(rows), MOST_BYTES), _NOTE)


_NOTE = "All that can change a number; metrics.json has the lists that are too long for this table."


def data_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return a row per file with its digest."""
    data = (document.get("provenance") or {}).get("data")
    if not data:
        return None
    columns = tuple(Column(title, is_number=False) for title in ("data", "digest"))
    return DataTable("data", "Digests of the data", columns, fitting(flat(data), MOST_BYTES))


def run_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return a row per fact of the run, which may differ between equal runs."""
    run = document.get("run")
    if not run:
        return None
    columns = tuple(Column(title, is_number=False) for title in ("run", "value"))
    return DataTable("run", "The run", columns, fitting(flat(run), MOST_BYTES))


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 (any JSON)
    """Yield (dotted name, text) of every leaf of JSON; of a long list or mapping how many entries it has."""
    if isinstance(value, dict | list) and len(value) > MOST_ENTRIES:
        yield name, f"{len(value):,} entries"
    elif isinstance(value, dict) and value:
        for key, of_key in value.items():
            yield from flat(of_key, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        for at, entry in enumerate(value):
            yield from flat(entry, f"{name}.{at}" if name else str(at))
    elif isinstance(value, list):
        yield name, ", ".join(map(_leaf, value)) or "none"
    else:
        yield name, _leaf(value)


def _leaf(value: Any) -> str:  # noqa: ANN401 (any JSON)
    if isinstance(value, str):
        return value
    return "none" if value is None or value == {} else json.dumps(value)


def _without_repeats(rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Leave the meaning out where the row before has the same."""
    before = ""
    for name, text, meaning in rows:
        yield name, text, "" if meaning == before else meaning
        before = meaning
