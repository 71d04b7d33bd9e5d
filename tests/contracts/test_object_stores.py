"""Objects at gs:// and abfs://, by the emulators of their services on loopback; s3:// has tests of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import frozen

from tests.kit.case import TinyCase
from tests.kit.commands import start
from tests.patience import PATIENCE

pytestmark = pytest.mark.peers

REPOSITORY = Path(__file__).resolve().parents[2]
# The account that everybody may use with Azure's emulator; its documentation has the key.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ACCOUNT = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint="


@frozen
class Store:
    scheme: str
    python: Path
    environment: dict[str, str]

    def run(self, *arguments: object, cwd: Path, **environment: str) -> tuple[int, str, str]:
        """Run the peer's Python; return status, stdout and stderr."""
        own = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        variables = own | self.environment | environment
        done = start([self.python, *map(str, arguments)], cwd, **variables)
        return done.status, done.out, done.err

    def ask(self, code: str, cwd: Path) -> str:
        """Run a few lines that have the file system."""
        before = f"import fsspec, json; system = fsspec.filesystem({self.scheme!r}, skip_instance_cache=True)\n"
        status, out, error = self.run("-c", before + code, cwd=cwd)
        assert status == 0, error
        return out


@pytest.fixture(scope="module", params=["gs", "abfs"])
def store(request: pytest.FixtureRequest, peer: Callable[[str], Path]) -> Iterator[Store]:
    scheme, programs = request.param, peer("objects")
    azurite = programs.parent / "node_modules" / ".bin" / "azurite-blob"
    if scheme == "abfs" and not azurite.exists():
        pytest.skip("no npm, which installs Azure's emulator")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    if scheme == "gs":
        command = [programs / "gcp-storage-emulator", "start", "--host", "127.0.0.1", "--port", port, "--in-memory"]
        found = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "FSSPEC_GS_TOKEN": "anon"}
        found["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks by gRPC, which the emulator does not speak
    else:
        command = [azurite, "--blobHost", "127.0.0.1", "--blobPort", port, "--inMemoryPersistence", "--silent"]
        command += ["--disableTelemetry", "--skipApiVersionCheck", "--loose"]
        found = {"AZURE_STORAGE_CONNECTION_STRING": f"{ACCOUNT}http://127.0.0.1:{port}/devstoreaccount1;"}
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield Store(scheme, programs / "python", found)
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    last = time.monotonic() + PATIENCE
    while time.monotonic() < last:
        assert process.poll() is None, "the emulator has ended"
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionError:
            time.sleep(0.1)
    raise AssertionError("the emulator does not answer")


def test_objects_of_other_services_are_read_and_written(store: Store, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8), edges_per_bucket=11)
    url = f"{store.scheme}://bucket"
    places = {"entity_path": "entity", "checkpoint_path": "checkpoint", "edge_paths": "edges"}
    store.ask("system.mkdir('bucket')\nsystem.put('.', 'bucket/case', recursive=True)", case.root)
    run = ("-m", "pbgeval", "run", "eval.py", "--workers", "1", "--quiet")
    of_objects = [part for key, name in places.items() for part in ("-p", f"{key}={url}/case/{name}")]

    local = store.run(*run, "--output", f"{url}/result", cwd=case.root)
    again = store.run(*run, "--output", f"{url}/result", cwd=case.root)
    other = store.run(*run, "--output", f"{url}/result", "-p", "hits_at=7", cwd=case.root)
    remote = store.run(*run, "--output", "far", *of_objects, cwd=case.root)
    report = store.run("-m", "pbgeval", "report", "far", "--output", f"{url}/pages", cwd=case.root)

    assert local == again == remote == (0, "", "")
    assert other[0] == 1
    assert other[2].startswith(f"{url}/result: found another result; choose another output")
    assert report == (0, f"{url}/pages/report.html\n", "")
    [folder] = (case.root / "results").iterdir()
    files = (folder / "files.txt").read_text().split()
    text = f"{{name: system.cat_file(f'bucket/result/{{name}}').decode('latin-1') for name in {files!r}}}"
    found = json.loads(store.ask(f"print(json.dumps({text}))", case.root))
    assert {name: (folder / name).read_bytes().decode("latin-1") for name in files} == found
    documents = [json.loads((path / "metrics.json").read_text()) for path in (folder, case.root / "far")]
    assert documents[0]["metrics"] == documents[1]["metrics"]


def test_faults_of_other_services_are_one_line(store: Store, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8), edges_per_bucket=11)
    run = ("-m", "pbgeval", "run", "eval.py", "--workers", "1", "--quiet")

    missing = store.run(*run, "--output", f"{store.scheme}://nowhere/result", cwd=case.root)
    absent = store.run(*run, "--output", "x", "-p", f"checkpoint_path={store.scheme}://nowhere/x", cwd=case.root)

    for (status, out, error), place in ((missing, "nowhere/result"), (absent, "nowhere/x")):
        assert (status, out, error.count("\n")) == (1, "", 1), error
        assert error.startswith(f"{store.scheme}://{place}")
        assert "no object or prefix of that name" in error
