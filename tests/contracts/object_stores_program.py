"""A program for an environment with gcsfs and adlfs: the command on objects of a service, and on what is not there.

python object_stores_program.py SCHEME FOLDER    puts the case in FOLDER into the service and evaluates it; writes how
                                                 each command ended and the objects of the result to FOLDER/found.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fsspec

from tests.kit.commands import run_main


def main(scheme: str, case: Path) -> None:
    """Run the commands in this process."""
    url = f"{scheme}://bucket"
    system = fsspec.filesystem(scheme, skip_instance_cache=True)
    system.mkdir("bucket")
    system.put(f"{case}/.", "bucket/case", recursive=True)
    places = {"entity_path": "entity", "checkpoint_path": "checkpoint", "edge_paths": "edges"}
    of_objects = [part for key, name in places.items() for part in ("-p", f"{key}={url}/case/{name}")]
    run = ["run", "eval.py", "--workers", "1", "--quiet", "--output"]
    commands = {
        "local": [*run, f"{url}/result"],
        "again": [*run, f"{url}/result"],
        "other": [*run, f"{url}/result", "-p", "hits_at=7"],
        "remote": [*run, "far", *of_objects],
        "report": ["report", "far", "--output", f"{url}/pages"],
        "nowhere/result": [*run, f"{scheme}://nowhere/result"],
        "nowhere/x": [*run, "x", "-p", f"checkpoint_path={scheme}://nowhere/x"],
    }
    ended = {}
    for name, arguments in commands.items():
        done = run_main(*arguments, cwd=case)
        ended[name] = (done.status, done.out, done.err)
    [folder] = (case / "results").glob("eval-*")
    files = (folder / "files.txt").read_text().split()
    objects = {name: system.cat_file(f"bucket/result/{name}").decode("latin-1") for name in files}
    (case / "found.json").write_text(json.dumps({"ended": ended, "objects": objects}), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
