"""Fifty stale masters in a row, on one server and on three (`make stale`); one round each is in test_master_on_the_bus."""

import os
from pathlib import Path

import pytest

from tests.integration.test_master_on_the_bus import begin, stale_master
from tests.support.cluster import cluster_on
from tests.support.nats import provisioned_cluster, provisioned_server

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(1800)]
ROUNDS = int(os.environ.get("LEASEWAY_ROUNDS", "50"))


@pytest.mark.parametrize("servers", [1, 3])
async def test_every_stale_master_is_refused_and_knows_it(servers: int, tmp_path: Path):
    context = provisioned_server(tmp_path / "data") if servers == 1 else provisioned_cluster(tmp_path / "data")
    async with context as server, cluster_on(server) as cluster:
        await begin(cluster)
        for round_ in range(ROUNDS):
            await stale_master(cluster, round_)
        assert (await cluster.verify()).clean
