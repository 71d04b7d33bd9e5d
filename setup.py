"""Build entry of pbgeval. Tools are configured in pyproject.toml; tested versions stand in constraints.txt."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"

setup(
    name="pbgeval",
    version=runpy.run_path(str(HERE / "pbgeval" / "version.py"))["__version__"],
    description="How well trained graph embeddings rank the true edges of a graph that may not fit one machine",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="The pbgeval authors",
    license="BSD-3-Clause",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=find_packages(include=["pbgeval", "pbgeval.*"]),
    package_data={"pbgeval": ["py.typed"], "pbgeval.report.page": ["*.html", "*.css", "*.js"]},
    zip_safe=False,
    install_requires=[
        "torch>=2.11",
        "numpy",
        "h5py",
        "attrs",
        "cattrs",
        "typer",
        "rich",
        "numba",
    ],
    extras_require={
        "slurm": ["submitit"],
        "gpu": ["triton"],
        "monitor": ["matplotlib", "tensorboard"],
        "wandb": ["wandb"],
        "mlflow": ["mlflow-skinny"],
        "pykeen": ["pandas"],
        "import": ["duckdb"],
        "report": ["jinja2"],
        "s3": ["fsspec", "s3fs"],
        "moto": ["moto[s3]", "flask", "flask-cors"],
        "browser": ["axe-playwright-python", "playwright"],
        "dev": [
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis",
            "ruff",
            "mypy",
            "packaging",
            "import-linter",
            "plastex",
        ],
    },
    entry_points={"console_scripts": ["kgeval-dist = pbgeval.__main__:main"]},
)
