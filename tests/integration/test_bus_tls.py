"""TLS on the bus, as the page on clusters says it: `tls://` in the url, the authority in SSL_CERT_FILE, nothing else changes."""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from adapters.nats.connection import connect
from adapters.nats.preflight import preflight
from adapters.nats.provision import provision
from adapters.nats.server import NatsServer
from domain.errors import BusError
from domain.subjects import CONTROL
from tests.support.nats import CLUSTER, NODES, ServerUnderTest

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with"),
]


def made(folder: Path) -> Path:
    """Make an authority and a server's certificate by it in `folder`; return the authority's."""
    folder.mkdir()
    name = "subjectAltName=IP:127.0.0.1"
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    for words in (
        f"req -x509 {key} -days 2 -subj /CN=authority -keyout ca.key -out ca.crt",
        f"req {key} -subj /CN=nats -addext {name} -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy -out server.crt",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True, timeout=30)
    return folder / "ca.crt"


class TlsServer(NatsServer):
    """A server that speaks to clients by TLS alone."""

    @property
    def url(self) -> str:
        return super().url.replace("nats://", "tls://")

    def render(self) -> str:
        files = {name: str(self.data / "tls" / f"server.{name}") for name in ("crt", "key")}
        block = f"tls {{ cert_file: {json.dumps(files['crt'])}, key_file: {json.dumps(files['key'])} }}\n"
        return block + super().render()


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerUnderTest]:
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(made(data / "tls")))
    running = TlsServer(data, cluster=CLUSTER, port=0, monitor_port=0)
    await running.start()
    try:
        provisioned = await provision(data, running.url, CLUSTER, "strict", NODES, gateways={"main": ""})
        yield ServerUnderTest(data, [running], provisioned)
    finally:
        await running.stop()


async def test_a_bus_by_tls_is_provisioned_and_found_sound_and_used_as_any_other(server: ServerUnderTest):
    report = await preflight(server.data, server.url, CLUSTER, "strict")
    assert report.refusals == ()
    bus = await connect(server.url, server.credentials("master"), name="master")
    assert (await bus.stream(CONTROL).bounds()).last == 0
    await bus.close()


async def test_a_server_whose_authority_nobody_named_is_not_trusted(
    server: ServerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(made(tmp_path / "others")))
    with pytest.raises(BusError, match=r"certificate verify failed"):
        await connect(server.url, server.credentials("master"), name="master", wait_s=1.5)


async def test_a_server_that_wants_tls_gets_it_also_where_the_url_does_not_say_so(server: ServerUnderTest):
    bus = await connect(server.url.replace("tls://", "nats://"), server.credentials("master"), name="by-nats-url")
    async with (
        aiohttp.ClientSession(server.server.monitor_url) as client,
        client.get("/connz", params={"state": "open"}) as answer,
    ):
        found = {each["name"]: each for each in (await answer.json())["connections"]}
    assert found["by-nats-url"]["tls_version"] in {"1.2", "1.3"}
    await bus.close()
