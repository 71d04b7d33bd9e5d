"""Files that come with the package to be copied: those of the demo graph, and templates by name."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from pbgeval.errors import ConfigError
from pbgeval.storage.writing import write_atomically

_HERE = Path(__file__).parent
DEMO_GRAPH = _HERE / "demo_graph"


@frozen
class Template:
    """A file to copy."""

    path: Path
    what: str

    @property
    def text(self) -> str:
        """What the file holds."""
        return self.path.read_text(encoding="utf-8")


def write_files(folder: Path) -> None:
    """Write the files of the demo graph, without those that are there.

    Raises:
        OutputError: they cannot be written.
    """
    for source in sorted(path for path in DEMO_GRAPH.iterdir() if path.is_file()):
        if not (folder / source.name).exists():
            write_atomically(folder / source.name, source.read_bytes())


TEMPLATES = {
    "slurm": Template(_HERE / "cluster_jobs" / "slurm.sbatch", "an sbatch script: srun of one torchrun per node"),
    "kubernetes": Template(_HERE / "cluster_jobs" / "kubernetes.yaml", "a plain Kubernetes Job: one pod"),
    "jobset": Template(_HERE / "cluster_jobs" / "jobset.yaml", "a JobSet with a Kueue queue: several pods"),
    "kubeflow_trainer": Template(
        _HERE / "cluster_jobs" / "kubeflow_trainer.yaml", "a TrainJob for Kubeflow Trainer 2.2 or later"
    ),
    "skypilot": Template(_HERE / "cluster_jobs" / "skypilot.yaml", "a managed job of SkyPilot on spot hosts"),
    "export_pykeen": Template(_HERE / "export_pykeen.py", "a script for PyKEEN's environment: a model -> plain arrays"),
    "export_libkge": Template(
        _HERE / "export_libkge.py", "a script for LibKGE's environment: a checkpoint -> plain arrays"
    ),
}


def find_template(name: str) -> Template:
    """Return a template.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in TEMPLATES:
        raise ConfigError(f"no template is named {name!r}; expected one of {', '.join(TEMPLATES)}")
    return TEMPLATES[name]
