"""The demo graph that comes with the package -> a folder with the graph, a trained model and configs that evaluate it.

FOLDER/train.tsv.gz, test.tsv.gz, types.tsv    the files as they come with the package
FOLDER/eval.py, pbg_config.py                  configs, whose paths are relative to the folder
FOLDER/entity, train, test                     the graph, as `kgeval-dist import-graph` writes it
FOLDER/checkpoint, monitor                     the model, and the records of its training
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pbgeval.errors import OutputError
from pbgeval.examples.files import DEMO_GRAPH, write_files
from pbgeval.examples.training import Training, train
from pbgeval.importing.dictionaries import Partitioning, RelationTypes
from pbgeval.importing.graph import GraphFiles, import_graph
from pbgeval.progress import Observer

PARTITIONING = Partitioning(of_type=(("function", 4), ("class", 4)))
_TYPES = "types.tsv"


def make_demo(
    folder: Path, observer: Observer, tell: Callable[[str], object], training: Training | None = None
) -> None:
    """Import the demo graph and train a model on it; what is there from an earlier call is kept.

    Args:
        folder: new or empty, or that of an earlier call.
        observer: is told how far the import is.
        tell: is given a line after each step.
        training: how the model is trained.

    Raises:
        EvalError: a file cannot be written, or the folder holds something else.
    """
    if (folder / "import.json").exists():
        if not (folder / "eval.py").exists():
            raise OutputError(f"{folder}: the folder holds another graph; choose a new or empty one")
        tell(f"{folder}: already imported")
    else:
        paths = {name: [DEMO_GRAPH / f"{name}.tsv.gz"] for name in ("train", "test")}
        files = GraphFiles(paths, types=RelationTypes.read(DEMO_GRAPH / _TYPES), partitioning=PARTITIONING)
        tell("importing the graph")
        import_graph(files, folder, None, observer)
    write_files(folder)
    if (folder / "checkpoint" / "checkpoint_version.txt").exists():
        tell(f"{folder / 'checkpoint'}: already trained")
    else:
        tell("training a model; the first epoch takes longest, because its loops are compiled once")
        train(folder, folder / _TYPES, folder, training or Training(), tell)
