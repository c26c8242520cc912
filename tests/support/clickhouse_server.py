"""A real ClickHouse server for tests, over its own HTTP interface: whichever is at hand, in this order.

1. `CLICKHOUSE_TEST_URL`, a server that somebody else runs.
2. A container, where an engine for them answers.
3. The listener that is inside a library of npm: `@chdb/lib-linux-x64-gnu` of exactly this version has the whole server, and one
   function that starts it. `make server-tier` fetches it (178 MB).
4. None: then tests that want it are skipped and say why.

    python -m tests.support.clickhouse_server prepare       says which it is, and fetches the third if it has to
    python -m tests.support.clickhouse_server run LIBRARY DIRECTORY PORT      is the third; it ends with its standard input
"""

import ctypes
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from adapters.ports import free_port

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "@chdb/lib-linux-x64-gnu"
VERSION: Final = "26.7.3-stable.1"
"""Not the newest one: later and earlier ones lack the listener."""
_CONFIG: Final = """\
<clickhouse>
  <max_server_memory_usage>2147483648</max_server_memory_usage>
  <mark_cache_size>67108864</mark_cache_size>
</clickhouse>
"""
_START_S: Final = 60


class NoServerError(Exception):
    """No server is at hand, for the reason it says."""


def place_of_library() -> Path:
    """Return where the library is, or would be."""
    base = Path(os.environ.get("LEASEWAY_CLICKHOUSE_LIBRARY") or Path(sys.prefix) / "clickhouse")
    return base if base.suffix == ".so" else base / "node_modules" / PACKAGE / "libchdb.so"


def docker_answers() -> bool:
    """Tell whether an engine for containers answers a ping."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        return subprocess.run([docker, "info"], capture_output=True, timeout=5, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def a_server(directory: Path) -> Iterator[str]:
    """Yield the dsn of a running server.

    Raises:
        NoServerError: none is at hand.
    """
    if url := os.environ.get("CLICKHOUSE_TEST_URL", ""):
        yield url
    elif docker_answers():
        with _container() as url:
            yield url
    elif place_of_library().is_file():
        with _listener(directory) as url:
            yield url
    else:
        raise NoServerError(
            f"CLICKHOUSE_TEST_URL is not set, no docker answers, and {PACKAGE} is not there (make server-tier)"
        )


@contextmanager
def _container() -> Iterator[str]:
    from testcontainers.community.clickhouse import (  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415
        ClickHouseContainer,
    )

    with ClickHouseContainer("clickhouse/clickhouse-server:26.3", username="test", password="test") as container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(8123)
        yield f"http://test:test@{host}:{port}/"


@contextmanager
def _listener(directory: Path) -> Iterator[str]:
    port = free_port()
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, "run", str(place_of_library()), str(directory), str(port)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        _until_it_answers(port, child)
        yield f"http://127.0.0.1:{port}/"
    finally:
        assert child.stdin is not None
        child.stdin.close()  # its end
        try:
            child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _until_it_answers(port: int, child: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise NoServerError(f"the listener ended with {child.returncode} before it answered")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2):
                return
        except OSError:
            time.sleep(0.1)  # it says nothing when it is ready
    raise NoServerError(f"the listener did not answer within {_START_S} s")


def run(library: str, directory: str, port: str) -> None:
    """Be the server until standard input ends."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    config = Path(directory) / "test.xml"
    config.write_text(_CONFIG)
    loaded = ctypes.CDLL(library)
    start = loaded.chdb_query_cmdline
    start.restype, start.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    loaded.chdb_result_error.restype, loaded.chdb_result_error.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    said = [
        "clickhouse",
        f"--path={directory}",
        f"--http_port={port}",
        "--listen_host=127.0.0.1",
        f"--config-file={config}",
        "--query",
        "SYSTEM START LISTEN HTTP; SELECT count() FROM file('/dev/stdin', 'LineAsString', 'line String') FORMAT Null",
    ]
    words: Any = (ctypes.c_char_p * len(said))(*(word.encode() for word in said))
    result = start(len(said), words)
    if result and (error := loaded.chdb_result_error(result)):
        sys.exit(error.decode())


def prepare() -> None:
    """Say which server tests will use; fetch the library if it is the one and is not there."""
    if os.environ.get("CLICKHOUSE_TEST_URL"):
        sys.stdout.write("the server of CLICKHOUSE_TEST_URL\n")
    elif docker_answers():
        sys.stdout.write("a container\n")
    else:
        library = place_of_library()
        if not library.is_file():
            npm = shutil.which("npm")
            if npm is None:
                sys.exit("no docker answers and there is no npm: set CLICKHOUSE_TEST_URL")
            base = library.parents[3]
            base.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [npm, "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(base), f"{PACKAGE}@{VERSION}"],
                check=True,
            )
        sys.stdout.write(f"the listener of {PACKAGE} {VERSION}\n")


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare()
    else:
        run(*sys.argv[2:5])
