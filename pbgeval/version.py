"""The version of pbgeval, in one place: setup.py and the reports' provenance read it here."""

__version__ = "0.1.0"
