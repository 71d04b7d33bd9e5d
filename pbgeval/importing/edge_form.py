"""What the columns of files of edges mean."""

from __future__ import annotations

from attrs import frozen

from pbgeval.errors import ConfigError

COLUMNS = {"h": "lhs", "r": "rel", "t": "rhs", "w": "weight"}
_IGNORED = "_"


@frozen
class ColumnForm:
    """Which columns hold what."""

    order: str = "hrt"  # of text without header: h head (lhs), r relation, t tail (rhs), w weight, _ ignored
    names: tuple[str, ...] | None = None  # in Parquet, and in the header of text: head, relation, tail[, weight]
    order_flag: str = "--order"  # where a user has said it, for messages
    names_flag: str = "--columns"

    def __attrs_post_init__(self) -> None:
        used = sorted(self.order.replace(_IGNORED, ""))
        if used not in (sorted("hrt"), sorted("hrtw")):
            raise ConfigError(
                f"{self.order_flag} {self.order}: expected h, r and t once each (head, relation, tail), perhaps w "
                "(weight), and _ for columns to ignore"
            )
        if self.names is not None and (len(self.names) not in (3, 4) or len(set(self.names)) != len(self.names)):
            raise ConfigError(
                f"{self.names_flag} {','.join(self.names)}: expected the names of three columns, HEAD,RELATION,TAIL, "
                "or four with WEIGHT"
            )

    @property
    def has_weight(self) -> bool:
        """Whether edges have weights."""
        return "w" in self.order if self.names is None else len(self.names) == 4

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of ours, in the order of PBG's files."""
        return ("lhs", "rel", "rhs", "weight") if self.has_weight else ("lhs", "rel", "rhs")

    def chosen(self) -> dict[str, str]:
        """Return the file's column of each of ours; columns of text without header are c0, c1, ..."""
        if self.names is None:
            return {COLUMNS[letter]: f"c{at}" for at, letter in enumerate(self.order) if letter != _IGNORED}
        return dict(zip(("lhs", "rel", "rhs", "weight"), self.names, strict=False))
