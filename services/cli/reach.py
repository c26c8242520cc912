"""How a command reaches the running processes: over HTTP, where the data directory or the configuration says they are."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from domain.errors import BadConfigError, NotYetError, UnreachableError
from services import asking
from services.asking import deciding, error_of
from services.config import BusConfig, Config, UrlsConfig
from services.config_file import STANDALONE_DEFAULTS, load_config
from services.config_rules import is_cluster
from services.data_directory import Endpoints, check_data, holder_of, is_standalone, known_endpoints


class Here(NamedTuple):
    """What a command knows before it asks anybody."""

    config: Config
    endpoints: Endpoints

    @property
    def bus_url(self) -> str:
        """Return where the bus is: as configured, else where `leaseway up` put it."""
        configured = self.config.bus.url
        stated = self.endpoints.nats if configured == BusConfig().url else configured
        return ",".join(url.strip() for url in stated.split(","))

    @property
    def masters(self) -> list[str]:
        """Return the URL of every master."""
        return [url.strip() for url in self.endpoints.master.split(",")]

    def require_known(self) -> None:
        """Return if it is known whom to ask.

        Raises:
            UnreachableError: nothing ever ran on the data directory, and no address is configured: whoever listens at the
                default ports belongs to another one, and its answers would be taken for this one's.
        """
        if not self.config.data.exists() and not is_cluster(self.config) and self.config.urls == UrlsConfig():
            raise UnreachableError(
                f"data directory {self.config.data}: nothing ever ran on it; `leaseway up`, or name another one with --data"
            )

    def operator_key(self) -> Path:
        """Return the operator's credentials file; raise NotYetError if the data directory was never provisioned."""
        key = self.config.data / "keys" / "operator.json"
        if not key.is_file():
            raise NotYetError(
                f"data directory {self.config.data}: has no operator's key yet; `leaseway up` or `leaseway provision` makes it"
            )
        return key

    def no_bus(self) -> UnreachableError:
        """Return the error of a bus that does not answer."""
        return UnreachableError(f"nats-server {self.bus_url}: cannot be reached; {self.start_hint()}")

    def start_hint(self) -> str:
        """Return how to start what is not there."""
        if holder_of(self.config.data) is not None:
            return f"`leaseway up` holds {self.config.data}, it may be restarting: see {self.config.data / 'logs'}"
        if is_cluster(self.config) or self.config.urls != UrlsConfig():
            return "look at that process' own log; [urls] and [bus] of the configuration say where it is looked for"
        return "start it with `leaseway up`"


def here(parsed: argparse.Namespace) -> Here:
    """Return configuration and endpoints for a command that looks at a running cluster.

    Raises:
        BadConfigError: the configuration, or the data directory, is not one of this version.
    """
    config = load_config(parsed.config, data=parsed.data)
    if is_standalone(config.data):
        config = load_config(parsed.config, data=parsed.data, defaults=STANDALONE_DEFAULTS)
    check_data(config.data)
    return Here(config, known_endpoints(config))


async def fetch(place: Here, who: str, url: str, path: str, query: dict[str, str] | None = None) -> tuple[int, Any]:
    """Return (status, JSON) of what `who` answers at `url` + `path`.

    Raises:
        UnreachableError: it does not answer, or with something that is not JSON; or nobody can say where it is.
    """
    place.require_known()
    return await asking.fetch(who, url, path, query, hint=place.start_hint)


async def get(
    place: Here,
    who: str,
    url: str,
    path: str,
    query: dict[str, str] | None = None,
    *,
    flags: Mapping[str, str] | None = None,
) -> Any:
    """Return the JSON of a good answer. `flags`: what parameters of the query are called on the command line, if not the same.

    Raises:
        UnreachableError: `who` does not answer, or says that it cannot now.
        BadConfigError: it refuses the question.
    """
    status, said = await fetch(place, who, url, path, query)
    if status >= 400:
        _, told, param = error_of(said)
        why = told[:300]
        if (
            status == 400 and param
        ):  # the question is at fault, whoever says so; it is told by the names that it was asked in
            flag = (flags or {}).get(param, f"--{param}")
            raise BadConfigError(f"{flag}: {why.removeprefix(f'{param}: ')}")
        raise (UnreachableError if status >= 500 else BadConfigError)(f"{who} {url}: answers {status}: {why}")
    return said


async def master_state(place: Here) -> dict[str, Any]:
    """Return the folded state of the master that decides, else of one that follows it.

    Raises:
        UnreachableError: none answers.
    """

    async def state_of(url: str) -> dict[str, Any]:
        state: dict[str, Any] = await get(place, "master", url, "/admin/v1/state")
        return state

    return await deciding(place.masters, state_of)


async def sure_state(place: Here) -> dict[str, Any]:
    """Return the master's folded state, if the master is sure of it.

    Raises:
        UnreachableError: the master does not answer, or is in safe mode: then it may have folded a part, or nothing.
    """
    state = await master_state(place)
    if state["safe_mode"]:
        raise UnreachableError(f"master {place.endpoints.master}: is in safe mode ({state['doubt']})")
    return state
