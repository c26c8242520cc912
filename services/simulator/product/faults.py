"""What goes wrong at a node. A crash ends its process: silence, broken connections, then a new life with nothing loaded.

A hang leaves its connections open: it says nothing, beats no more, and finds what was sent to it when it comes to itself; what
its engine had is lost.
"""

from typing import TYPE_CHECKING

from domain.events import HeartbeatMissed, HeartbeatSeen, Loaded
from domain.ids import ModelId, RequestId
from domain.inputs import EngineResult
from domain.master.health import OFFLINE_AFTER_US, UNHEALTHY_AFTER_US
from services.simulator.model.scenario import Fault
from services.simulator.product.names import us

if TYPE_CHECKING:
    from services.simulator.product.cluster import Cluster
    from services.simulator.product.node import VirtualNode


def strike(cluster: "Cluster", fault: Fault) -> None:
    """Let the fault happen now, and end when it is over."""
    node = cluster.nodes[fault.node]
    if not node.alive or node.hung:
        return
    turn = len(node.faults)
    node.faults.append(fault)
    for silent_us in (UNHEALTHY_AFTER_US, OFFLINE_AFTER_US):
        if silent_us < us(fault.lasts_s):
            cluster.time.after(silent_us, _miss, cluster, node, turn, silent_us)
    if fault.kind == "crash":
        node.alive = False
        node.life += 1
        node.engine.die()
        cluster.wires.break_off(node)
        cluster.time.after(us(fault.lasts_s), _start_again, cluster, node)
    else:
        node.hung = True
        lost, loading = node.engine.inside(), node.engine.loading
        node.engine.die()
        node.kept_for_later = [(_notice, (cluster, node, lost, loading))]
        cluster.time.after(us(fault.lasts_s), _wake_up, cluster, node)


def _miss(cluster: "Cluster", node: "VirtualNode", turn: int, silent_us: int) -> None:
    if (not node.alive or node.hung) and len(node.faults) == turn + 1:
        cluster.observe(HeartbeatMissed(node=node.name, silent_us=silent_us))


def _start_again(cluster: "Cluster", node: "VirtualNode") -> None:
    node.alive = True
    cluster.begin_life(node, None)
    cluster.observe(HeartbeatSeen(node=node.name))
    if not node.shares:
        load_us = us(cluster.scenario.load_s[node.number])
        node.loads += 1
        node.load_time_s += cluster.scenario.load_s[node.number]
        cluster.later(node, load_us, _loaded, cluster, node, load_us)
    cluster.clients.ask_again(node)
    cluster.catch_up(node)


def _loaded(cluster: "Cluster", node: "VirtualNode", load_us: int) -> None:
    (model,) = node.models
    cluster.state(node, Loaded(model=model, load_us=load_us, cause="own"))
    cluster.do(node, node.runtimes[model].set_engine_up(up=True, now_us=cluster.time.now_us))


def _wake_up(cluster: "Cluster", node: "VirtualNode") -> None:
    node.hung = False
    cluster.observe(HeartbeatSeen(node=node.name))
    cluster.catch_up(node)


def _notice(cluster: "Cluster", node: "VirtualNode", lost: list[RequestId], loading: ModelId | None) -> None:
    """Let the node see that its engine has nothing of what it was given."""
    for request in lost:
        cluster.ended_in_engine(node, request, 0, EngineResult(status=0, complete=False))
    if loading is not None and node.room is not None:
        cluster.do(node, node.room.load_failed(loading, "engine_failed", cluster.time.now_us))
