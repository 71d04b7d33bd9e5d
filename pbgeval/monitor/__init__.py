"""The in-training monitor; read `monitor.py` first."""
