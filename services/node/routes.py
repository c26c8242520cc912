"""The ways from an owner to a helper: the direct one, and relays for when that one is shut."""

from typing import Final, NamedTuple

from adapters.http.upstream import CONTINUE_S
from domain.ports import Clock
from services.config_rules import is_local
from services.lend_head import PREFIX, RELAY_PREFIX

SHUT_US: Final = 30_000_000
"""A helper that could not be connected to is asked through relays for this long, before the direct way is tried again."""


class Route(NamedTuple):
    """One way."""

    base: str
    """Of the party that is asked."""
    prefix: str
    relayed: bool

    @property
    def continue_s(self) -> float:
        """Return how long its 100 may take: a relay has to connect and wait for one itself."""
        return 3 * CONTINUE_S if self.relayed else CONTINUE_S


class Routes:
    """Remembers which direct ways are shut, so that not every lend waits for a connection that will not come."""

    def __init__(self, relays: tuple[str, ...], clock: Clock) -> None:
        """Know the relays, in the order in which they are asked."""
        self._relays = tuple(Route(relay.rstrip("/"), RELAY_PREFIX, relayed=True) for relay in relays)
        self._clock = clock
        self._shut_until_us: dict[str, int] = {}
        self.own_url = ""
        """At which others find this process; empty while it is not known."""

    def to(self, helper_url: str) -> tuple[Route, ...]:
        """Return the ways to try, in order; empty if none leads there."""
        if self.own_url and is_local(helper_url) and not is_local(self.own_url):
            # on this machine somebody else would answer at that URL; a relay beside the helper may know it
            return self._relays
        shut = self._clock.monotonic_us() < self._shut_until_us.get(helper_url, 0)
        direct = Route(helper_url.rstrip("/"), PREFIX, relayed=False)
        return self._relays if shut and self._relays else (direct, *self._relays)

    def shut(self, helper_url: str) -> None:
        """Note that nobody could be connected to at `helper_url`."""
        now_us = self._clock.monotonic_us()
        # a helper that went elsewhere is never asked at its old address again
        self._shut_until_us = {url: until_us for url, until_us in self._shut_until_us.items() if now_us < until_us}
        self._shut_until_us[helper_url] = now_us + SHUT_US
