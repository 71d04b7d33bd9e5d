"""The program, and the options that several commands have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from pbgeval.command_line.help_examples import EXAMPLES
from pbgeval.errors import ConfigError, EvalError, OutputError
from pbgeval.storage.text import is_url, without_secrets


class Command(TyperCommand):
    """A subcommand; an option that is given twice is an error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a context of typer's own click
        _refuse_repeated(self, ctx, args)
        _skip_pydantic(self, ctx)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        _write_examples(self.name or "", formatter)


class CommandGroup(TyperGroup):
    """The program: subcommands, and options of a run without one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as above
        _refuse_repeated(self, ctx, args)
        if "--help-config" in args:
            end = args.index("--help-config") + 1
            ctx.obj, args = args[end:], args[:end]  # words to search for
        _skip_pydantic(self, ctx)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        super().format_epilog(ctx, formatter)  # the commands
        _write_examples("", formatter)


def _write_examples(command: str, formatter: Any) -> None:  # noqa: ANN401 - as above
    with formatter.section("Examples"):
        for line in EXAMPLES[command]:
            formatter.write(f"{' ' * formatter.current_indent}{line}\n")


def _refuse_repeated(command: Any, ctx: Any, args: Sequence[str]) -> None:  # noqa: ANN401 - as above
    _, _, order = command.make_parser(ctx).parse_args(args=list(args))
    options = [param for param in order if param.param_type_name == "option"]
    for param in options:
        if not (param.multiple or param.is_flag) and options.count(param) > 1 and not ctx.resilient_parsing:
            raise ConfigError(f"{param.opts[0]} is given {options.count(param)} times; give it once")


def _skip_pydantic(command: Any, ctx: Any) -> None:  # noqa: ANN401 - as above
    """Take texts, paths and known choices as they are: to read them, newer typer imports pydantic, 0.1 s."""
    for param in command.get_params(ctx):
        kind = getattr(param, "type_descriptor", None)
        if all(hasattr(kind, name) for name in ("annotation", "choices", "is_list", "parameter_info")):
            param.process_value = partial(_read_value, param)


def _read_value(param: Any, ctx: Any, value: Any) -> Any:  # noqa: ANN401 - as above
    kind = param.type_descriptor
    (annotation,) = get_args(kind.annotation) if kind.is_list else (kind.annotation,)
    read = kind.parameter_info.parser or (annotation if annotation in (str, Path) else None)
    texts = value if kind.is_list else [value]
    if value is None and not param.required:
        value = () if kind.is_list else None
    elif texts and all(isinstance(text, str) and (read or text in (kind.choices or ())) for text in texts):
        found = [read(text) if read else text for text in texts]
        value = found if kind.is_list else found[0]
    else:
        return type(param).process_value(param, ctx, value)
    return param.callback(ctx, param, value) if param.callback else value


def refuse_misplaced(ctx: typer.Context) -> None:
    """Refuse options in front of a subcommand, which would not hear of them.

    Raises:
        ConfigError: names the first one.
    """
    for param in ctx.command.get_params(ctx):
        source = ctx.get_parameter_source(param.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"{param.opts[0]} must follow the command: {ctx.command_path} {ctx.invoked_subcommand} {param.opts[0]}"
            )


def refuse_beside_queries(is_given: Mapping[str, bool]) -> None:
    """Refuse options that have no effect where pages of queries are written.

    Raises:
        ConfigError: names the first one.
    """
    for option, given in is_given.items():
        if given:
            raise ConfigError(f"{option} has no effect with --queries; remove one of the two")


def usage_line(error: typer.TyperException) -> str:
    """Return a usage error as one line that names the help."""
    context = getattr(error, "ctx", None)
    command = "kgeval-dist" if context is None else context.command_path
    return f"{error.format_message().replace('Value error, ', '').rstrip('.')}; see {command} --help"


@contextmanager
def options_in_place_of(arguments: Mapping[str, str]) -> Iterator[None]:
    """Name options in the faults of a function of ours, where it names its arguments."""
    try:
        yield
    except EvalError as error:
        faults = list(error.faults)
        for argument, option in arguments.items():
            faults = [fault.replace(argument, option) for fault in faults]
        raise type(error)(*faults) from None


def local_path(text: str) -> Path:
    """Return a path; refuse a URL."""
    if is_url(text):
        raise OutputError(f"{without_secrets(text, text)}: expected a local folder; copy the result here first")
    return Path(text)


LocalFolder = partial(typer.Argument, parser=local_path)

app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, pretty_exceptions_enable=False)
command = partial(app.command, cls=Command)

# Choices, here so that help needs no heavy import; a test compares them with what the program takes.
RankTypeName = Literal["optimistic", "realistic", "pessimistic", "best", "avg", "average", "worst"]
ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        show_default=False,
        help="Config in Python, TOML, YAML or JSON, for example that of PyTorch-BigGraph.",
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
        help="Output directory, or a URL (s3://bucket/result) to copy it to [default: a new folder in results/, named "
        "after the config].",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Local processes [default: one per GPU; without a GPU, up to one per core]. Does not change the results.",
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Device to compute on.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing result. Other files there move to NAME.earlier.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors.")]
EdgeFilesByName = Annotated[
    list[str],
    typer.Option(
        "--edges",
        metavar="NAME=FILE",
        help="Edges to convert into the folder NAME. Name known edges valid and train. Repeatable.",
    ),
]
Unknown = Annotated[
    Literal["skip", "refuse"],
    typer.Option("--unknown", help="How to treat edges with unknown names. Skipped edges are counted."),
]
Cutoffs = Annotated[
    list[int] | None,
    typer.Option("-k", min=1, max=10**9, metavar="K", help="Cutoff of hits@k. Repeatable [default: 1, 3, 5, 10]."),
]
TimeLimit = Annotated[
    str,
    typer.Option("--time", metavar="TIME", help="Time limit as in sbatch. The job is requeued when it is reached."),
]
CpusPerWorker = Annotated[
    int | None,
    typer.Option("--cpus-per-worker", min=1, metavar="N", help="Cores per process [default: set by the scheduler]."),
]
MemoryPerNode = Annotated[
    str | None,
    typer.Option(
        "--mem",
        metavar="SIZE",
        help="Memory per host as in sbatch, for example 64GB [default: set by the cluster].",
    ),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm", metavar="KEY=VALUE", help="Additional sbatch option, for example account=physics. Repeatable."
    ),
]
PartitionsOfTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--partitions",
        metavar="[TYPE=]N",
        help="Number of partitions, for all entity types or for one TYPE. Repeatable [default: 1].",
    ),
]
EdgeColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--edge-columns",
        metavar="[NAME=|TYPE=]COLUMNS",
        help="Order of the columns (h head, r relation, t tail, w weight, s time, _ ignored; ht: no relation), or "
        "their names as HEAD,RELATION,TAIL[,WEIGHT[,TIME]]. Repeatable: for the edges NAME, or files of a TYPE (tsv, "
        "txt, del, csv, parquet) [default: hrt; Parquet: lhs,rel,rhs or head,relation,tail].",
    ),
]
EdgeDelimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter",
        metavar="CHAR",
        help="What separates the columns of text: one character, or tab, comma, semicolon, space, pipe [default: "
        "comma in .csv, else tab].",
    ),
]
EdgeComment = Annotated[
    str | None,
    typer.Option("--comment", metavar="TEXT", help="Skip lines of text that begin with this, for example '#'."),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory", metavar="SIZE", help="Memory limit, for example 4GB [default: most of the host's memory]."
    ),
]
TypesOfRelations = Annotated[
    Path | None,
    typer.Option(
        "--types",
        metavar="FILE",
        help="Entity types of relations, one relation<TAB>left type<TAB>right type per line; relation * stands "
        "for all others [default: one type].",
    ),
]
