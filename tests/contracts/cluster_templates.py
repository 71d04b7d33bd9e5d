"""Reads templates of cluster jobs by the schemas of their systems; run by the peer's Python.

Its command line: `.venv-peers/templates/bin/python cluster_templates.py FOLDER`. Writes JSON: by template, what its
schema does not know or refuses; and the commands that the hosts run.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from sky.utils import schemas


def main(folder: Path) -> None:
    """Check all of them."""
    templates = {name: yaml.safe_load((folder / name).read_text()) for name in KINDS}
    faults = {name: [*kind(templates[name])] for name, kind in KINDS.items()}
    [job] = templates["jobset.yaml"]["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    trainer = templates["kubeflow_trainer.yaml"]["spec"]["trainer"]
    commands = {
        "jobset.yaml": [*container["command"], *container["args"]],
        "kubeflow_trainer.yaml": [*trainer["command"], *trainer["args"]],
        "skypilot.yaml": templates["skypilot.yaml"]["run"],
    }
    sys.stdout.write(json.dumps({"faults": faults, "commands": commands}))


def train_job(found: Any) -> Iterator[str]:
    return differences(found, TrainerV1alpha1TrainJob.from_dict(found).to_dict(), "")


def job_set(found: Any) -> Iterator[str]:
    return differences(found, JobsetV1alpha2JobSet.from_dict(found).to_dict(), "")


def differences(found: Any, known: Any, where: str) -> Iterator[str]:
    """Yield what a model has dropped or changed: it is not of the schema."""
    if isinstance(found, dict) and isinstance(known, dict):
        for key in found.keys() | known.keys():
            yield from differences(found.get(key), known.get(key), f"{where}.{key}")
    elif isinstance(found, list) and isinstance(known, list) and len(found) == len(known):
        for index, pair in enumerate(zip(found, known, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif found != known:
        yield where


def managed_job(found: Any) -> Iterator[str]:
    parts = ((found, schemas.get_task_schema()), (found["resources"], schemas.get_resources_schema()))
    for part, schema in parts:
        yield from (fault.message for fault in jsonschema.Draft7Validator(schema).iter_errors(part))


KINDS = {"kubeflow_trainer.yaml": train_job, "jobset.yaml": job_set, "skypilot.yaml": managed_job}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
