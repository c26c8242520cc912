"""Looks at the bus before anything is trusted to it: version, syncing, room, rights.

Most of it is asked of the server itself. That reply subjects lead nowhere is tried, not read: rights that look right on paper
are no use if an answer can be sent where its asker may not publish.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from adapters.nats.enrolment import load_roster
from adapters.nats.layout import Durability, differences, stream_configs
from adapters.nats.mirrors import mirrored
from adapters.nats.outside import KEEPER, MIRRORED
from adapters.nats.provision import ONE_TRY, administer, ask_server
from adapters.nats.server import require_version
from domain.errors import BadConfigError, BrokenSetupError
from domain.subjects import CONTROL, EVENTS

Severity = Literal["refuse", "warn"]
_API_S: Final = 5.0
_PROBE_S: Final = 2.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_PAYLOAD_BYTES_MIN: Final = 1024 * 1024
_MIRROR_LAG_MAX: Final = 100_000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be."""

    code: str
    severity: Severity
    message: str
    """Subject, rule and value, in one line."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the bus has found; `/health` shows it as it is."""

    version: str
    durability: Durability
    replicas: int
    findings: tuple[Finding, ...] = ()

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """The findings that forbid to go on."""
        return tuple(finding for finding in self.findings if finding.severity == "refuse")


async def preflight(data: Path, url: str, cluster: str, durability: Durability, *, replicas: int = 1) -> Report:
    """Return what is wrong with the bus at `url` (every server, comma-separated); an empty report is a good one.

    Raises:
        UnreachableError: a server does not answer, or refuses the keys in `data`.
    """
    findings: list[Finding] = []
    version = ""
    for each in url.split(","):
        async with administer(data, each, "system") as client:
            facts = (await ask_server(client, "VARZ"))["data"]
        version = str(facts.get("version", ""))
        findings += _server_findings(each, facts)
        if not await _refuses_strangers(each):
            findings.append(_refuse("no_default_user", f"nats {each}: must refuse a client without a key, lets it in"))
    async with administer(data, url, "provisioner") as client:
        jetstream = client.jetstream(timeout=_API_S)
        findings += [finding async for finding in _stream_findings(jetstream, cluster, durability, replicas)]
        async with administer(data, url, "preflight") as prober:
            findings += await _reply_findings(prober, jetstream, cluster)
    findings += await _mirror_findings(data, url, cluster)
    findings += _durability_findings(durability, replicas)
    return Report(version=version, durability=durability, replicas=replicas, findings=tuple(findings))


def require_sound(report: Report, *, allow: Collection[str] = ()) -> None:
    """Return unless `report` has a refusal whose code is not in `allow`.

    Raises:
        BrokenSetupError: it has; the message is the first one's.
    """
    refused = [finding for finding in report.refusals if finding.code not in allow]
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise BrokenSetupError(f"{refused[0].message}{more}")


def _server_findings(url: str, facts: Mapping[str, Any]) -> Iterable[Finding]:
    """Yield what is wrong with one server by its own account (/varz)."""
    try:
        require_version(str(facts.get("version", "")), url)
    except BadConfigError as error:
        yield _refuse("version", str(error))
    config = facts.get("jetstream", {}).get("config")
    if config is None:
        yield _refuse("jetstream", f"nats {url}: must have JetStream enabled, has not")
        return
    if not config.get("sync_always", False):
        interval_s = config.get("sync_interval", 0) / 1e9
        yield _refuse("sync_interval", f"nats {url}: jetstream sync_interval must be always, is {interval_s:g}s")
    if facts.get("max_payload", 0) < _PAYLOAD_BYTES_MIN:
        yield _refuse(
            "max_payload",
            f"nats {url}: max_payload must be {_PAYLOAD_BYTES_MIN} or more, is {facts.get('max_payload')}",
        )
    reserved, storage = facts["jetstream"].get("stats", {}).get("reserved_storage", 0), config.get("max_storage", 0)
    if storage < reserved:
        yield _refuse("storage", f"nats {url}: JetStream storage must be at least {reserved} bytes, is {storage}")
    if facts.get("http_port") and facts.get("http_host") not in _LOOPBACK:
        yield _refuse(
            "monitoring", f"nats {url}: monitoring must listen on loopback, listens on {facts.get('http_host')!r}"
        )
    for door in ("websocket", "mqtt", "leaf", "gateway"):
        if facts.get(door, {}).get("port"):
            yield _refuse(
                "listeners", f"nats {url}: must have no {door} listener, has one on port {facts[door]['port']}"
            )


async def _refuses_strangers(url: str) -> bool:
    stranger = Client()

    async def quiet(_error: Exception) -> None:  # the client wants a coroutine
        return

    try:
        await stranger.connect(url, connect_timeout=2, error_cb=quiet, **ONE_TRY)
    except (NatsError, OSError, TimeoutError):
        return True
    finally:
        await stranger.close()
    return False


async def _stream_findings(
    jetstream: JetStreamContext, cluster: str, durability: Durability, replicas: int
) -> AsyncIterator[Finding]:
    """Yield what is wrong with the streams."""
    for config in stream_configs(cluster, durability, replicas=replicas):
        assert config.name is not None, "every stream has a name"
        try:
            found = (await jetstream.stream_info(config.name)).config
        except NotFoundError:
            yield _refuse("stream", f"stream {config.name}: must exist, is missing; `leaseway provision` makes it")
            continue
        if config.name == EVENTS and (found.max_bytes or 0) > 0:
            config.max_bytes = found.max_bytes  # how much room facts have is the operator's choice
        for field, (want, have) in differences(config, found).items():
            yield _refuse("stream", f"stream {config.name}: {field} must be {want}, is {have}")


async def _reply_findings(prober: Client, jetstream: JetStreamContext, cluster: str) -> Iterable[Finding]:
    """Return what is wrong with the accounts, by having an answer sent to a subject that its asker may not publish on.

    What a broken set-up stores by it is a message without a tag, which every reader of LW_EVENTS rejects.
    """
    target, asked = f"lw.{cluster}.obs.preflight.probe", f"$JS.API.CONSUMER.RESET.{CONTROL}.preflight"
    before = await _stored_on(jetstream, target)
    await prober.publish(asked, b"{}", reply=target)
    try:
        # answered after the one above, which is therefore where it will ever be
        await prober.request(asked, b"{}", timeout=_PROBE_S)
        await prober.request(asked, b"{}", timeout=_PROBE_S)
    except NatsError:
        return [
            _refuse(
                "accounts", "nats: consumer LW_CONTROL/preflight must answer, does not; `leaseway provision` makes it"
            )
        ]
    if await _stored_on(jetstream, target) > before:
        return [
            _refuse(
                "accounts", f"nats: an answer must never reach {target!r}, which its asker may not publish on; it did"
            )
        ]
    return []


async def _stored_on(jetstream: JetStreamContext, subject: str) -> int:
    """Return how many messages LW_EVENTS holds on `subject`; 0 without the stream."""
    try:
        info = await jetstream.stream_info(EVENTS, subjects_filter=subject)
    except NotFoundError:
        return 0
    return sum((info.state.subjects or {}).values())


async def _mirror_findings(data: Path, url: str, cluster: str) -> Iterable[Finding]:
    """Return what is wrong with what outside tools read; the cluster itself does without it."""
    if not any(member.role == "observer" for member in load_roster(data, cluster).members):
        return []
    async with administer(data, url, KEEPER) as keeper:
        found = await mirrored(keeper)
    told = []
    for stream in MIRRORED:
        lag = found.get(stream, {}).get("mirror", {}).get("lag", 0)
        if stream not in found:
            told.append(f"mirror of {stream}: must exist, is missing; `leaseway provision` makes it")
        elif lag > _MIRROR_LAG_MAX:
            told.append(f"mirror of {stream}: must be at most {_MIRROR_LAG_MAX} messages behind, is {lag}")
    return [Finding(code="mirror", severity="warn", message=each) for each in told]


def _durability_findings(durability: Durability, replicas: int) -> Iterable[Finding]:
    if durability == "relaxed":
        told = "bus durability relaxed: a power cut may lose the newest facts; the next start names what is gone"
        yield Finding(code="durability", severity="warn", message=told)
    elif replicas < 3:
        told = f"bus durability strict: survives the loss of a disk with 3 replicas or more, has {replicas}"
        yield Finding(code="replicas", severity="warn", message=told)


def _refuse(code: str, message: str) -> Finding:
    return Finding(code=code, severity="refuse", message=message)
