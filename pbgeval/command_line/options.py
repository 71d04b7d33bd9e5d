"""The program, and the options that several commands have."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from pbgeval.command_line.usage import Command, CommandGroup

app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, pretty_exceptions_enable=False)
command = partial(app.command, cls=Command)

# Choices, here so that help needs no heavy import; a test compares them with what the program takes.
RankTypeName = Literal["optimistic", "realistic", "pessimistic", "best", "avg", "average", "worst"]
ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        show_default=False,
        help="Python file with get_config(), a PyTorch-BigGraph config, or JSON (config.json of a checkpoint).",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="KEY=VALUE",
        help="Override a config key. Repeatable. Write lists with commas (hits_at=1,10) and nested keys with dots.",
    ),
]
OutputFolder = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Output directory, or a URL (s3://bucket/result) to copy it to [default: results/CONFIG-DIGEST].",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", help="Number of local processes [default: all cores]. Does not change the results."
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Device to compute on.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result in the output directory.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors.")]
EdgeFilesByName = Annotated[
    list[str],
    typer.Option(
        "--edges",
        metavar="NAME=FILE",
        help="Edges to write into the folder NAME. Call known edges valid and train. Repeatable.",
    ),
]
Unknown = Annotated[
    Literal["skip", "refuse"],
    typer.Option("--unknown", help="What to do with edges whose names are unknown. Skipped edges are counted."),
]
TrustPickle = Annotated[
    bool,
    typer.Option("--trust-pickle", help="Unpickle the model file, which can run any code in it."),
]
Cutoffs = Annotated[
    list[int] | None,
    typer.Option("-k", min=1, max=10**9, metavar="K", help="Cutoff of hits@k. Repeatable [default: 1, 3, 5, 10]."),
]
TypeCutoffs = Annotated[
    list[int] | None,
    typer.Option("-k", min=1, max=10**9, metavar="K", help="Cutoff of NDCG@k. Repeatable [default: 1, 3, 5, 10]."),
]
TimeLimit = Annotated[
    str,
    typer.Option("--time", metavar="TIME", help="Time limit as in sbatch. The job is requeued when it is reached."),
]
CpusPerWorker = Annotated[
    int | None,
    typer.Option(
        "--cpus-per-worker", min=1, metavar="N", help="Cores of each process [default: as the scheduler decides]."
    ),
]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", min=0, metavar="N", help="GPUs of each host [default: none].")
]
MemoryPerNode = Annotated[
    str | None,
    typer.Option(
        "--mem",
        metavar="SIZE",
        help="Memory of each host as in sbatch, for example 64GB [default: that of the cluster].",
    ),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm", metavar="KEY=VALUE", help="Another sbatch option, for example account=physics. Repeatable."
    ),
]
WorkersPerNode = Annotated[
    int, typer.Option("--workers-per-node", min=1, metavar="N", help="Number of processes on each host.")
]
PartitionsOfTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--partitions",
        metavar="[TYPE=]N",
        help="Number of partitions of the entities, or of those of one type. Repeatable [default: 1].",
    ),
]
EdgeColumns = Annotated[
    str | None,
    typer.Option(
        "--edge-columns",
        metavar="COLUMNS",
        help="Order of the columns (h head, r relation, t tail, w weight, _ ignored), or their names as "
        "HEAD,RELATION,TAIL[,WEIGHT] [default: hrt; Parquet: lhs,rel,rhs].",
    ),
]
TypesOfRelations = Annotated[
    Path | None,
    typer.Option(
        "--types",
        metavar="FILE",
        help="Entity types of relations: relation<TAB>left type<TAB>right type; relation * for all others "
        "[default: one type].",
    ),
]
Dictionary = Annotated[
    Path | None,
    typer.Option(
        "--dictionary",
        metavar="DIR",
        help="Use the ids that this entity folder gives to names [default: assign new ids].",
    ),
]
DictionaryOf = Annotated[
    list[str] | None,
    typer.Option(
        "--dictionary-of",
        metavar="NAME",
        help="Assign ids only to the names in these edges. Repeatable [default: all edges].",
    ),
]
