"""Keeps the mirrors that outside tools read: made for the first tool, kept while there is one, removed with the last.

A mirror costs the server one more store of every event; who has no tool pays nothing. nats-py does not know consumers that a
mirror follows, so these few requests are said as JetStream's API has them.
"""

import asyncio
import json
from collections.abc import Collection
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from adapters.nats.outside import KEEPER, MIRRORED, delivered, mirror_source
from domain.errors import BadConfigError, UnreachableError
from domain.subjects import CONTROL, DECISIONS, EVENTS

_API_S: Final = 5.0
_DEADLINE_S: Final = 30.0
_RETRY_S: Final = 0.1
_NO_STREAM, _NO_CONSUMER = 10059, 10014
_UNSURE: Final = frozenset({10008, 10023, 10039, 10076})
"""A cluster has no leader yet, or a server has not read its accounts: ask again."""
_SECOND_NS: Final = 1_000_000_000
_BYTES: Final = {EVENTS: 1024**3, CONTROL: 128 * 1024**2, DECISIONS: 768 * 1024**2}
"""Room of each mirror; full means that the oldest go, never that the stream waits."""
_AGE_S: Final = {EVENTS: 7 * 86_400, CONTROL: 0, DECISIONS: 14 * 86_400}
PENDING_MAX: Final = 5000
"""Messages on their way to a mirror that it has not stored yet."""
UNACKED_MAX: Final = 1000
"""Messages that a tool may have taken and not acknowledged."""


async def ensure_mirrors(
    core: Client, keeper: Client, cluster: str, tools: Collection[str], *, replicas: int
) -> list[str]:
    """Make mirrors and the durable consumers of `tools` on them as they must be; return what was made, `<stream>[/<name>]`.

    `core`: signed in as provisioner; `keeper`: as the keeper of the mirrors. A mirror of a stream that was made anew since is
    made anew as well: it would hold another history.

    Raises:
        BadConfigError: the server refuses one.
        UnreachableError: it does not answer; a server that has read an account for the first time may have to be restarted.
    """
    made: list[str] = []
    for stream in MIRRORED:
        if not tools:
            await _remove(core, keeper, stream)
            continue
        if await _ensure_mirror(core, keeper, cluster, stream, replicas):
            made.append(stream)
        made += [f"{stream}/{name}" for name in sorted(tools) if await _ensure_consumer(keeper, stream, _reading(name))]
        for name in await _names(keeper, stream):
            if name not in tools:
                await _ask(keeper, f"CONSUMER.DELETE.{stream}.{name}", b"", but={_NO_CONSUMER})
    return made


async def mirrored(keeper: Client) -> dict[str, dict[str, Any]]:
    """Return what JetStream says of each mirror that there is, by stream."""
    found = {stream: await _ask(keeper, f"STREAM.INFO.{stream}", b"", but={_NO_STREAM}) for stream in MIRRORED}
    return {stream: info for stream, info in found.items() if "error" not in info}


async def _ensure_mirror(core: Client, keeper: Client, cluster: str, stream: str, replicas: int) -> bool:
    """Make or update one mirror; tell whether it is new."""
    await _ensure_consumer(core, stream, _followed(stream))
    source = await _ask(core, f"STREAM.INFO.{stream}", b"")
    found = await _ask(keeper, f"STREAM.INFO.{stream}", b"", but={_NO_STREAM})
    wanted = _config(cluster, stream, replicas)
    if "error" not in found and _is_of(found, source):
        if any(found["config"].get(field) != value for field, value in wanted.items() if field in _UPDATED):
            await _ask(keeper, f"STREAM.UPDATE.{stream}", json.dumps(found["config"] | wanted).encode())
        return False
    if "error" not in found:
        await _remove(core, keeper, stream)
        await _ensure_consumer(core, stream, _followed(stream))
    wanted["metadata"] = {"source_created": source["created"]}
    await _ask(keeper, f"STREAM.CREATE.{stream}", json.dumps(wanted).encode())
    return True


def _is_of(mirror: dict[str, Any], source: dict[str, Any]) -> bool:
    """Tell whether `mirror` mirrors this very life of its stream."""
    return bool(mirror["config"].get("metadata", {}).get("source_created") == source["created"])


async def _remove(core: Client, keeper: Client, stream: str) -> None:
    await _ask(keeper, f"STREAM.DELETE.{stream}", b"", but={_NO_STREAM})
    await _ask(core, f"CONSUMER.DELETE.{stream}.{KEEPER}", b"", but={_NO_STREAM, _NO_CONSUMER})


_UPDATED: Final = ("max_bytes", "max_age", "num_replicas", "republish")


def _config(cluster: str, stream: str, replicas: int) -> dict[str, Any]:
    everything = f"lw.{cluster}.>"
    config = {
        "name": stream,
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "discard": "old",
        "max_bytes": _BYTES[stream],
        "max_age": _AGE_S[stream] * _SECOND_NS,
        "mirror": mirror_source(stream),
        "republish": {"src": everything, "dest": everything},
    }
    # nothing is lost with a mirror's newest messages: it takes them again
    return config | ({"persist_mode": "async"} if replicas == 1 else {})


def _followed(stream: str) -> dict[str, Any]:
    """Return the consumer in CORE that a mirror follows."""
    return {
        "durable_name": KEEPER,
        "name": KEEPER,
        "deliver_policy": "all",
        "deliver_subject": delivered(stream),
        "ack_policy": "flow_control",
        "flow_control": True,
        "idle_heartbeat": _SECOND_NS,
        "max_ack_pending": PENDING_MAX,
        "max_deliver": -1,
    }


def _reading(name: str) -> dict[str, Any]:
    """Return the consumer of one tool: it begins with the oldest event, and is reset to wherever the tool likes."""
    return {
        "durable_name": name,
        "name": name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 30 * _SECOND_NS,
        "max_ack_pending": UNACKED_MAX,
        "max_waiting": 8,
        "max_batch": 1000,
    }


async def _ensure_consumer(client: Client, stream: str, config: dict[str, Any]) -> bool:
    """Make a consumer unless it is there; tell whether it was made."""
    found = await _ask(client, f"CONSUMER.INFO.{stream}.{config['name']}", b"", but={_NO_CONSUMER})
    if "error" not in found:
        return False
    body = json.dumps({"stream_name": stream, "config": config}).encode()
    await _ask(client, f"CONSUMER.CREATE.{stream}.{config['name']}", body)
    return True


async def _names(keeper: Client, stream: str) -> list[str]:
    return sorted((await _ask(keeper, f"CONSUMER.NAMES.{stream}", b"")).get("consumers") or ())


async def _ask(client: Client, what: str, body: bytes, *, but: Collection[int] = ()) -> dict[str, Any]:
    """Return the answer of JetStream's API; errors whose code is in `but` are answers too."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _DEADLINE_S
    why = ""
    while loop.time() < give_up:
        try:
            answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{what}", body, timeout=_API_S)).data)
        except NatsError as error:
            why = str(error)
        else:
            code = answer.get("error", {}).get("err_code", 0)
            if not code or code in but:
                return answer
            why = f"{answer['error'].get('description', answer)} ({code})"
            if code not in _UNSURE:
                raise BadConfigError(f"nats {what}: must be accepted, is refused: {why}")
        await asyncio.sleep(_RETRY_S)
    raise UnreachableError(
        f"nats {what}: no answer within {_DEADLINE_S:g} s: {why}; restart the servers one after another"
    )
