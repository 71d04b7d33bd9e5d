"""Templates -> a page of HTML that needs nothing but itself, and where it is written.

The template escapes whatever it is given. A content security policy allows this page's own style and script, by their
hashes, and nothing else: no name in a result can become code, and nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pbgeval.errors import ConfigError, required
from pbgeval.results.output import PAGE_MARK, PAGES, refuse_others
from pbgeval.storage.text import is_url, without_secrets
from pbgeval.storage.writing import write_atomically
from pbgeval.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


def require_jinja2() -> ModuleType:
    """Return jinja2, without which there is no page.

    Raises:
        ConfigError: it is not installed.
    """
    with required(ConfigError, "jinja2 is required to write a page", "jinja2"):
        import jinja2
    return jinja2


def templates() -> Environment:
    """Return the templates.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    jinja2 = require_jinja2()
    found: Environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pbgeval.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return found


def render(template: str, script_name: str, **parts: Any) -> str:  # noqa: ANN401 - what the template names
    """Return the page that a template makes of its parts, with a script.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    style, script = (
        resources.files("pbgeval.report").joinpath("templates", name).read_text(encoding="utf-8")
        for name in ("page.css", script_name)
    )
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    )
    return (
        templates()
        .get_template(template)
        .render(version=__version__, style=style, script=script, policy=policy, **parts)
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def save(text: str, name: str, output: Path | str) -> str:
    """Write a text into a file, as `name` into a folder that exists, or to a URL; return where it is.

    The name of a new file without an ending gets that of `name`.

    Raises:
        OutputError: it cannot be written, or would replace a report.html in the folder that is not ours.
        StorageError: it cannot be written to the URL.
    """
    if isinstance(output, str) and is_url(output):
        from pbgeval.results.sending import check_url  # here: they import h5py, which pages in files do not need
        from pbgeval.storage.objects import put_object

        check_url(output)
        url = output if Path(output).suffix == Path(name).suffix else f"{output.rstrip('/')}/{name}"
        put_object(text.encode(), url)
        return without_secrets(url, url)
    target = Path(output)
    if not target.suffix and not target.exists() and not str(output).endswith("/"):
        target = target.with_name(f"{target.name}{Path(name).suffix}")
    if target.is_dir():
        target = target / name
        if name in PAGES:
            refuse_others(target, PAGE_MARK, "a page of kgeval-dist")
    write_atomically(target, text)
    return str(target)
