"""The provenance of two runs -> whether their queries, filters and candidates are the same, else what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pbgeval.candidates.policy import CandidatePolicy

MOST_SHOWN = 60  # characters of a value
OBSERVED = "observed"  # the type constraint that known edges decide

# Settings that decide which edges are evaluated, and which of their sides.
QUERY_SETTINGS = (
    "disable_lhs_negs",
    "disable_rhs_negs",
    "dynamic_relations",
    "restrict_entities",
    "restrict_relations",
    "sample_edges",
    "target_error",
)
# Settings that decide who competes.
CANDIDATE_SETTINGS = ("pbg_semantics", "type_constraint", "head_candidates", "tail_candidates")
# And those that decide it where lists are sampled: the same draws.
LIST_SETTINGS = ("num_batch_negs", "num_uniform_negs", "seed", "workers", "batch_size")


def differences_of(a: Mapping[str, Any], b: Mapping[str, Any], *, filtered: bool) -> list[str]:
    """Return what differs between the queries, filters and candidates of two runs: `<key>: A <value>, B <value>`.

    What the model is, its scores' precision, and how figures are reported may differ.

    Args:
        a: `provenance` of the first run.
        b: of the second.
        filtered: whether filtered figures are to be compared, so that known answers must be the same.
    """
    found = [*_edges(a, b), *_settings(a, b, QUERY_SETTINGS), *_relations(a, b), *_entities(a, b)]
    found += _settings(a, b, CANDIDATE_SETTINGS)
    if any(relation["candidates"] == CandidatePolicy.SAMPLED.value for relation in a["settings"]["relations"]):
        found += _settings(a, b, LIST_SETTINGS)
    elif _is_sample(a) or _is_sample(b):
        found += _settings(a, b, ("seed",))
    found += _digests(a, b, "restrictions", "restrict_entities or restrict_relations: names stand for others")
    found += _digests(a, b, "candidates", "candidate_path: files differ")
    if filtered or OBSERVED in (of["settings"].get("type_constraint") for of in (a, b)):
        found += _known(a, b)
    return found


def _is_sample(provenance: Mapping[str, Any]) -> bool:
    settings = provenance["settings"]
    return settings.get("sample_edges") is not None or settings.get("target_error") is not None


def _line(key: str, a: object, b: object) -> str:
    return f"{key}: A {_shown(a)}, B {_shown(b)}"


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def _settings(a: Mapping[str, Any], b: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        of_a, of_b = (of["settings"].get(name) for of in (a, b))
        if of_a != of_b:
            yield _line(name, of_a, of_b)


def _edges(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    paths_a, paths_b = (of["data"]["edges"] for of in (a, b))
    if len(paths_a) != len(paths_b):
        yield _line("edge_paths", f"has {len(paths_a)}", f"{len(paths_b)}")
        return
    for index, (of_a, of_b) in enumerate(zip(paths_a, paths_b, strict=True)):
        unlike = sorted(bucket for bucket in {*of_a, *of_b} if of_a.get(bucket) != of_b.get(bucket))
        if unlike:
            more = f" and {len(unlike) - 1} more" if len(unlike) > 1 else ""
            of_bucket = (of.get(unlike[0], "none")[:8] for of in (of_a, of_b))
            yield _line(f"edge_paths[{index}], edges of bucket {unlike[0]}{more}", *of_bucket)


def _relations(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    of_a, of_b = (of["settings"]["relations"] for of in (a, b))
    if len(of_a) != len(of_b):
        yield _line("relations", f"has {len(of_a)}", f"{len(of_b)}")
        return
    for name in ("lhs", "rhs", "candidates"):
        unlike = [index for index in range(len(of_a)) if of_a[index][name] != of_b[index][name]]
        if unlike:
            more = f" and {len(unlike) - 1} more" if len(unlike) > 1 else ""
            yield _line(f"relations[{unlike[0]}]{more}: {name}", of_a[unlike[0]][name], of_b[unlike[0]][name])


def _entities(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    of_a, of_b = (of["settings"]["entities"] for of in (a, b))
    used = {relation[side] for of in (a, b) for relation in of["settings"]["relations"] for side in ("lhs", "rhs")}
    for name in sorted(used & {*of_a} & {*of_b}):
        for key in ("num_partitions", "featurized"):
            if of_a[name][key] != of_b[name][key]:
                yield _line(f"entities['{name}'].{key}", of_a[name][key], of_b[name][key])


def _digests(a: Mapping[str, Any], b: Mapping[str, Any], name: str, text: str) -> Iterator[str]:
    if a["data"].get(name) != b["data"].get(name):
        yield text


def _known(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Yield how known edges differ: whether a path is a filter path or a training path makes no difference."""
    lists = [
        {json.dumps(of_path, sort_keys=True) for name in ("filter", "training") for of_path in of["data"][name]}
        for of in (a, b)
    ]
    evaluated = {json.dumps(of_path, sort_keys=True) for of_path in a["data"]["edges"]}  # known in both
    of_a, of_b = (found - evaluated for found in lists)
    if of_a != of_b:
        pairs = ((of_a, of_b, "B"), (of_b, of_a, "A"))
        yield _line(
            "filter_paths and train_paths",
            *(f"{len(own)}, of which {len(own - others)} are not those of {name}" for own, others, name in pairs),
        )
