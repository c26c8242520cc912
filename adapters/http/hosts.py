"""The names that a server answers to, so that no page in a browser speaks to it as if it were its own.

A page of somebody else's may have its own name resolve to this machine (DNS rebinding): the browser then takes us for the page's
own server, and only the Host header tells. An address in that header is no name that could be made to point elsewhere.
"""

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from adapters.http.errors import ApiError

_LOG: Final = logging.getLogger("leaseway.http")
ANY: Final = "*"
_LOCAL: Final = "localhost"
_LOGGED_MAX: Final = 20
"""Names of which a refusal is logged; whoever asks may make up as many as it likes."""


class Hosts:
    """The names of one server, and what else a browser may be refused for."""

    def __init__(self, names: Iterable[str], *, setting: str, pages: bool) -> None:
        """Answer to addresses, to localhost and what is below it, and to `names`.

        Args:
            names: `.lan` stands for lan and every name below it, `*` for all names.
            setting: what is told to those who are refused: where one more name is stated.
            pages: whether pages of other names may have a browser ask; else that is refused, whatever Host it says.
        """
        self._names = frozenset(named(name.strip()) for name in names) - {""}
        self._setting, self._pages = setting, pages
        self._logged: set[str] = set()

    def check(self, headers: Mapping[str, str]) -> None:
        """Return if a request with `headers` is to be answered.

        Raises:
            ApiError: host_not_allowed, or origin_not_allowed.
        """
        stated = headers.get("Host")
        host = name_of(stated or "")
        if stated is not None and not self.knows(host):  # every browser states one; a load balancer's HTTP/1.0 does not
            self._refuse("host_not_allowed", f"Host: {host[:253]!r} is no name that is answered to here", host)
        if not (self._pages or ANY in self._names):
            self._check_page(headers, host)

    def knows(self, name: str) -> bool:
        """Tell whether `name`, a name or address without a port, is one that is answered to."""
        return is_address(name) or self._is_stated(name)

    def _is_stated(self, name: str) -> bool:
        if ANY in self._names or name in self._names:
            return True
        above = name
        while above:
            if above == _LOCAL or f".{above}" in self._names:
                return True
            _, _, above = above.partition(".")
        return False

    def _check_page(self, headers: Mapping[str, str], host: str) -> None:
        """Refuse what a page of a foreign name has a browser send: that it cannot read the answer is not enough.

        An address in Host is where we are; in Origin it is where the page came from, and anybody has one. So it counts only
        if it is the one that was asked, is this machine's own, or is stated.
        """
        origin = headers.get("Origin", "")
        if origin:
            page = name_of(origin.partition("://")[2])
            if not page or not (page == host or is_loopback(page) or self._is_stated(page)):
                self._refuse("origin_not_allowed", f"Origin: {origin[:253]!r} is a page of a foreign name", page)
        elif headers.get("Sec-Fetch-Site") == "cross-site" and headers.get("Sec-Fetch-Mode") != "navigate":
            self._refuse("origin_not_allowed", "Sec-Fetch-Site: cross-site: a page of a foreign name asks", "")

    def _refuse(self, code: str, why: str, name: str) -> None:
        if name not in self._logged and len(self._logged) < _LOGGED_MAX:
            self._logged.add(name)
            _LOG.warning(code, extra={"host": name[:253], "setting": self._setting})
        raise ApiError(code, f"{why}; if it is yours, state it in {self._setting}")


def name_of(host: str) -> str:
    """Return what a Host header names, in small letters and without its port; an address in brackets without them."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return named(host.partition(":")[0])


def named(name: str) -> str:
    """Return `name` as it is compared: names differ neither by case nor by a dot at the end."""
    return name.lower().removesuffix(".")


def is_address(name: str) -> bool:
    """Tell whether `name` is an IP address."""
    return _address(name) is not None


def is_loopback(name: str) -> bool:
    """Tell whether `name` is an address that leads to its own machine."""
    address = _address(name)
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
