"""Build entry of pbgeval; pyproject.toml says what the package is and needs."""

from setuptools import setup

setup()
