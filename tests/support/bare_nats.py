"""A nats-server without accounts, for what needs streams and no rights: fast to start, made for a whole module."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.nats.server import find_binary
from adapters.ports import HOST, free_port


@contextmanager
def bare_server(folder: Path) -> Iterator[str]:
    """Yield the url of a server that may still be starting: clients try until it answers."""
    port = free_port()
    config = folder / "bare.conf"
    config.write_text(f"listen: {json.dumps(f'{HOST}:{port}')}\njetstream {{ store_dir: {json.dumps(str(folder))} }}\n")
    with (folder / "bare.log").open("wb") as log:
        child = subprocess.Popen([find_binary(), "-c", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield f"nats://{HOST}:{port}"
    finally:
        child.terminate()
        child.wait(10)


@pytest.fixture(scope="module")
def bare_nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of one server for all tests of a module."""
    with bare_server(tmp_path_factory.mktemp("bare-nats")) as url:
        yield url
