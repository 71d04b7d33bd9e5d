"""A program for an environment with wandb and mlflow: writes by both, reads back by their own means.

python sinks_program.py FOLDER     evaluates FOLDER/case into FOLDER/output, and appends records of a training;
                                       writes FOLDER/found.json
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pbgeval import evaluate, load_config
from pbgeval.monitor.records import PassKey, PbgFigures, ScalarSink, VisitRecord
from pbgeval.notation import Bucket
from pbgeval.progress import Observer

BLOCK = 1 << 15  # of LevelDB's log format, which Weights & Biases write


class Warnings(Observer):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, message: str) -> None:
        self.lines.append(message)


def forbid_connections() -> None:
    """Let this process connect to itself alone."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a connection to {address}")
        connect(self, address)

    socket.socket.connect = guarded  # type: ignore[method-assign]


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log: pieces with checksum, length and type (1: whole, 2: first, 4: last)."""
    at, record = 7, b""  # after the file's own header
    while at < len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def read_wandb(folder: Path) -> dict[str, Any]:
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.rglob("*.wandb")
    found: dict[str, Any] = {"steps": []}
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            found["name"] = record.run.display_name
            found["settings"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = items.pop("_step", record.history.step.num)
            found["steps"].append([step, {key: of for key, of in items.items() if not key.startswith("_")}])
    return found


def read_mlflow(folder: Path) -> dict[str, Any]:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=folder.absolute().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("pbgeval").experiment_id])
    steps = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    return {
        "name": run.info.run_name,
        "status": run.info.status,
        "settings": run.data.params,
        "values": {key: [[of.step, of.value] for of in history] for key, history in steps.items()},
    }


def main(folder: Path) -> None:
    forbid_connections()
    os.environ["WANDB_MODE"] = "online"  # what the sink says counts
    warnings = Warnings()
    config = load_config(folder / "case" / "eval.py", ["sinks=wandb,mlflow", "candidates=partition"])
    evaluate(config, output=folder / "output", workers=1, device="cpu", observer=warnings)
    for name in ("wandb", "mlflow"):
        sink = ScalarSink(name, folder / "training" / name, run="mine")
        for index, mrr in enumerate((0.25, 0.5)):
            sink.append(
                VisitRecord(PassKey(0), Bucket(0, 1), index, None, None, PbgFigures(3, {"mrr": mrr, "auc": None}))
            )
        sink.close()
    readers = {"wandb": read_wandb, "mlflow": read_mlflow}
    found = {
        of: {name: read(folder / of / name) for name, read in readers.items()} for of in ("output/sinks", "training")
    }
    told = "MLFLOW_DISABLE_TELEMETRY" in os.environ
    (folder / "found.json").write_text(json.dumps({"found": found, "warnings": warnings.lines, "told": told}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
