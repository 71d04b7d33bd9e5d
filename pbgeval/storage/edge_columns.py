"""What users say about files of edges -> which columns hold what, and how text is cut into them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from pbgeval.errors import ConfigError
from pbgeval.storage.text import TEXT_OF_EDGES, edge_file_type, listed

COLUMNS = {"h": "lhs", "r": "rel", "t": "rhs", "w": "weight", "s": "time"}
TYPES = {"weight": "DOUBLE", "time": "BIGINT"}  # of the table; others are text
_ENDS = {"h": "head", "r": "relation", "t": "tail"}
_IGNORED = "_"
_DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
_SAID = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "single spaces", "|": "pipes"}

NO_RELATION = "edge"  # name of the only relation, where files have no relations and no option names it

# What the field calls both ends, and relations: in Parquet without an option, and in headers that are warned of.
ENDS_BY_NAME = (
    ("lhs", "rhs"),
    ("head", "tail"),
    ("subject", "object"),
    ("source", "target"),
    ("h", "t"),
    ("s", "o"),
    ("src", "dst"),
)
RELATIONS_BY_NAME = ("rel", "relation", "predicate", "r", "p")
HEADER_WORDS = frozenset(
    [*(name for pair in ENDS_BY_NAME for name in pair), *RELATIONS_BY_NAME, "from", "to", "property", "edge"]
)


@frozen
class ColumnForm:
    """Which columns hold what, and how lines of text are cut."""

    order: str = "hrt"  # of text without header: h head (lhs), r relation, t tail (rhs), w weight, s time, _ ignored
    # In Parquet, and in the header of text: head, relation, tail[, weight[, time]]; "": no relation, or no weight.
    names: tuple[str, ...] | None = None
    delimiter: str | None = None  # of text; None: a comma in .csv, else a tab
    comment: str | None = None  # lines of text that begin with it are passed over
    flag: str = "--edge-columns"  # where the user sets it, for messages; "": nowhere

    @classmethod
    def parse(cls, text: str | None, flag: str = "--edge-columns") -> ColumnForm:
        """Read letters such as `hrt`, or names with commas.

        Raises:
            ConfigError: it is neither.
        """
        if text and "," in text:
            return cls(names=tuple(text.split(",")), flag=flag)
        return cls(flag=flag) if text is None else cls(text, flag=flag)

    def __attrs_post_init__(self) -> None:
        used, names = sorted(self.order.replace(_IGNORED, "")), self.names or ()
        given = [name for name in names if name]
        if len(set(used)) != len(used) or not set("ht") <= set(used) <= COLUMNS.keys():
            raise ConfigError(
                f"{self.flag} {self.order}: expected h, r and t once each (head, relation, tail; ht where there is no "
                "relation), optionally w (weight) and s (time), and _ for columns to ignore"
            )
        if self.names is not None and (
            len(names) not in (3, 4, 5) or len(set(given)) != len(given) or not (names[0] and names[2] and names[-1])
        ):
            raise ConfigError(
                f"{self.flag} {','.join(names)}: expected the names of three columns, HEAD,RELATION,TAIL (HEAD,,TAIL "
                "where there is no relation), or four with WEIGHT, or five with TIME after it"
            )
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ConfigError(
                f"{self.flag_of('delimiter')} {self.delimiter!r}: expected one character, or {listed([*_DELIMITERS])}"
            )
        if self.comment is not None and (not self.comment or not self.comment.isprintable()):
            raise ConfigError(
                f"{self.flag_of('comment')} {self.comment!r}: expected what lines of comments begin with, such as '#'"
            )

    def flag_of(self, setting: str) -> str:
        """Return where the user sets `delimiter` or `comment`, for messages."""
        return f"--{setting}" if self.flag.startswith("--") else f"edge_{setting}"

    def advice(self, text: str) -> str:
        """Return the end of a message about what the user may set."""
        return f"; {text}" if self.flag else ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of ours that the file has, in the order of PBG's files."""
        return tuple(name for name in COLUMNS.values() if name in self.chosen())

    @property
    def reading(self) -> str:
        """Say how the columns are read, for messages about unknown names: the order may be another."""
        columns = "" if self.names is None else f" {', '.join(name for name in self.names[:3] if name)}"
        letters = self.order if self.names is None else "hrt"
        order = [_ENDS[letter] for letter in letters if letter in _ENDS and COLUMNS[letter] in self.chosen()]
        return f"the columns{columns} are read as {', '.join(order)} ({self.flag} changes this)"

    def chosen(self) -> dict[str, str]:
        """Return the file's column of each of ours; columns of text without header are c0, c1, ..."""
        if self.names is None:
            return {ours: f"c{at}" for ours, at in self.places().items()}
        return {ours: theirs for ours, theirs in zip(COLUMNS.values(), self.names, strict=False) if theirs}

    def places(self) -> dict[str, int]:
        """Return which column of text without header each of ours is."""
        return {COLUMNS[letter]: at for at, letter in enumerate(self.order) if letter != _IGNORED}

    def delimiter_in(self, path: Path) -> str:
        """Return what separates the columns of a text file."""
        return self.delimiter or ("," if is_csv(path) else "\t")

    def separated(self, path: Path) -> str:
        """Say what separates the columns of a text file."""
        delimiter = self.delimiter_in(path)
        return f"separated by {_SAID.get(delimiter, repr(delimiter))}"


def is_csv(path: Path) -> bool:
    """Return whether fields may be quoted, as RFC 4180 says, by the name of the file."""
    return ".csv" in [suffix.lower() for suffix in path.suffixes[-2:]]


@frozen
class EdgeForms:
    """How several files are read: all alike but for those of some types or names."""

    common: ColumnForm = field(factory=ColumnForm)
    special: Mapping[str, ColumnForm] = {}  # by type of file, or by the name of edges

    @classmethod
    def parse(
        cls,
        texts: Sequence[str],
        names: Collection[str] = (),
        delimiter: str | None = None,
        comment: str | None = None,
        flag: str = "--edge-columns",
    ) -> EdgeForms:
        """Read `COLUMNS`, `TYPE=COLUMNS` and `NAME=COLUMNS`.

        Args:
            texts: of columns; the last one counts.
            names: of edges that may have columns of their own.
            delimiter: of all text; a character or its name.
            comment: what lines of comments begin with, in all text.
            flag: where the user sets the columns, for messages.

        Raises:
            ConfigError: one is of no such form.
        """
        common = evolve(
            ColumnForm(flag=flag),
            delimiter=None if delimiter is None else _DELIMITERS.get(delimiter, delimiter),
            comment=comment,
        )
        special: dict[str, ColumnForm] = {}
        for text in texts:
            of, equals, columns = text.partition("=")
            is_special = bool(equals) and (of in names or of in (*TEXT_OF_EDGES, "parquet"))
            if equals and not is_special and "," not in of:
                found = listed([*TEXT_OF_EDGES, "parquet", *names], limit=12)
                raise ConfigError(f"{flag} {text}: {of} is no type of file and no name of edges; choose from {found}")
            form = ColumnForm.parse(columns if is_special else text, flag)
            form = evolve(form, delimiter=common.delimiter, comment=common.comment)
            if is_special:
                special[of] = form
            else:
                common = form
        return cls(common, special)

    def of(self, path: Path, name: str | None = None) -> ColumnForm:
        """Return how a file is read, by the name of its edges, else its type."""
        keys = (path.name if name is None else name, edge_file_type(path) or "")
        return next((self.special[key] for key in keys if key in self.special), self.common)
