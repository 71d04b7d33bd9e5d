"""What a run imports: readers of foreign models and importers of edges by name only where they are asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.kit.case import TinyCase
from tests.kit.commands import run_program

EVALUATION = """
import json, sys
import pbgeval
pbgeval.evaluate("eval.py", output="output", workers=1, device="cpu")
print(json.dumps(sorted(name for name in sys.modules if name.startswith("pbgeval."))))
"""


def test_an_evaluation_of_buckets_imports_no_importer_and_no_reader_of_foreign_models(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path)

    found = json.loads(run_program(sys.executable, "-c", EVALUATION, cwd=case.root))

    unasked = ("pbgeval.importing", "pbgeval.models.opening", "pbgeval.models.arrays", "pbgeval.models.pickles")
    assert "pbgeval.evaluation" in found
    assert [name for name in found if name.startswith(unasked)] == []
