"""A report -> what sinks get of it: the run, a step, and its headline figures as named values."""

from __future__ import annotations

from pbgeval.report.report import Report
from pbgeval.sinks.sink import RunFacts

SETTINGS = ("comparator", "seed", "precision")


def result_line(report: Report, name: str) -> tuple[RunFacts, int, dict[str, float]]:
    """Return the run under a name, the checkpoint's version as the step (0 if it has none), and the defined values.

    They are those of the headline's rank type and those without one, of head, tail and both; raw ones of a filtered
    run as `raw.<key>`, standard errors of what is estimated as `<key>.standard_error`.
    """
    document = report.document
    provenance = document["provenance"]
    version = provenance.get("checkpoint_version")
    settings = provenance.get("settings", {})
    facts = {
        "digest": provenance["digest"],
        "filter": document["filter"],
        "headline": document["headline"],
        "num_edges": document["num_edges"],
        "checkpoint_version": version,
        **{name: settings.get(name) for name in SETTINGS},
    }
    values = {
        f"{prefix}{key}": float(value)
        for prefix, part in (("", "metrics"), ("raw.", "raw_metrics"))
        for key, value in document.get(part, {}).items()
        if value is not None and _is_headline(key, document["headline"])
    }
    for key, interval in document["intervals"].items():
        if key in values and "standard_error" in interval:
            values[f"{key}.standard_error"] = float(interval["standard_error"])
    return RunFacts(name, facts), version if isinstance(version, int) else 0, values


def _is_headline(key: str, headline: str) -> bool:
    parts = key.split(".")
    return len(parts) == 2 or parts[1] == headline
