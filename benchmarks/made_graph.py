"""What benchmarks that make a graph share: the folder that keeps it, and partitions of random embeddings."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from attrs import asdict

FORMAT_VERSION = 1
ROWS_AT_A_TIME = 1 << 20
SPARE = 1.1  # disk asked for, over what the arrays take


def data_folder(stack: ExitStack, chosen: Path | None) -> Path:
    """Return the folder that the user has chosen, or a temporary one that the stack removes."""
    folder = chosen or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-")))
    return folder.resolve()


def is_made(folder: Path, size: Any) -> bool:  # noqa: ANN401 - an attrs class of sizes
    """Tell whether the very graph of these sizes is in a folder."""
    note = folder / "graph.json"
    return note.exists() and note.read_text(encoding="utf-8") == _text(size)


def begin(folder: Path, num_bytes: int, parts: Sequence[str]) -> None:
    """Make the folders of a graph.

    Raises:
        SystemExit: something else is there, or the disk has no room for so many bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder}: expected an empty folder or the graph of these sizes, found something else")
    free, needed = shutil.disk_usage(folder).free, SPARE * num_bytes
    if free < needed:
        raise SystemExit(f"{folder}: expected {needed / 1e9:.2f} GB free, found {free / 1e9:.2f}")
    for name in parts:
        (folder / name).mkdir()


def finish(folder: Path, size: Any) -> None:  # noqa: ANN401 - attributes of its own
    """Note that the graph is whole."""
    (folder / "checkpoint" / "checkpoint_version.txt").write_text("1\n", encoding="utf-8")
    (folder / "graph.json").write_text(_text(size), encoding="utf-8")


def write_config(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Write a config of these keys as PyTorch-BigGraph reads it; return its path."""
    path = folder / "config.py"
    path.write_text(f"def get_torchbiggraph_config():\n    return {settings!r}\n", encoding="utf-8")
    return path


def write_partition(folder: Path, partition: int, num_entities: int, dimension: int, seed: int) -> None:
    """Write the count and the embeddings of one partition of the entity type `all`."""
    count = folder / "entity" / f"entity_count_all_{partition}.txt"
    count.write_text(f"{num_entities}\n", encoding="utf-8")
    random = np.random.default_rng([seed, 0, partition])
    with h5py.File(folder / "checkpoint" / f"embeddings_all_{partition}.v1.h5", "w") as file:
        file.attrs["format_version"] = FORMAT_VERSION
        rows = file.create_dataset("embeddings", (num_entities, dimension), np.float32)
        for start, stop in blocks(num_entities, ROWS_AT_A_TIME // dimension):
            # Scores are sums of D products: this scale gives them a variance near 1.
            block = random.standard_normal((stop - start, dimension), dtype=np.float32)
            rows[start:stop] = block / np.float32(dimension**0.25)


def blocks(total: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut a range into runs of at most `step`."""
    step = max(step, 1)
    for start in range(0, total, step):
        yield start, min(start + step, total)


def _text(size: Any) -> str:  # noqa: ANN401 - attributes of its own
    return json.dumps(asdict(size), indent=4) + "\n"
