"""What a gateway serves: its API for clients, and a relay for nodes."""

from aiohttp import web

from adapters.http.server import Call
from services.gateway.forwarding import Forwarder
from services.lend_head import RELAY_PREFIX
from services.relaying import Relay


class Surface:
    """Gives each request to whom it is for."""

    def __init__(self, forwarder: Forwarder, relay: Relay) -> None:
        """Serve clients by `forwarder`, nodes by `relay`."""
        self._forwarder, self._relay = forwarder, relay

    @property
    def in_progress(self) -> int:
        """Return how many requests are being served, of clients and of nodes."""
        return self._forwarder.in_progress + self._relay.in_progress

    async def serve(self, call: Call) -> web.StreamResponse:
        """Answer one request.

        Raises:
            ApiError: what is told instead.
        """
        if call.path.startswith(RELAY_PREFIX + "/") and call.request.method == "POST":
            return await self._relay.serve(call)
        return await self._forwarder.serve(call)
