"""Which process of `leaseway up` listens where."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from adapters.ports import HOST, free_port
from adapters.ports import require_free as require_port_free
from domain.errors import PortInUseError
from services.config import NodeConfig
from services.data_directory import Endpoints

DEFAULT_BASE: Final = 8000


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """One port for each listener."""

    nats: int
    monitor: int
    gateway: int
    projector: int
    master: int
    console: int
    nodes: tuple[int, ...]
    """In the order of the configuration."""
    engines: tuple[tuple[int, ...], ...]
    """For each node, one for each engine that it starts."""

    def named(self) -> Iterator[tuple[str, int]]:
        """Yield (what listens, port)."""
        yield from (("nats", self.nats), ("nats monitor", self.monitor), ("gateway", self.gateway))
        yield from (("projector", self.projector), ("master", self.master), ("console", self.console))
        for at, port in enumerate(self.nodes):
            yield f"node {at + 1}", port
        for ports in self.engines:
            for port in ports:
                yield "engine", port


def plan_ports(base: int, nodes: Sequence[NodeConfig], *, gateway: int = 0) -> Ports:
    """Return the ports from `base` on, or free ones if it is 0; `gateway` is the configuration's own wish.

    With the default base the bus has the ports that NATS users expect, 4222 and 8222.
    """
    engines = [sum(bool(model.command and not model.port) for model in node.models) for node in nodes]
    if base == 0:
        free = iter([free_port() for _ in range(6 + len(nodes) + sum(engines))])
    else:
        first = 4222 if base == DEFAULT_BASE else base + 221
        fixed = [first, base + 222, gateway or base, base + 200, base + 300, base + 500]
        rest = range(base + 400, base + 400 + sum(engines))
        free = iter([*fixed, *range(base + 100, base + 100 + len(nodes)), *rest])
    nats, monitor, front, projector, master, console = (next(free) for _ in range(6))
    return Ports(
        nats=nats,
        monitor=monitor,
        gateway=gateway or front,
        projector=projector,
        master=master,
        console=console,
        nodes=tuple(next(free) for _ in nodes),
        engines=tuple(tuple(next(free) for _ in range(count)) for count in engines),
    )


def require_free(ports: Ports) -> None:
    """Return if every port can be listened on.

    Raises:
        PortInUseError: another process has one, or two of ours would; the message says which and what to do.
    """
    taken: dict[int, str] = {}
    for what, port in ports.named():
        if port in taken:
            raise PortInUseError(
                f"{what} port {port}: must not be that of the {taken[port]} too; choose others with --port-base (0: free ones), "
                "or another [http] port for the gateway"
            )
        taken[port] = what
        require_port_free(
            port, what, hint="stop what listens there, or choose other ports with --port-base (0: free ones)"
        )


def endpoints(ports: Ports, nodes: Sequence[NodeConfig]) -> Endpoints:
    """Return where everything listens, as the data directory keeps it."""
    ids = [node.id for node in nodes]
    return Endpoints(
        nats=f"nats://{HOST}:{ports.nats}",
        monitor=f"http://{HOST}:{ports.monitor}",
        gateway=f"http://{HOST}:{ports.gateway}",
        projector=f"http://{HOST}:{ports.projector}",
        master=f"http://{HOST}:{ports.master}",
        console=f"http://{HOST}:{ports.console}",
        nodes={node: f"http://{HOST}:{port}" for node, port in zip(ids, ports.nodes, strict=True)},
        engines={
            node: tuple(f"http://{HOST}:{port}" for port in engines)
            for node, engines in zip(ids, ports.engines, strict=True)
        },
    )
