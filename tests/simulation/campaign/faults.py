"""The faults: how each strikes, how it ends by itself, and how all of them are healed at once."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from domain.events import LinkAdded, LinkRemoved, SettingChanged
from tests.simulation.campaign.bus import CALM, Weather
from tests.simulation.campaign.wire import CALM_HTTP, HttpWeather

if TYPE_CHECKING:
    from tests.simulation.campaign.machine import NodeMachine
    from tests.simulation.campaign.master import MasterMachine
    from tests.simulation.campaign.scenario import Fault
    from tests.simulation.campaign.world import World

FLAPS = 3


def strike(world: "World", fault: "Fault") -> None:
    """Let a fault begin, and end after its time."""
    world.say("FAULT", f"{fault.kind} {fault.who} {fault.other} for {fault.for_us / 1e6:.1f} s")
    world.monitor.trouble(fault.who, fault.other)
    _STRIKE[fault.kind](world, fault)


def heal(world: "World") -> None:
    """End every fault."""
    world.say("FAULT", "all heal")
    world.server.weather, world.wire.weather = CALM, CALM_HTTP
    world.wire.black_holes.clear()
    if not world.server.up:
        world.server.go_on()
    for pair in sorted(tuple(sorted(pair)) for pair in world.wire.partitions):
        world.monitor.trouble(*pair)  # whoever could not act has its second from here on
        world.wire.join(*pair)
    for node in world.nodes.values():
        _node_back(world, node)
        for model in node.spec.models:
            node.engines[model.id].fails_loads = 0
            _engine_back(world, node, model.id)
    for master in world.masters:
        _master_back(world, master)
    world.monitor.healed_us = world.loop.now_us


def _node_back(world: "World", node: "NodeMachine") -> None:
    if node.life is None:
        node.start()
        return
    _thaw_node(world, node.life.process, node.name)
    if node.life.port.cut:
        node.life.port.join()


def _master_back(world: "World", master: "MasterMachine") -> None:
    if master.process is None or master.port is None:
        master.start()
        return
    if master.process.frozen:
        world.loop.thaw(master.process)
    if master.port.cut:
        master.port.join()


# ---- the bus ---------------------------------------------------------------------------------------------------------


def _bus_storm(world: "World", fault: "Fault") -> None:
    dice = world.fate
    world.server.weather = Weather(
        lost=dice.choice((0, 20, 100)),
        late=dice.choice((0, 20, 100)),
        ack_lost=dice.choice((0, 30, 100)),
        twice=dice.choice((0, 30, 100)),
        core_lost=dice.choice((0, 100, 500)),
        core_slow=dice.choice((0, 100, 500)),
        redelivered=dice.choice((0, 300)),
    )

    weather = world.server.weather

    def calm() -> None:
        if world.server.weather is weather:  # else another storm goes on
            world.server.weather = CALM

    world.loop.after(fault.for_us, calm)


def _bus_stop(world: "World", fault: "Fault") -> None:
    world.server.stop()
    world.monitor.bus_trouble(fault.for_us)

    def go_on() -> None:
        if not world.server.up:
            world.server.go_on()

    world.loop.after(fault.for_us, go_on)


def _clock_step(world: "World", fault: "Fault") -> None:
    world.server.clock.step(world.fate.choice((-1, 1)) * world.fate.randint(10**6, 4 * 10**9))
    world.monitor.bus_trouble(1_000_000)


# ---- masters ---------------------------------------------------------------------------------------------------------


def _master(world: "World", fault: "Fault") -> "MasterMachine":
    return world.masters[int(fault.who) % len(world.masters)]


def _cut_master(world: "World", fault: "Fault") -> None:
    master = _master(world, fault)
    if master.port is not None:
        port = master.port
        port.cut_off()
        world.monitor.master_trouble(fault.for_us)
        world.loop.after(fault.for_us, lambda: port.join() if port.cut else None)


def _kill_master(world: "World", fault: "Fault") -> None:
    master = _master(world, fault)
    if master.process is not None and not master.process.frozen:
        world.monitor.master_trouble(fault.for_us)
        master.kill()
        world.loop.after(fault.for_us, lambda: master.start() if master.process is None else None)


def _freeze_master(world: "World", fault: "Fault") -> None:
    process = _master(world, fault).process
    if process is not None:
        world.monitor.master_trouble(fault.for_us)
        process.frozen = True
        world.loop.after(fault.for_us, lambda: world.loop.thaw(process) if process.frozen else None)


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _cut_node(world: "World", fault: "Fault") -> None:
    life = world.nodes[fault.who].life
    if life is not None:
        life.port.cut_off()
        world.loop.after(fault.for_us, lambda: life.port.join() if life.port.cut and not life.process.dead else None)


def _kill_node(world: "World", fault: "Fault") -> None:
    node = world.nodes[fault.who]
    if node.life is None or node.life.process.frozen:
        return
    world.monitor.killed(node, fault.for_us)
    node.kill()
    world.loop.after(fault.for_us, node.start_if_down)


def _freeze_node(world: "World", fault: "Fault") -> None:
    life = world.nodes[fault.who].life
    if life is not None:
        life.process.frozen = True
        world.loop.after(fault.for_us, _thaw_node, world, life.process, fault.who)


def _thaw_node(world: "World", process: object, who: str) -> None:
    if process.frozen and not process.dead:  # type: ignore[attr-defined]
        world.monitor.trouble(who)
        world.loop.thaw(process)  # type: ignore[arg-type]


def _drain(world: "World", fault: "Fault") -> None:
    node = world.nodes[fault.who]
    if node.life is None or node.life.draining:
        return
    life = node.life
    life.draining = True
    world.loop.after(0, lambda: world.loop.spawn(life.process, life.drain()), process=life.process)


# ---- engines ---------------------------------------------------------------------------------------------------------


def _engine(world: "World", fault: "Fault") -> None:
    node = world.nodes[fault.who]
    model = world.fate.choice(node.spec.models).id
    world.monitor.engine_trouble(node.name, fault.for_us)
    node.engines[model].crash()
    world.loop.after(fault.for_us, _engine_back, world, node, model)


def _engine_back(world: "World", node: "NodeMachine", model: str) -> None:
    engine = node.engines[model]  # type: ignore[index]
    if len(engine.models) > 1:  # its room has it loaded again
        return
    if not engine.up:
        engine.start()
    if node.life is not None:
        world.loop.after(100_000, node.life.engine_back, model, process=node.life.process)


def _load_failure(world: "World", fault: "Fault") -> None:
    """The next loads of the node fail, until the fault is over."""
    node = world.nodes[fault.who]
    for engine in node.engines.values():
        engine.fails_loads = world.fate.choice((1, 1, 2, 4))


def _flapping(world: "World", fault: "Fault") -> None:
    each_us = max(200_000, fault.for_us // (2 * FLAPS))
    for number in range(FLAPS):
        once = type(fault)(fault.at_us, "engine", each_us, fault.who, fault.other)
        world.loop.after(2 * number * each_us, _engine, world, once)


# ---- between nodes ---------------------------------------------------------------------------------------------------


def _http_storm(world: "World", fault: "Fault") -> None:
    dice = world.fate
    world.wire.weather = HttpWeather(
        refused=dice.choice((0, 100)),
        black_hole=dice.choice((0, 50)),
        cut_before_100=dice.choice((0, 100)),
        cut_after_100=dice.choice((0, 100)),
        cut_in_answer=dice.choice((0, 100)),
        slow=dice.choice((0, 200)),
        replayed=dice.choice((0, 300)),
    )

    weather = world.wire.weather

    def calm() -> None:
        if world.wire.weather is weather:  # else another storm goes on
            world.wire.weather = CALM_HTTP

    world.loop.after(fault.for_us, calm)


def _part(world: "World", fault: "Fault") -> None:
    world.wire.partitions.add(frozenset((fault.who, fault.other)))
    world.loop.after(fault.for_us, _rejoin, world, fault)


def _rejoin(world: "World", fault: "Fault") -> None:
    world.monitor.trouble(fault.who, fault.other)
    world.wire.join(fault.who, fault.other)


def _black_hole(world: "World", fault: "Fault") -> None:
    world.wire.black_holes.add(fault.who)
    world.loop.after(fault.for_us, world.wire.black_holes.discard, fault.who)


# ---- operators -------------------------------------------------------------------------------------------------------


def _relink(world: "World", fault: "Fault") -> None:
    links = [event for event in world.scenario.control if isinstance(event, LinkAdded)]
    on = world.fate.choice(links)
    world.decree(LinkRemoved(link=on.link, owner=on.owner, owner_model=on.owner_model))
    world.loop.after(fault.for_us, world.decree, on)


def _setting(world: "World", fault: "Fault") -> None:
    del fault
    world.decree(SettingChanged(name="cluster.offload_lease_ttl", value=world.fate.choice((3, 6, 15)) * 1_000_000))


_STRIKE: dict[str, Callable[["World", "Fault"], None]] = {
    "bus_storm": _bus_storm,
    "bus_stop": _bus_stop,
    "clock_step": _clock_step,
    "cut_master": _cut_master,
    "kill_master": _kill_master,
    "freeze_master": _freeze_master,
    "cut_node": _cut_node,
    "kill_node": _kill_node,
    "freeze_node": _freeze_node,
    "drain": _drain,
    "engine": _engine,
    "flapping": _flapping,
    "load_failure": _load_failure,
    "http_storm": _http_storm,
    "part": _part,
    "black_hole": _black_hole,
    "relink": _relink,
    "setting": _setting,
}
