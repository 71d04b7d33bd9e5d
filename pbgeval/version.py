"""The version of pbgeval, in one place: pyproject.toml and the reports' provenance read it here."""

__version__ = "0.1.0"
