"""The program, and the options that several commands have."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from pbgeval.errors import ConfigError, EvalError, OutputError
from pbgeval.storage.text import is_url, without_secrets

# The command line as it is typed -> arguments, or the nearest right spelling of what is wrong with it.


class Command(TyperCommand):
    """A subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a context of typer's own click
        _check_options(self, ctx, args)
        ctx.allow_extra_args = True  # what is extra is named below, with a suggestion
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            raise _unexpected(ctx, extra[0])
        return extra


class CommandGroup(TyperGroup):
    """The program: subcommands, and options of a run without one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as above
        given = _check_options(self, ctx, args)
        rest = self.make_parser(ctx).parse_args(args=list(args))[1] if given else []
        if "--help-config" in given:
            ctx.obj = rest  # words to search for
            return super().parse_args(ctx, args[: len(args) - len(rest)])
        if rest and not ctx.resilient_parsing and not {*ctx.help_option_names} & {*given}:
            if rest[0] not in self.commands:
                raise _unexpected(ctx, rest[0])
            raise _misplaced(ctx, self.commands[rest[0]], given, args[: len(args) - len(rest)], rest)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - as above
        name = args[0]
        if name in self.commands or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if name.endswith((".py", ".json")) or Path(name).is_file():
            raise ConfigError(f"{name} is not a command; did you mean {ctx.command_path} run {shlex.join(args)}?")
        near = ["run"] if "evaluate".startswith(name) else difflib.get_close_matches(name, self.commands, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(self.commands)}"
        raise ConfigError(f"{name} is not a command; {hint}")


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


def _check_options(command: Any, ctx: Any, args: Sequence[str]) -> list[str]:  # noqa: ANN401 - as above
    """Refuse unknown and repeated options; return the flags that are given."""
    for flag, key, value in zip(args, args[1:], args[2:], strict=False):
        if flag in ("-p", "--param") and "=" not in key and not key.startswith("-") and not value.startswith("-"):
            raise ConfigError(f"{flag} {key} {value}: expected KEY=VALUE; did you mean {flag} {key}={value}?")
    try:
        _, _, order = command.make_parser(ctx).parse_args(args=list(args))
    except typer.TyperException as error:
        name = getattr(error, "option_name", None)
        if name is None or not hasattr(error, "possibilities"):  # another fault than an unknown option
            raise
        raise ConfigError(f"{name} is not an option of {ctx.command_path}; {_hint(command, ctx, name)}") from None
    options = [param for param in order if param.param_type_name == "option"]
    for param in options:
        if not (param.multiple or param.is_flag) and options.count(param) > 1 and not ctx.resilient_parsing:
            raise ConfigError(f"{param.opts[0]} is given {options.count(param)} times; give it once")
    return [param.opts[0] for param in options]


def _hint(command: Any, ctx: Any, name: str) -> str:  # noqa: ANN401 - as above
    """Suggest the argument, option or config key with the nearest name."""
    arguments = [param.metavar for param in command.get_params(ctx) if param.param_type_name == "argument"]
    if name.lstrip("-").upper() in arguments:
        return f"write {ctx.command_path} {name.lstrip('-').upper()}"
    above = ctx.parent
    if above is not None and any(name in param.opts for param in above.command.get_params(above)):
        return f"write {above.command_path} {name}"
    words = {opt.lstrip("-"): opt for param in command.get_params(ctx) for opt in param.opts if opt.startswith("--")}
    if "param" in words:
        words = {key.replace("_", "-"): f"-p {key}=VALUE" for key in _config_keys()} | words
    near = difflib.get_close_matches(name.lstrip("-").replace("_", "-"), words, n=1)
    return f"did you mean {words[near[0]]}?" if near else f"see {ctx.command_path} --help"


def _config_keys() -> Collection[str]:
    from pbgeval.config.schema import EvalConfig, keys_of

    return keys_of(EvalConfig)


def _unexpected(ctx: Any, word: str) -> ConfigError:  # noqa: ANN401 - as above
    hint = f"see {ctx.command_path} --help"
    if word.partition("=")[0].partition(".")[0] in _config_keys():
        hint = f"did you mean -p {shlex.quote(word if '=' in word else f'{word}=VALUE')}?"
    return ConfigError(f"unexpected argument {word}; {hint}")


def _misplaced(
    ctx: Any,  # noqa: ANN401 - as above
    command: Any,  # noqa: ANN401 - as above
    given: Sequence[str],
    before: Sequence[str],
    rest: Sequence[str],
) -> ConfigError:
    """Explain that options precede a subcommand, and what to type instead."""
    foreign = [flag for flag in given if not any(flag in param.opts for param in command.get_params(ctx))]
    if foreign:
        return ConfigError(f"{foreign[0]} is not an option of {ctx.command_path} {rest[0]}; leave it out")
    return ConfigError(
        f"{given[0]} must follow the command {rest[0]}: {ctx.command_path} {shlex.join([*rest, *before])}"
    )


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
        "--workers",
        metavar="N",
        help="Local processes [default: one per GPU; without a GPU, up to one per core]. Changes no result.",
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
