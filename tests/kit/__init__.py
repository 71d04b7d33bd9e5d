"""What tests build their input from: small graphs, configs, checkpoints, files of names, results, rows of bad input.

`case.TinyCase` writes files whose content does not matter, and `commands` run on it. `graphs.tiny_graphs` draws graphs
that a slow reference can rank too, and `on_disk.write_graph` writes those.
"""
