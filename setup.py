"""Build entry of pbgeval. Tools are configured in pyproject.toml; tested versions stand in constraints.txt.

Each requirement has the lowest version that was tested (docs/log.md says how); constraints.txt has the highest.
"""

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
    package_data={"pbgeval": ["py.typed"], "pbgeval.report": ["templates/*"]},
    zip_safe=False,
    install_requires=[
        "torch>=2.6.0",
        "numpy>=2.0.2",
        "h5py>=3.12.1",
        "attrs>=23.2.0",
        "typer>=0.27.3",
        "rich>=13.8.0",
        "numba>=0.60.0",
    ],
    extras_require={
        "slurm": ["submitit>=1.5.2"],
        "gpu": ["triton>=3.4.0"],
        "monitor": ["tensorboard>=2.18.0"],
        "pandas": ["pandas>=2.2.2"],
        "import": ["duckdb>=1.5.6"],
        "tables": ["pyarrow>=18.1.0", "safetensors>=0.5.0"],
        "report": ["jinja2>=3.1.4"],
        "s3": ["fsspec>=2024.12.0", "s3fs>=2024.12.0"],
        "moto": ["moto[s3]>=5.2.5", "flask>=3.1.3", "flask-cors>=6.0.5"],
        "docs": ["zensical>=0.0.73", "mkdocstrings[python]>=1.0.8"],
        "browser": ["axe-playwright-python>=0.1.8", "playwright>=1.65.2"],
        "dev": [
            "pytest>=9.2.0",
            "pytest-timeout>=2.4.0",
            "pytest-xdist>=3.8.0",
            "hypothesis>=6.170.15",
            "ruff>=0.17.5",
            "mypy>=2.4.1",
            "packaging>=26.3",
            "import-linter>=2.16",
            "plastex>=3.1",
            "sybil>=10.1",
        ],
    },
    entry_points={"console_scripts": ["kgeval-dist = pbgeval.__main__:main"]},
)
