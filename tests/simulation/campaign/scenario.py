"""What a run is about, drawn from its seed: nodes, models, links, traffic, faults."""

import random

import msgspec

from adapters.log.spool import BYTES_MAX
from domain.events import ControlEvent, LinkAdded, NodeEnrolled, SettingChanged
from domain.ids import ModelId, NodeId, link_id
from tests.simulation.campaign.specs import ModelSpec, NodeSpec

BEGIN_US, FAULTS_FROM_US = 3_000_000, 5_000_000


class Burst(msgspec.Struct, frozen=True):
    """Some clients ask the same node."""

    at_us: int
    node: NodeId
    model: ModelId
    count: int
    gap_us: int
    leave: int
    """How many of a thousand leave before their answer."""


class Fault(msgspec.Struct, frozen=True):
    """Something goes wrong for a while (tests.simulation.campaign.faults)."""

    at_us: int
    kind: str
    for_us: int
    who: str = ""
    other: str = ""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a seed decides beforehand."""

    nodes: tuple[NodeSpec, ...]
    masters: int
    control: tuple[ControlEvent, ...]
    owners: tuple[tuple[NodeId, ModelId], ...]
    bursts: tuple[Burst, ...]
    faults: tuple[Fault, ...]
    heal_us: int


OF_NODES = (
    "cut_node",
    "kill_node",
    "kill_node",
    "freeze_node",
    "black_hole",
    "engine",
    "engine",
    "flapping",
    "drain",
    "load_failure",
)
OF_MASTERS = ("cut_master", "kill_master", "freeze_master", "freeze_master")
OF_ALL = (
    "bus_storm",
    "bus_storm",
    "bus_stop",
    "http_storm",
    "http_storm",
    "http_storm",
    "clock_step",
    "relink",
    "setting",
)


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    dice = random.Random(f"{seed}/scenario")
    nodes = tuple(_node(dice, NodeId(f"n{number}")) for number in range(dice.randint(2, 4)))
    links = _links(dice, nodes)
    ttl_s = dice.choice((4, 8, 8, 12, 30))
    settings = [SettingChanged(name="cluster.offload_lease_ttl", value=ttl_s * 1_000_000)]
    if dice.random() < 0.5:
        settings.append(SettingChanged(name="cluster.offload_lent_stall_timeout", value=10_000_000))
    enrolled = [NodeEnrolled(node=node.name, public_key="U", url=f"http://{node.name}") for node in nodes]
    owners = tuple(sorted({(on.owner, on.owner_model) for on in links}))
    heal_us = dice.choice((dice.randint(25, 50), dice.randint(25, 50), 60)) * 1_000_000
    bursts = _bursts(dice, nodes, owners, heal_us)
    return Scenario(
        nodes=nodes,
        masters=dice.choice((1, 2, 2)),
        control=(*enrolled, *settings, *links),
        owners=owners,
        bursts=bursts,
        faults=_faults(dice, nodes, bursts, heal_us),
        heal_us=heal_us,
    )


def _node(dice: random.Random, name: NodeId) -> NodeSpec:
    job_us = dice.randint(150_000, 1_500_000)
    models = [ModelSpec(id=ModelId("m"), job_us=job_us, slots=2 if dice.random() < 0.05 else 1)]
    if dice.random() < 0.4:
        runtime, load_us = dice.choice((("", 0), ("gpu", dice.randint(300_000, 4_000_000))))
        models[0] = msgspec.structs.replace(models[0], runtime=runtime, load_us=load_us)
        models.append(
            ModelSpec(id=ModelId("x"), job_us=dice.randint(150_000, 1_500_000), runtime=runtime, load_us=load_us)
        )
    depth = dice.choice((2, 2, 2, 1, 3))
    held_max = dice.choice((10_000, 10_000, 10_000, dice.randint(3, 8)))
    wait_us_max = dice.choice((600_000_000, 600_000_000, dice.randint(4_000_000, 20_000_000)))
    spool_bytes = dice.randint(5_000, 20_000) if dice.random() < 0.2 else BYTES_MAX
    return NodeSpec(
        name=name,
        models=tuple(models),
        depth=depth,
        held_max=held_max,
        wait_us_max=wait_us_max,
        spool_bytes=spool_bytes,
    )


def _links(dice: random.Random, nodes: tuple[NodeSpec, ...]) -> list[LinkAdded]:
    ends = [(node.name, model.id) for node in nodes for model in node.models]
    found = []
    for owner in ends:
        for helper in ends:
            likely = 0.6 if owner[1] == helper[1] else 0.1
            if owner[0] != helper[0] and dice.random() < likely:
                found.append(link(owner, helper))
    return found or [link(ends[0], next(end for end in ends if end[0] != ends[0][0]))]


def link(owner: tuple[NodeId, ModelId], helper: tuple[NodeId, ModelId]) -> LinkAdded:
    return LinkAdded(
        link=link_id(*owner, *helper),
        owner=owner[0],
        owner_model=owner[1],
        helper=helper[0],
        helper_model=helper[1],
        load_if_unloaded=True,
        restore_after_borrow=True,
        different_weights=True,
    )


def _bursts(
    dice: random.Random, nodes: tuple[NodeSpec, ...], owners: tuple[tuple[NodeId, ModelId], ...], heal_us: int
) -> tuple[Burst, ...]:
    # one request of each model alone, so that its price is measured
    first = [Burst(BEGIN_US - 1_000_000, node.name, model.id, 1, 0, 0) for node in nodes for model in node.models]
    leave = dice.choice((0, 100, 300))
    large = []
    for _ in range(dice.randint(2, 5)):
        node, model = dice.choice(owners)
        at_us = dice.randrange(BEGIN_US + 1_500_000, heal_us)
        large.append(Burst(at_us, node, model, dice.randint(4, 14), dice.choice((0, 1_000, 300_000)), leave))
    small = []
    for _ in range(dice.randint(1, 6)):
        node_spec = dice.choice(nodes)
        at_us = dice.randrange(BEGIN_US, heal_us)
        small.append(Burst(at_us, node_spec.name, dice.choice(node_spec.models).id, dice.randint(1, 3), 1_000, leave))
    return tuple(first + large + small)


def _faults(
    dice: random.Random, nodes: tuple[NodeSpec, ...], bursts: tuple[Burst, ...], heal_us: int
) -> tuple[Fault, ...]:
    names = [str(node.name) for node in nodes]
    found = []
    if dice.random() < 0.3:  # one of the weathers lasts through the whole run
        kind = dice.choice(("bus_storm", "http_storm", "http_storm"))
        found.append(Fault(FAULTS_FROM_US, kind, heal_us - FAULTS_FROM_US))
    for _ in range(dice.choice((0, 1, 2, 3, 3, 4, 5, 6, 8))):
        at_us = dice.randrange(FAULTS_FROM_US, heal_us)
        for_us = dice.choice((dice.randint(100_000, 3_000_000), dice.randint(1_000_000, 20_000_000)))
        who, other = dice.sample(names, 2)
        kind = dice.choice((*OF_NODES, *OF_MASTERS, *OF_ALL, "part"))
        if kind in OF_MASTERS:
            who = str(dice.randrange(2))
        found.append(Fault(at_us, kind, for_us, who, other))
    if dice.random() < 0.25:  # long enough that the master asks what became of a lend, and has it taken back
        at_us, for_us = dice.randrange(FAULTS_FROM_US, heal_us), dice.randint(22_000_000, 34_000_000)
        who, other = dice.sample(names, 2)
        found.append(Fault(at_us, dice.choice(("freeze_node", "freeze_node", "part")), for_us, who, other))
    if dice.random() < 0.15:  # an owner dies with much open, long enough that it is given up
        burst = dice.choice([each for each in bursts if each.count >= 4])
        found.append(Fault(burst.at_us + 1_500_000, "kill_node", 18_000_000, burst.node, dice.choice(names)))
    return tuple(sorted(found, key=lambda fault: (fault.at_us, fault.kind)))
