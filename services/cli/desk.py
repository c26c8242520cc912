"""The operators' desk for one command: LW_CONTROL with the operator's key of the data directory."""

from collections.abc import Iterator
from contextlib import contextmanager

from adapters.keys import load_credentials
from adapters.nats.control import ControlDesk
from domain.errors import BusError, PublishUnknownError, UnreachableError
from services.cli.reach import Here


@contextmanager
def desk_of(place: Here) -> Iterator[ControlDesk]:
    """Yield the desk.

    Raises:
        NotYetError: the data directory has no operator's key.
        UnreachableError: no nats-server answers.
    """
    credentials = load_credentials(place.operator_key())
    try:
        desk = ControlDesk(place.bus_url, credentials, place.config.cluster.name)
    except BusError:
        raise place.no_bus() from None
    with desk:
        try:
            yield desk
        except PublishUnknownError as error:
            raise UnreachableError(f"{error}; whether it was stored is unknown: look, then ask again") from None
