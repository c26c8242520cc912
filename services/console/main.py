"""`leaseway console`: pages for operators, and their read API at one address. It keeps nothing and changes nothing."""

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import Final

from adapters.clock import SystemClock
from adapters.http.server import HttpServer
from domain.errors import NotYetError, PortInUseError
from services.config import Config, UrlsConfig
from services.console.pages import Pages
from services.console.peers import Peers
from services.console.render import Renderer
from services.console.site import Site
from services.data_directory import known_endpoints
from services.hosts import of_operators
from services.telemetry import answer

NAME: Final = "console"
_CONNECTIONS_MAX: Final = 128


async def run(config: Config, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Show the cluster of `config` until `stop` is set; `ready` is called with the URL.

    Raises:
        NotYetError: nothing says where the others are: who listens at the default ports belongs to another data directory.
        OSError: the port is taken.
        PortInUseError: it is not ours to take.
    """
    if config.urls == UrlsConfig() and not config.data.exists():
        raise NotYetError(
            f"data directory {config.data}: nothing ever ran on it; name that of `leaseway up` with --data, or state [urls]"
        )
    peers = Peers(partial(known_endpoints, config), SystemClock())
    site = Site(peers, Pages(peers), Renderer(), answer.instruments("console"))
    server = HttpServer(site.handle, connections_max=_CONNECTIONS_MAX, served_by=NAME, hosts=of_operators(config))
    host, port = config.http.host, config.http.port
    try:
        port = await server.start(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise  # services.lifecycle says it as of every process
        raise PortInUseError(f"console: port {port} on {host}: {error.strerror or error}") from None
    try:
        ready(f"http://{host}:{port}")
        await stop.wait()
    finally:
        await server.stop()
        await peers.close()
