"""Loopback ports: one that is free, and whether a given one is."""

import contextlib
import itertools
import os
import socket
from typing import Final

from domain.errors import PortInUseError

HOST: Final = "127.0.0.1"
_RANGE: Final = range(15_000, 32_000)
"""Below what systems hand to outgoing connections (32768 on Linux, 49152 by RFC 6335): none takes one meanwhile."""
_STRIDE: Final = 131
"""Ports between the first ones of two processes with neighbouring ids."""
_turn = itertools.count()


def free_port() -> int:
    """Return a port that nobody listens on just now; no other call in this process gets it soon.

    Raises:
        PortInUseError: every port of the range is taken.
    """
    for _ in _RANGE:
        port = _RANGE[(os.getpid() * _STRIDE + next(_turn)) % len(_RANGE)]
        with contextlib.suppress(PortInUseError):
            require_free(port, "any")
            return port
    raise PortInUseError(f"every port from {_RANGE.start} to {_RANGE.stop - 1} on {HOST} is in use")


def require_free(port: int, what: str, *, hint: str = "") -> None:
    """Return if `port` can be listened on.

    Raises:
        PortInUseError: another process has it.
    """
    with socket.socket() as probe:
        # as the servers do: a port whose last connection lingers is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            words = f"{what} port {port}: must be free on {HOST}: {error.strerror}"
            raise PortInUseError(f"{words}; {hint}" if hint else words) from None
