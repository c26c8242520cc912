"""Provisioning a real server."""

import pytest

from tests.support.nats import ServerUnderTest

pytestmark = pytest.mark.real


async def test_a_node_added_later_speaks_at_once_and_nobody_is_disconnected(nats_server: ServerUnderTest) -> None:
    lost: list[str] = []

    async def disconnected() -> None:
        lost.append("n1")

    before = await nats_server.client("n1", disconnected_cb=disconnected)
    added = await nats_server.add_nodes({"n3": "http://127.0.0.1:8103"})
    assert added.consumers_made == ("LW_CONTROL/n3", "LW_DECISIONS/n3")
    after = await nats_server.client("n3")
    assert b'"seq":1}' in (await after.request("lw.local.node.n3.status.registered", b"{}")).data
    assert b'"seq":2}' in (await before.request("lw.local.node.n1.status.registered", b"{}")).data
    assert lost == []
