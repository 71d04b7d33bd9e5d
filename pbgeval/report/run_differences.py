"""The provenance of two runs -> whether their queries, filters and candidates are the same, else what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.storage.left_out import num_left_out

MAX_SHOWN = 60  # characters of a value
DIVIDED = "they split the graph differently"
# Digests of arrays are of numbers, those of files of bytes, also of the same edges. Arrays are in one partition.
ONE_BUCKET = "0_0"
OWN_SIZES = (
    "with target_error, each run stops at a sample of its own size; replace it with the same sample_edges in both"
)
OTHER_FORM = " (the same edges in an array, a .npy file and another file count as different; give both runs one form)"

# Settings that decide which edges are evaluated, and which queries
EDGE_SETTINGS = ("restrict_entities", "restrict_relations", "sample_edges", "target_error")
QUERY_SETTINGS = ("disable_lhs_negs", "disable_rhs_negs", "relation_prediction", "dynamic_relations", *EDGE_SETTINGS)
# Settings that decide which candidates compete.
CANDIDATE_SETTINGS = ("pbg_semantics", "type_constraint", "head_candidates", "tail_candidates", "known_until")
# And those that decide it where lists are sampled: the same draws.
LIST_SETTINGS = (
    *("num_batch_negs", "num_uniform_negs", "num_degree_negs", "degree_power"),
    *("seed", "workers", "batch_size"),
)
KNOWN_EDGES = {"filter_paths": "filter", "train_paths": "training"}  # keys of a config, and of the provenance
# Digests that tell of other queries or competitors.
DIGESTS = {
    "restrictions": "restrict_entities or restrict_relations: names stand for others",
    "candidates": "candidate_path: files differ",
}


def differences_of(a: Mapping[str, Any], b: Mapping[str, Any], *, filtered: bool) -> list[str]:
    """Return what differs between the queries, filters and candidates of two runs, in words.

    What the model is, its scores' precision, and how figures are reported may differ.

    Args:
        a: `provenance` of the first run.
        b: of the second.
        filtered: whether filtered figures are to be compared, so that known answers must be the same.
    """
    of_a, of_b = a["settings"], b["settings"]
    both = sorted({*of_a["entities"]} & {*of_b["entities"]})
    counts = {name: [of["entities"][name]["num_partitions"] for of in (of_a, of_b)] for name in both}
    divided = [f"{name}: {one} and {other} partitions" for name, (one, other) in counts.items() if one != other]
    if divided:  # all else may follow from it
        return [f"{DIVIDED} ({', '.join(divided)}), so queries cannot be paired"]
    names = [*QUERY_SETTINGS, *CANDIDATE_SETTINGS]
    is_sample = any(of.get(name) is not None for of in (of_a, of_b) for name in ("sample_edges", "target_error"))
    if any(relation["candidates"] == CandidatePolicy.SAMPLED.value for relation in of_a["relations"]):
        names += LIST_SETTINGS
    elif is_sample:
        names.append("seed")
    unlike = [name for name in names if of_a.get(name) != of_b.get(name)]
    digests = [name for name in DIGESTS if a["data"].get(name) != b["data"].get(name)]
    found = [
        *_schema(of_a, of_b),
        *(describe_difference(name, of_a.get(name), of_b.get(name)) for name in unlike),
        *(DIGESTS[name] for name in digests),
    ]
    evaluated = [of["evaluated"] for of in (a, b) if "evaluated" in of]
    has_digests = len(evaluated) == 2  # else entities are features, which have no numbers
    if not has_digests:
        found = [*_files(a["data"], b["data"]), *found]
    elif not {*EDGE_SETTINGS, *(["seed"] if is_sample else [])} & {*unlike} and "restrictions" not in digests:
        why = describe_left_out(a["data"], b["data"]) or (OWN_SIZES if of_a.get("target_error") is not None else "")
        found = [*_edges(evaluated[0], evaluated[1], why), *found]
    needs_known = "num_degree_negs" in of_a or "observed" in (of.get("type_constraint") for of in (of_a, of_b))
    if needs_known or (filtered and not has_digests):
        found += _known(a["data"], b["data"])
    if filtered and has_digests and not found:  # whatever was found would change them, too
        known_a, known_b = (of.get("known") for of in evaluated)
        if known_a != known_b:
            unlike = [key for key, of in KNOWN_EDGES.items() if a["data"].get(of) != b["data"].get(of)]
            which = " and ".join(unlike or KNOWN_EDGES)
            found.append(f"{which} differ: the same queries have other known answers")
    return found


def describe_difference(key: str, a: object, b: object) -> str:
    """Return a line on a value that differs; of a table, on the entries that differ; of many tables, on the first."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        unlike = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
        return "; ".join(describe_difference(f"{key}.{name}", a.get(name), b.get(name)) for name in unlike)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        unlike = [at for at in range(len(a)) if a[at] != b[at]]
        if unlike and isinstance(a[unlike[0]], Mapping) and isinstance(b[unlike[0]], Mapping):
            more = f"; {len(unlike) - 1} more of {key} differ" if len(unlike) > 1 else ""
            if told := describe_difference(f"{key}[{unlike[0]}]", a[unlike[0]], b[unlike[0]]):
                return told + more
    shown = (value if isinstance(value, str) else json.dumps(value, sort_keys=True) for value in (a, b))
    of_a, of_b = (text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..." for text in shown)
    return f"{key}: A {of_a}, B {of_b}"


def names_of_unlike(tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the names of values that are not the same in all tables; those of tables within them have dots.

    Examples:
        >>> [*names_of_unlike([{"seed": 0, "entities": {"all": {"dimension": 32}}}, {"seed": 0, "entities": {}}])]
        ['entities.all']
    """
    for name in sorted({key for of in tables for key in of}):
        values = [of.get(name) for of in tables]
        inner = [value for value in values if isinstance(value, Mapping)]
        if len(inner) == len(values):
            yield from (f"{name}.{of_inner}" for of_inner in names_of_unlike(inner))
        elif any(value != values[0] for value in values):
            yield name


def _more(unlike: Sequence[object]) -> str:
    """Return the first, and how many more there are."""
    return f"{unlike[0]} and {len(unlike) - 1} more" if len(unlike) > 1 else str(unlike[0])


def describe_left_out(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Return how many evaluated edges the imports of two runs left out, given results or their data; empty if none."""
    of_a, of_b = (num_left_out(of, "edge_paths") for of in (a, b))
    return (
        f"imports left out {of_a:,} evaluated edges of A and {of_b:,} of B, as their names are unknown"
        if of_a or of_b
        else ""
    )


def _edges(a: Mapping[str, Any], b: Mapping[str, Any], why: str) -> Iterator[str]:
    """Yield how evaluated edges differ, by their digests, and perhaps why. Queries are paired by rows of edges."""
    if len(a["edges"]) != len(b["edges"]):
        yield describe_difference("edge_paths", f"has {len(a['edges'])}", str(len(b["edges"])))
        return
    for at in range(len(a["edges"])):
        where = f"edge_paths[{at}]"
        if a["edges"][at] != b["edges"][at]:
            told = f" ({why})" if why else ""
            yield f"they evaluated different edges, or number entities or relations differently: {where}{told}"
        elif a["rows"][at] != b["rows"][at]:
            yield f"they evaluated the same edges in another order: {where}"
        elif "times" in a and "times" in b and a["times"][at] != b["times"][at]:
            yield f"they evaluated the same edges at other times: {where}"


def _files(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the files of evaluated edges differ."""
    of_a, of_b = a["edges"], b["edges"]
    if len(of_a) != len(of_b):
        yield describe_difference("edge_paths", f"has {len(of_a)}", str(len(of_b)))
        return
    for index, files in enumerate(zip(of_a, of_b, strict=True)):
        unlike = sorted(bucket for bucket in {*files[0], *files[1]} if files[0].get(bucket) != files[1].get(bucket))
        if unlike:
            yield f"they evaluated different edges: edge_paths[{index}], bucket {_more(unlike)}"


def _schema(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Yield how relations and entity types differ; relations may have other names and operators."""
    of_a, of_b = a["relations"], b["relations"]
    if len(of_a) != len(of_b):
        yield describe_difference("relations", f"has {len(of_a)}", str(len(of_b)))
    else:
        for name in ("lhs", "rhs", "candidates"):
            unlike = [index for index in range(len(of_a)) if of_a[index][name] != of_b[index][name]]
            if unlike:
                key = f"relations{_more([f'[{unlike[0]}]', *unlike[1:]])}: {name}"
                yield describe_difference(key, of_a[unlike[0]][name], of_b[unlike[0]][name])
    used = {relation[side] for relation in (*of_a, *of_b) for side in ("lhs", "rhs")}
    for name in sorted(used & {*a["entities"]} & {*b["entities"]}):
        values = [of["entities"][name]["featurized"] for of in (a, b)]
        if values[0] != values[1]:
            yield describe_difference(f"entities['{name}'].featurized", *values)


def _known(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Yield how known edges differ: whether a path is a filter path or a training path makes no difference."""
    evaluated = {json.dumps(of_path, sort_keys=True) for of_path in a["edges"]}  # known in both
    known_a, known_b = (
        {json.dumps(of_path, sort_keys=True) for of_path in (*of["filter"], *of["training"])} - evaluated
        for of in (a, b)
    )
    if known_a != known_b:
        only_a, only_b = len(known_a - known_b), len(known_b - known_a)
        other_form = all(list(json.loads(one)) == [ONE_BUCKET] for one in known_a ^ known_b)
        why = OTHER_FORM if other_form else ""
        yield f"filter_paths and train_paths differ: {only_a} only in A, {only_b} only in B{why}"
