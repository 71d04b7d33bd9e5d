"""moto's server as a process of this machine, and objects in its buckets."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from tests.clusters import wait_until
from tests.kit.groups import free_port
from tests.patience import PATIENCE

# Who asks; the server does not look at the signature.
_SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@frozen
class ObjectStore:
    """A server that speaks S3, on loopback."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to find it, and to look nowhere else."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def make_bucket(self, bucket: str) -> None:
        self._ask("PUT", bucket)

    def put(self, key: str, content: bytes) -> None:
        """Write an object; its key begins with the bucket."""
        self._ask("PUT", key, content)

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        return self._ask("GET", key)

    def remove(self, key: str) -> None:
        self._ask("DELETE", key)

    def upload(self, folder: Path, prefix: str) -> None:
        """Write every file below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        headers = {
            "Content-Type": "application/octet-stream",  # else the server takes content for a form
            "Authorization": _SIGNED,  # else no client may replace or delete an object
        }
        request = urllib.request.Request(f"{self.endpoint}/{path}", data=content, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            found: bytes = answer.read()
        return found


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start a server on a free port; it ends with the context."""
    port = free_port()
    store = ObjectStore(f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_it_answers(store, server)
        yield store
    finally:
        server.terminate()
        server.wait()


def _wait_until_it_answers(store: ObjectStore, server: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert server.poll() is None, "moto's server has ended: is moto[s3] with flask and flask-cors installed?"
        with suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{store.endpoint}/moto-api/", timeout=PATIENCE).close()
            return True
        return False

    wait_until(answers, "moto's server does not answer")
