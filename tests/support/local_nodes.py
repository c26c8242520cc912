"""Nodes within the test's own loop, without a bus: their facts go to a list, and the test is the master that signs grants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import aiohttp

from adapters.clock import SystemClock, new_incarnation
from adapters.http.server import Deadlines
from adapters.keys import Credentials, Signer, new_nkey
from domain.events import Basis, Envelope, Fact, LeaseGranted, LinkAdded, NodeEnrolled, codec
from domain.events.base import tag_of
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import Generation, ModelId, lease_id, link_id
from services.config import Config, HttpConfig, Limits, NodeConfig, NodeModel
from services.node.node import Node
from services.telemetry.tracing import OFF, Tracing
from tests.support.waiting import until

CLUSTER = "local"
GENERATION = Generation("0001beef")
MASTER_SEED, MASTER_PUBLIC = new_nkey()
CHAT = {"model": "public", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}


class LocalNode:
    """A running node, what it has said, and a client."""

    def __init__(self, node: Node, url: str, public_key: str) -> None:
        self.node, self.url, self.public_key = node, url, public_key
        self.incarnation = new_incarnation()
        self.facts: list[Fact] = []
        self.sent_us: dict[int, int] = {}

    def say(self, fact: Fact) -> Basis:
        """Keep a fact, as the producer does."""
        self.facts.append(fact)
        self.sent_us[len(self.facts)] = self.node.clock.monotonic_us()
        return self.basis()

    def basis(self) -> Basis:
        """Return the name of the newest fact."""
        return Basis(self.node.id, self.incarnation, len(self.facts))

    def sent_at_us(self, basis: Basis) -> int | None:
        return self.sent_us.get(basis.pseq) if basis.incarnation == self.incarnation else None

    def tags(self, *families: str) -> list[str]:
        """Return the tags of the facts so far, of these families only if any is named."""
        tags = [tag_of(fact) for fact in self.facts]
        return [tag for tag in tags if not families or tag.split(".")[0] in families]

    def of(self, tag: str) -> list[Fact]:
        """Return the facts of one tag."""
        return [fact for fact in self.facts if tag_of(fact) == tag]

    async def said(self, tag: str, count: int = 1, timeout_s: float = 10) -> list[Fact]:
        """Return the facts of `tag` once there are `count`."""
        await until(f"{count} x {tag}", lambda: len(self.of(tag)) >= count, timeout_s=timeout_s)
        return self.of(tag)

    def counts(self, model: str = "public") -> tuple[int, int, int, int]:
        """Return (held, in engine, lent, borrowed) of a model."""
        counts = self.node.models[ModelId(model)].serving.runtime.counts()
        return counts.held, counts.in_engine, counts.lent, counts.borrowed


def model_at(url: str, **more: object) -> NodeModel:
    """Return the configuration of model `public`, which the engine at `url` calls `local`."""
    return NodeModel(**{"id": "public", "local_id": "local", "url": url, **more})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def local_node(
    models: Sequence[NodeModel],
    *,
    name: str = "n1",
    depth: int = 2,
    limits: Limits | None = None,
    deadlines: Deadlines | None = None,
    up: bool = True,
    relays: tuple[str, ...] = (),
    tracing: Tracing = OFF,
) -> AsyncIterator[LocalNode]:
    """Run a node while the block runs. `up`: wait until its engines are."""
    seed, public_key = new_nkey()
    credentials = Credentials(
        name=name, role="node", cluster=CLUSTER, nkey_seed=seed, mac_key="00" * 32, master_public=MASTER_PUBLIC
    )
    config = Config(
        node=NodeConfig(id=name, depth=depth, models=tuple(models), relays=relays),
        http=HttpConfig(limits=limits or Limits()),
    )
    node = Node(config, credentials, SystemClock(), deadlines=deadlines, tracing=tracing)
    port = await node.server.start("127.0.0.1", 0)
    local = LocalNode(node, f"http://127.0.0.1:{port}", public_key)
    engines = [asyncio.ensure_future(engine) for engine in node.engines()]
    try:
        if up:
            await node.engines_settled(20)
        node.register(local.say, local.url)
        yield local
    finally:
        await node.close()
        for engine in engines:
            engine.cancel()
        await asyncio.gather(*engines, return_exceptions=True)


@contextlib.asynccontextmanager
async def client_of(local: LocalNode) -> AsyncIterator[aiohttp.ClientSession]:
    """Give a plain HTTP client of one node."""
    async with aiohttp.ClientSession(local.url) as client:
        yield client


def link_of(owner: LocalNode, helper: LocalNode, helper_model: str = "public") -> LinkAdded:
    """Return the link from the owner's model `public` to a model of the helper."""
    ends = (owner.node.id, ModelId("public"), helper.node.id, ModelId(helper_model))
    return LinkAdded(link=link_id(*ends), owner=ends[0], owner_model=ends[1], helper=ends[2], helper_model=ends[3])


def introduce(owner: LocalNode, helper: LocalNode, link: LinkAdded) -> None:
    """Let both know each other and the link, as LW_CONTROL would."""
    for local in (owner, helper):
        for other in (owner, helper):
            local.node.view.apply(NodeEnrolled(node=other.node.id, public_key=other.public_key, url=other.url))
        local.node.view.apply(link)
        local.node.control_changed()


def grant_of(link: LinkAdded, owner: LocalNode, helper_url: str, *, version: int = 1, slots: int = 2) -> LeaseGranted:
    """Return a grant over `link` based on the owner's newest fact."""
    return LeaseGranted(
        link=link.link,
        owner=link.owner,
        owner_model=link.owner_model,
        helper=link.helper,
        helper_model=link.helper_model,
        helper_url=helper_url,
        lease=lease_id(GENERATION, version, 0),
        slots=slots,
        ttl_us=30_000_000,
        basis=owner.basis(),
        reason="test",
    )


def signed(
    event: LeaseEvent | LinkWord,
    *,
    generation: Generation = GENERATION,
    version: int = 1,
    index: int = 0,
    seed: str = MASTER_SEED,
    cluster: str = CLUSTER,
) -> bytes:
    """Return `event` as the master publishes it."""
    envelope = Envelope(
        id=f"{generation}-{version}-{index}",
        source=f"/{cluster}/master",
        type=tag_of(event),
        cluster=cluster,
        producer="master",
        data=codec.raw(event),
    )
    encoded = codec.encode(envelope)
    return codec.with_tag(encoded, "sig", Signer(seed).sign(encoded[:-1]))


def publish(body: bytes, *nodes: LocalNode) -> bool:
    """Give a decision to nodes, as their followers do; tell whether all believed it."""
    believed = True
    for local in nodes:
        decision = local.node.reader.read(body)
        if decision is None:
            believed = False
        else:
            local.node.decided(decision, local.sent_at_us)
    return believed


def code_of(body: dict[str, object]) -> object:
    """Return the code of an error of ours."""
    error = body["error"]
    assert isinstance(error, dict)
    return error["code"]
