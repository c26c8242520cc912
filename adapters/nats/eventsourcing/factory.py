"""Makes recorders from the environment, as the eventsourcing library asks its persistence modules to.

| variable | meaning | default |
|---|---|---|
| `NATS_URL` | the server | `nats://127.0.0.1:4222` |
| `NATS_CREDENTIALS` | path of a credentials file | none: nobody in particular |
| `JS_STREAM` | the stream | `ES_<application>` |
| `JS_SUBJECT` | subject prefix of events | `<stream>.e` |
| `JS_REPLICAS`, `JS_STORAGE` | how a stream is made | 1, `file` |
| `CREATE_TABLE` | make streams that are missing | no: streams are provisioned |
| `ORIGINATOR_ID_TYPE` | `uuid` or `text` | `uuid` |
"""

from pathlib import Path
from typing import Final, TypeVar

from eventsourcing.persistence import InfrastructureFactory
from eventsourcing.utils import Environment, EnvType, resolve_topic, strtobool

from adapters.keys import Credentials, load_credentials
from adapters.nats.eventsourcing.link import NatsLink
from adapters.nats.eventsourcing.recorder import (
    JetStreamAggregateRecorder,
    JetStreamApplicationRecorder,
    JetStreamProcessRecorder,
    JetStreamRecorder,
    JetStreamTrackingRecorder,
    Place,
)

_URL: Final = "nats://127.0.0.1:4222"
_R = TypeVar("_R", bound=JetStreamRecorder)


class JetStreamFactory(InfrastructureFactory[JetStreamTrackingRecorder]):
    """Recorders on JetStream over one connection, opened when the first one is made."""

    def __init__(self, env: Environment | EnvType | None, credentials: Credentials | None = None) -> None:
        """`credentials` go before those that `NATS_CREDENTIALS` names."""
        super().__init__(env)
        self._credentials = credentials
        self._link: NatsLink | None = None

    @property
    def link(self) -> NatsLink:
        """The connection."""
        if self._link is None:
            path = self.env.get("NATS_CREDENTIALS")
            credentials = self._credentials or (load_credentials(Path(path)) if path else None)
            self._link = NatsLink(self.env.get("NATS_URL", _URL), credentials)
        return self._link

    def place(self, purpose: str = "") -> Place:
        """Return where events are kept, or what there is besides them for `purpose`: snapshots, tracking."""
        stream = self.env.get("JS_STREAM") or f"ES_{self.env.name or 'application'}"
        events = self.env.get("JS_SUBJECT") or f"{stream}.e"
        if purpose:
            stream = f"{stream}_{purpose}"
            events = f"{stream}.e"
        uuid_ids = self.env.get("ORIGINATOR_ID_TYPE", "uuid") == "uuid"
        return Place(stream=stream, events=events, tracking=f"{stream}.t", uuid_ids=uuid_ids)

    def aggregate_recorder(self, purpose: str = "events") -> JetStreamAggregateRecorder:
        """Return a recorder of aggregate sequences for `purpose`, in a stream of its own."""
        return self._made(JetStreamAggregateRecorder, purpose)

    def application_recorder(self) -> JetStreamApplicationRecorder:
        """Return the recorder of the application's events."""
        return self._made(JetStreamApplicationRecorder)

    def tracking_recorder(
        self, tracking_recorder_class: type[JetStreamTrackingRecorder] | None = None
    ) -> JetStreamTrackingRecorder:
        """Return a recorder of positions, in a stream of its own; of the class that is given or named in the environment."""
        named = self.env.get(self.TRACKING_RECORDER_TOPIC)
        chosen: type[JetStreamTrackingRecorder] = tracking_recorder_class or (
            resolve_topic(named) if named else JetStreamTrackingRecorder
        )
        return self._made(chosen, "tracking")

    def process_recorder(self) -> JetStreamProcessRecorder:
        """Return a recorder of events and positions together."""
        return self._made(JetStreamProcessRecorder)

    def _made(self, recorder_class: type[_R], purpose: str = "") -> _R:
        recorder = recorder_class(self.link, self.place(purpose))
        if strtobool(self.env.get("CREATE_TABLE", "no")):
            recorder.create(replicas=int(self.env.get("JS_REPLICAS", "1")), storage=self.env.get("JS_STORAGE", "file"))
        return recorder

    def close(self) -> None:
        """End the connection; may be called twice."""
        if self._link is not None:
            self._link.close()
            self._link = None
