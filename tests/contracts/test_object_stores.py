"""Objects at gs:// and abfs://, by the emulators of their services on loopback; s3:// has tests of its own."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.clusters import wait_until
from tests.kit.case import TinyCase
from tests.kit.commands import metrics_of, run_program
from tests.kit.groups import free_port

pytestmark = pytest.mark.peers

PROGRAM = Path(__file__).with_name("object_stores_program.py")
# The account that everybody may use with Azure's emulator; its documentation has the key.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ACCOUNT = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint="


@pytest.fixture(scope="module", params=["gs", "abfs"])
def asked(
    request: pytest.FixtureRequest, peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """What object_stores_program.py has found at a service: how commands ended (status, out, err), and objects."""
    scheme, programs = request.param, peer("objects")
    azurite = programs.parent / "node_modules" / ".bin" / "azurite-blob"
    if scheme == "abfs" and not azurite.exists():
        pytest.skip("no npm, which installs Azure's emulator")
    port = free_port()
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
        wait_until(lambda: answers(port, process), "the emulator does not answer")
        case = TinyCase.write(tmp_path_factory.mktemp("case"), partition_sizes=(9, 8), edges_per_bucket=11)
        run_program(programs / "python", PROGRAM, scheme, case.root, **found)
    finally:
        process.terminate()
        process.wait()
    said = json.loads((case.root / "found.json").read_text())
    ended = {name: tuple(each) for name, each in said["ended"].items()}
    return SimpleNamespace(scheme=scheme, case=case, ended=ended, objects=said["objects"])


def answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the emulator has ended"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_objects_of_other_services_are_read_and_written(asked: SimpleNamespace) -> None:
    url, ended = f"{asked.scheme}://bucket", asked.ended

    assert ended["local"] == ended["again"] == ended["remote"] == (0, "", "")
    assert ended["other"][0] == 1
    assert ended["other"][2].startswith(f"{url}/result: found another result; choose another output")
    assert ended["report"] == (0, f"{url}/pages/report.html\n", "")
    [folder] = (asked.case.root / "results").iterdir()
    files = (folder / "files.txt").read_text().split()
    assert {name: (folder / name).read_bytes().decode("latin-1") for name in files} == asked.objects
    assert metrics_of(folder)["metrics"] == metrics_of(asked.case.root / "far")["metrics"]


def test_faults_of_other_services_are_one_line(asked: SimpleNamespace) -> None:
    for place in ("nowhere/result", "nowhere/x"):
        status, out, error = asked.ended[place]
        assert (status, out, error.count("\n")) == (1, "", 1), error
        assert error.startswith(f"{asked.scheme}://{place}")
        assert "no object or prefix of that name" in error
