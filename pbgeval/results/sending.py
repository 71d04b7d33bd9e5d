"""A finished result -> object storage: where it may go, and what must not be there."""

from __future__ import annotations

import re

from pbgeval.errors import OVERWRITE, OutputError, StorageError
from pbgeval.results.output import FILES, RESULT_FILES, listed_files
from pbgeval.results.result import METRICS, Result
from pbgeval.storage.json_files import parse_json
from pbgeval.storage.objects import names_below, put_object, read_object, remove_object
from pbgeval.storage.text import json_text, listed, without_secrets


def check_url(url: str) -> None:
    """Refuse a URL below which nothing can be written.

    Raises:
        OutputError: it names no place, or one that does not last.
    """
    place = re.split("[?#]", url)[0]
    shown = without_secrets(place, place)
    scheme, _, rest = url.partition("://")
    if place != url:
        raise OutputError(f"output: expected a URL without ? and #, got {shown} and more; leave that out")
    if not re.fullmatch("[a-z][a-z0-9+.-]*", scheme):
        raise OutputError(
            f"output: expected a URL such as s3://bucket/folder, or a local path without ://, got {shown}"
        )
    if scheme == "memory":
        raise OutputError(f"output: {shown} is gone when this process ends; choose s3://, gs://, abfs:// or file:///")
    if not rest.strip("/"):
        raise OutputError(f"output: expected a bucket or folder after ://, got {shown}")


def refuse_another_result(url: str, digest: str, *, overwrite: bool) -> None:
    """Look at what is below a URL.

    Raises:
        OutputError: another result is there, or what a run would write over and is of no result.
        StorageError: it cannot be read.
    """
    shown, found = without_secrets(url, url), read_object(f"{url.rstrip('/')}/{METRICS}")
    if found is None:
        if in_the_way := names_below(url) & {*RESULT_FILES, "ranks", "topk"}:
            raise OutputError(
                f"{shown}: found {listed(sorted(in_the_way))}, which a run writes, and no result; move them away, or "
                "choose another output"
            )
        return
    try:
        its_digest = parse_json(found)["provenance"]["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{shown}/{METRICS}: expected a result of pbgeval, got something else; move it away, or choose another "
            "output"
        ) from error
    if its_digest != digest and not overwrite:
        raise OutputError(f"{shown}: found another result; choose another output, or {OVERWRITE} to replace it")


def send_result(result: Result, url: str, *, overwrite: bool, is_kept: bool = True) -> None:
    """Copy a finished result below a URL, in place of an earlier one; until all is there, metrics.json is incomplete.

    Args:
        result: with its output directory.
        url: of the folder.
        overwrite: whether the earlier result may be another one.
        is_kept: whether the output directory outlasts a fault.

    Raises:
        OutputError: another result is there, or it cannot be written.
    """
    assert result.path is not None, "a result without an output directory has no files to send"
    url = url.rstrip("/")
    try:
        refuse_another_result(url, result.document["provenance"]["digest"], overwrite=overwrite)
        names = listed_files((result.path / FILES).read_bytes())
        earlier = listed_files(read_object(f"{url}/{FILES}") or b"")
        put_object(json_text({**result.document, "complete": False}).encode(), f"{url}/{METRICS}")
        for name in sorted(earlier - names):
            remove_object(f"{url}/{name}")
        for name in [*sorted(names - {METRICS}), METRICS]:
            put_object(result.path / name, f"{url}/{name}")
    except StorageError as error:
        kept = f"the result is in {result.path}: run the same command again to copy it"
        raise OutputError(f"{error}; {kept if is_kept else 'evaluate again, with a folder as output'}") from error
