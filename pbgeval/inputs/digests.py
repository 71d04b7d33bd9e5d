"""Inputs -> digests of the content of everything that can change a number."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

from attrs import asdict

from pbgeval.adapters.model import EmbeddingModel
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.relation_names import relation_groups
from pbgeval.notation import Bucket
from pbgeval.storage.checkpoint import model_path
from pbgeval.storage.edges import EdgeSource
from pbgeval.storage.fingerprint import fingerprint


def data_digests(inputs: Inputs) -> dict[str, object]:
    """Return a digest of the content of every file that can change a number, by role, without paths."""
    known = dict(zip(inputs.known_paths, inputs.known_buckets, strict=True))
    return {
        "restrictions": inputs.restrictions.digest,
        "relation_groups": _digest_of_groups(inputs),
        "candidates": [
            {f"{bucket.lhs}_{bucket.rhs}": fingerprint(file.path) for bucket, file in sorted(files.items())}
            for files in inputs.candidate_files
        ],
        "edges": [_fingerprints(files) for files in inputs.buckets],
        "filter": [_fingerprints(known[path]) for path in dict.fromkeys(inputs.config.filter_paths)],
        "training": [_fingerprints(known[path]) for path in dict.fromkeys(inputs.config.train_paths)],
        "embeddings": {
            f"{entity_type}_{partition}": rows.fingerprint()
            for (entity_type, partition), rows in sorted(inputs.embeddings.items(), key=itemgetter(0))
        },
        "model": _digest_of_model(inputs),
        **({} if inputs.types is None else {"types": inputs.types.digest}),
    }


def _digest_of_model(inputs: Inputs) -> object:
    """Return digests of a model; of a function there are none, so no two runs are the same."""
    if isinstance(inputs.model, EmbeddingModel):
        return {"system": inputs.model.system, "formula": asdict(inputs.model.formula), **inputs.model.digests()}
    if inputs.scorer is not None:
        return {"scorer": type(inputs.scorer).__name__, "digest": getattr(inputs.scorer, "digest", uuid.uuid4().hex)}
    model = model_path(Path(inputs.config.checkpoint_path), inputs.checkpoint_version)
    return fingerprint(model) if model.exists() else None


def _fingerprints(files: Mapping[Bucket, EdgeSource]) -> dict[str, str]:
    return {f"{bucket.lhs}_{bucket.rhs}": file.fingerprint() for bucket, file in sorted(files.items())}


def _digest_of_groups(inputs: Inputs) -> str | None:
    """Return a digest of the groups of relations by which a breakdown is made, None if none is."""
    if "groups" not in inputs.config.breakdowns:
        return None
    groups = relation_groups(inputs.config, inputs.num_relations)
    canonical = json.dumps({name: ids.tolist() for name, ids in groups.items()}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
