"""A helper's process that dies and is started again: silence for the master, broken connections for owners, then a new life."""

from typing import TYPE_CHECKING

from domain.events import HeartbeatMissed, HeartbeatSeen, Loaded
from domain.master.health import OFFLINE_AFTER_US, UNHEALTHY_AFTER_US
from services.simulator.model.scenario import Fault
from services.simulator.product.names import MODEL, us

if TYPE_CHECKING:
    from services.simulator.product.cluster import Cluster, VirtualNode


def strike(cluster: "Cluster", fault: Fault) -> None:
    """Let a helper's process die now, and be started again when the fault is over."""
    node = cluster.nodes[fault.node]
    node.alive = False
    node.life += 1
    node.engine.die()
    cluster.wires.break_off(node)
    for silent_us in (UNHEALTHY_AFTER_US, OFFLINE_AFTER_US):
        cluster.time.after(silent_us, _miss, cluster, node, node.life, silent_us)
    cluster.time.after(us(fault.lasts_s), _start_again, cluster, node, node.life)


def _miss(cluster: "Cluster", node: "VirtualNode", life: int, silent_us: int) -> None:
    if not node.alive and node.life == life:
        cluster.observe(HeartbeatMissed(node=node.name, silent_us=silent_us))


def _start_again(cluster: "Cluster", node: "VirtualNode", life: int) -> None:
    if node.life != life:
        return
    node.alive = True
    cluster.begin_life(node, ready=False)
    cluster.observe(HeartbeatSeen(node=node.name))
    load_us = us(cluster.scenario.load_s[node.number])
    node.loads += 1
    node.load_time_s += cluster.scenario.load_s[node.number]
    cluster.time.after(load_us, _loaded, cluster, node, life, load_us)


def _loaded(cluster: "Cluster", node: "VirtualNode", life: int, load_us: int) -> None:
    if node.life == life:
        cluster.state(node, Loaded(model=MODEL, load_us=load_us, cause="own"))
        cluster.do(node, node.runtime.set_engine_up(up=True, now_us=cluster.time.now_us))
