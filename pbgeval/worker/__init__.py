"""One worker's part of a run: read `run.py` first."""
