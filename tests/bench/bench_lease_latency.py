"""From a fact published to the lease at its owner, on a real, synced server: `python -m tests.bench.bench_lease_latency`.

50 nodes with 4 models each are in the state. Every round one owner states a `held` fact that makes a lease; the time is taken
from just before the publish to the moment the owner's follower hands over the granted lease with a good signature.
"""

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from adapters.keys import Verifier
from domain.events import Cancelled, LeaseGranted, LinkAdded, ModelInfo, Registered, codec
from domain.ids import ModelId, NodeId, RequestId, link_id
from domain.subjects import DECISIONS
from tests.bench.arguments import parser_of
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, started
from tests.support.nats import provisioned_server
from tests.support.waiting import until

ROUNDS = int(os.environ.get("ROUNDS", "400"))
NODES = [f"n{i:02}" for i in range(50)]
MODELS = [f"m{i}" for i in range(4)]


async def main() -> None:
    """Run it and print percentiles."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = dict.fromkeys(NODES, "http://127.0.0.1:1")
        async with provisioned_server(Path(folder), nodes=nodes) as server, cluster_on(server) as cluster:
            await prepare(cluster)
            took = [await one(cluster, i) for i in range(-20, ROUNDS)][20:]
    cuts = statistics.quantiles(took, n=100)
    print(f"fact published -> lease at its owner, synced, 50 nodes, 200 models, {ROUNDS} rounds:")
    print(f"p50 {cuts[49] * 1e3:.2f} ms   p90 {cuts[89] * 1e3:.2f} ms   p99 {cuts[98] * 1e3:.2f} ms")


async def prepare(cluster: ClusterUnderTest) -> None:
    """Start a master, register all nodes, link the first to the second, and follow the feed as the first."""
    loop, _ = await cluster.master()
    infos = tuple(ModelInfo(id=ModelId(model), local_id=model, context=8192) for model in MODELS)
    for name in NODES:
        await cluster.state(name, Registered(url="http://h", models=infos, version="1", depth=2))
    ids = (NodeId(NODES[0]), ModelId("m0"), NodeId(NODES[1]), ModelId("m0"))
    await cluster.decree(
        LinkAdded(link=link_id(*ids), owner=ids[0], owner_model=ids[1], helper=ids[2], helper_model=ids[3])
    )
    busy = [started(f"req_busy{i}", model="m0") for i in range(2)]  # else the owner alone is as soon done as the helper
    await cluster.state(NODES[0], finished("req_fit", model="m0"), *busy)
    await until("all nodes are known", lambda: len(loop.state.nodes) == len(NODES) and loop.state.control.links)
    OWNER.verifier = Verifier(cluster.server.credentials(NODES[0]).master_public)
    cluster.run(asyncio.create_task(OWNER.follow(cluster)))
    await cluster.state(NODES[0], held("req_first", model="m0"))
    await OWNER.lease(granted=True)
    await cluster.state(NODES[0], Cancelled(request=RequestId("req_first"), model=ModelId("m0")))
    await OWNER.lease(granted=False)


class Owner:
    """The owner's ear: decisions with a good signature, in the order in which they come past the stream."""

    def __init__(self) -> None:
        self.verifier: Verifier | None = None
        self.heard: asyncio.Queue[bool] = asyncio.Queue()

    async def follow(self, cluster: ClusterUnderTest) -> None:
        """Take lease events as a node does."""
        bus = await cluster.bus(NODES[0])
        follower = bus.follower(DECISIONS, [f"lw.{cluster.server.cluster}.lease.{NODES[0]}.>"], NODES[0])
        seen: set[str] = set()
        async for message in follower.messages():
            tagged = codec.split_tag(message.body, "sig")
            envelope = codec.decode_envelope(message.body)
            assert tagged is not None
            assert self.verifier is not None
            if envelope.id not in seen and self.verifier.verifies(*tagged):
                seen.add(envelope.id)
                self.heard.put_nowait(isinstance(codec.decode_decision(envelope.data), LeaseGranted))

    async def lease(self, *, granted: bool) -> None:
        """Return once a lease is granted, or gone."""
        async with asyncio.timeout(10):
            while await self.heard.get() != granted:
                pass


OWNER = Owner()


async def one(cluster: ClusterUnderTest, number: int) -> float:
    """Return the seconds from one held fact to its lease; then let the lease go."""
    producer = await cluster.node(NODES[0])
    began = time.perf_counter()
    producer.state(held(f"req_{number}", model="m0"))
    await OWNER.lease(granted=True)
    took = time.perf_counter() - began
    producer.state(Cancelled(request=RequestId(f"req_{number}"), model=ModelId("m0")))
    await OWNER.lease(granted=False)
    return took


if __name__ == "__main__":
    parser_of(__doc__).parse_args()
    asyncio.run(main())
