"""The names that a process answers to, from its configuration (docs/adr/0027)."""

import socket
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from adapters.http.hosts import Hosts
from services.config import Config
from services.config_rules import is_loopback

SETTING: Final = "[http] allowed_hosts (LEASEWAY_HTTP_ALLOWED_HOSTS)"


def of_operators(config: Config) -> Hosts:
    """Return the names of a process that answers operators without asking for a key: it is for no page of another name."""
    return Hosts(_names(config), setting=SETTING, pages=False)


def of_clients(config: Config) -> Hosts | None:
    """Return the names of a process that answers clients; None if it answers to any.

    At loopback a name is needed by nobody but a reverse proxy that passes on its own. Beyond it, a process is known by names that
    it cannot know itself, so there it answers to any, unless some are stated.
    """
    if is_loopback(config.http.host) or config.http.allowed_hosts:
        return Hosts(_names(config), setting=SETTING, pages=True)
    return None


def _names(config: Config) -> Iterator[str]:
    """Yield what is stated, and what else the configuration and the machine say of names of ours."""
    yield from config.http.allowed_hosts.split(",")
    yield config.http.host
    own = socket.gethostname()
    yield own
    if label := own.partition(".")[0]:
        yield f"{label}.local"  # as its network knows it by mDNS; on the machine itself nobody else answers for it
    urls = config.urls
    for url in (config.http.public_url, *urls.master.split(","), urls.projector, urls.gateway, urls.console):
        yield urlsplit(url.strip()).hostname or ""
