"""A story that is told on a real bus, and read from there."""

from adapters.keys import load_credentials
from adapters.log.public import PUBLIC
from adapters.nats.connection import connect
from adapters.nats.enrolment import key_path
from domain.subjects import CONTROL, DECISIONS, EVENTS
from tests.support.nats import ServerUnderTest
from tests.support.public import Public


class story_on:  # noqa: N801  # used like a function
    """Have what is told to `made` stored on the real bus, and read from there."""

    def __init__(self, server: ServerUnderTest, made: Public) -> None:
        self.server, self.made = server, made

    async def __aenter__(self) -> None:
        speakers = {EVENTS: "n1", CONTROL: "operator", DECISIONS: "master"}
        self.buses = {
            stream: await connect(self.server.url, load_credentials(key_path(self.server.data, name)), name=name)
            for stream, name in (*speakers.items(), ("", "projector"))
        }
        reader = self.buses[""]
        for name in PUBLIC:
            said, read = self.buses[name].stream(name), reader.stream(name)
            read.publish = said.publish  # type: ignore[method-assign]
            self.made.streams[name] = read  # type: ignore[assignment]

    async def __aexit__(self, *_: object) -> None:
        for bus in self.buses.values():
            await bus.close()
