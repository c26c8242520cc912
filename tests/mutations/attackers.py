"""What can become of history through the bus' own API, by whoever has a member's key, or the servers' configuration."""

import asyncio
import json
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from adapters.headers import decode_headers
from adapters.keys import new_nkey
from adapters.nats.layout import stream_configs
from adapters.nats.provision import reload_servers
from domain.events.commit import encode_commit
from domain.ports import StoredMessage
from domain.subjects import CONTROL, EVENTS, LEDGER, control_subject, ledger_subject
from tests.mutations.changes import begun_falsely
from tests.mutations.living import BURSTS, HISTORY, Backup, Store, server_on
from tests.support.cluster import ClusterUnderTest
from tests.support.nats import CLUSTER

Attack = Callable[[random.Random, ClusterUnderTest, Store], Awaitable[str]]
"""(dice, cluster on a running server, the life that its data is a copy of) -> what was done."""
ANSWER_S: Final = 15.0
REFUSED_S: Final = 0.5
"""A server that refuses a publish answers nothing to it."""
CHUNK_BYTES: Final = 64 * 1024
ROOT_USER: Final = "root"


async def ask(client: Client, what: str, body: object = None, *, within_s: float = ANSWER_S) -> dict[str, Any]:
    """Return the answer of JetStream's API; raise AssertionError with its error."""
    data = b"" if body is None else json.dumps(body).encode()
    answer = dict(json.loads((await client.request(f"$JS.API.{what}", data, timeout=within_s)).data))
    assert "error" not in answer, f"{what}: {answer['error']}"
    return answer


async def _asked_again(client: Client, what: str, body: object) -> dict[str, Any]:
    """Ask what may be asked twice: a server that reads its accounts anew may lose a question."""
    for _ in range(5):
        with suppress(NatsError, TimeoutError):
            return await ask(client, what, body, within_s=3)
    return await ask(client, what, body)


async def let_in(cluster: ClusterUnderTest) -> Client:
    """Return a client that may do everything in the account of the streams: whoever can edit the servers' configuration."""
    seed, public = new_nkey()
    path = cluster.server.data / "nats" / "accounts.conf"
    text = path.read_text()
    mark = "CORE {\n    jetstream: enabled\n    users: [\n"
    assert mark in text
    user = f'      {{nkey: {public}, permissions: {{publish: ">", subscribe: ">"}}}} # {ROOT_USER}\n'
    path.write_text(text.replace(mark, mark + user))
    await reload_servers(cluster.server.data, cluster.server.url)
    client = await nats.connect(cluster.server.url, nkeys_seed_str=seed, reconnect_time_wait=0, error_cb=_quiet)
    cluster.server._clients.append(client)
    await _asked_again(client, f"STREAM.INFO.{LEDGER}", None)
    return client


async def _quiet(_: Exception) -> None:
    pass


# ---- an administrator: the provisioner's key --------------------------------------------------------------------------


async def provisioner_deletes(dice: random.Random, cluster: ClusterUnderTest, _: Store) -> str:
    """Delete some streams."""
    gone = sorted(dice.sample(HISTORY, dice.randint(1, 3)))
    client = await cluster.server.client("provisioner")
    for stream in gone:
        await ask(client, f"STREAM.DELETE.{stream}")
    return " ".join(gone)


async def provisioner_makes_anew(dice: random.Random, cluster: ClusterUnderTest, _: Store) -> str:
    """Delete some streams and make them anew, empty."""
    gone = sorted(dice.sample(HISTORY, dice.randint(1, 3)))
    client = await cluster.server.client("provisioner")
    for stream in gone:
        head = await ask(client, f"STREAM.INFO.{stream}")
        await ask(client, f"STREAM.DELETE.{stream}")
        await ask(client, f"STREAM.CREATE.{stream}", head["config"])
    return " ".join(gone)


async def provisioner_shrinks(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Let a stream keep fewer messages, or less long, than it holds: the server drops the oldest."""
    stream = dice.choice(HISTORY)
    count = len(store.served[stream])
    limit: dict[str, int] = dice.choice(
        [
            {"max_msgs": dice.randrange(1, count)},
            {"max_msgs_per_subject": 1},
            {"max_bytes": dice.randint(2_000, 15_000)},
        ]
    )
    client = await cluster.server.client("provisioner")
    head = await ask(client, f"STREAM.INFO.{stream}")
    await ask(client, f"STREAM.UPDATE.{stream}", {**head["config"], "discard": "old", **limit})
    return f"{stream} {limit}"


# ---- the master's own key on the bus ----------------------------------------------------------------------------------


async def master_key_repeats_a_commit(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Store an old commit once more at the ledger's end."""
    old = dice.choice(store.served[LEDGER])
    client = await cluster.server.client("master")
    await _stored(client, ledger_subject(CLUSTER), old.body)
    return f"version {old.seq}"


async def master_key_changes_a_commit(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Store the newest commit with one more version number and one bit of it changed."""
    last = store.served[LEDGER][-1]
    body = bytearray(last.body.replace(b'"version":%d' % last.seq, b'"version":%d' % (last.seq + 1), 1))
    at, bit = dice.randrange(len(body)), dice.randrange(7)
    body[at] ^= 1 << bit
    client = await cluster.server.client("master")
    await _stored(client, ledger_subject(CLUSTER), bytes(body))
    return f"byte {at} bit {bit}"


async def master_key_ends_safe_mode(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Begin a new generation in the operator's name, or as after lost facts."""
    what, first = begun_falsely(dice, store.served[LEDGER][-1], CLUSTER, store.life.operator)
    client = await cluster.server.client("master")
    await _stored(client, ledger_subject(CLUSTER), encode_commit(first))
    return what


async def _stored(client: Client, subject: str, body: bytes, headers: dict[str, str] | None = None) -> int:
    answer = json.loads((await client.request(subject, body, timeout=ANSWER_S, headers=headers)).data)
    assert "error" not in answer, f"{subject}: {answer}"
    return int(answer["seq"])


# ---- whoever can edit the servers' configuration ----------------------------------------------------------------------


async def root_rewrites(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Make a stream anew and store all of it again, but for one message that is left out, changed or moved."""
    stream = dice.choice(HISTORY)
    what, messages = _edited(dice, store.served[stream])
    client = await let_in(cluster)
    head = await ask(client, f"STREAM.INFO.{stream}")
    await ask(client, f"STREAM.DELETE.{stream}")
    loose = {"deny_delete": False, "deny_purge": False, "duplicate_window": 0}
    await ask(client, f"STREAM.CREATE.{stream}", {**head["config"], **loose})
    for message in messages:
        await _stored(client, message.subject, message.body, _headers_of(message))
    return f"{stream} {what}"


def _headers_of(message: StoredMessage) -> dict[str, str] | None:
    """Return the headers that say nothing of where a message stands, which is not where it stood."""
    kept = {name: value for name, value in decode_headers(message.headers).items() if "Expected" not in name}
    return kept or None


def _edited(dice: random.Random, stored: Sequence[StoredMessage]) -> tuple[str, list[StoredMessage]]:
    messages, at = list(stored), dice.randrange(len(stored))
    match dice.randrange(3):
        case 0:
            del messages[at]
            return f"without {at + 1}", messages
        case 1:
            body = bytearray(messages[at].body)
            place, bit = dice.randrange(len(body)), dice.randrange(8)
            body[place] ^= 1 << bit
            messages[at] = msgspec.structs.replace(messages[at], body=bytes(body))
            return f"{at + 1} byte {place} bit {bit}", messages
        case _:
            other = dice.randrange(len(stored))
            messages[at], messages[other] = messages[other], messages[at]
            return f"{at + 1} and {other + 1} exchanged, all stamped anew", messages


async def root_deletes_a_message(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Have a stream that was made without protection delete some messages: restored, loosened, deleted."""
    stream = dice.choice(HISTORY)
    client = await let_in(cluster)
    await _loosen(client, stream)
    gone = sorted(dice.sample(range(1, len(store.served[stream]) + 1), dice.randint(1, 3)))
    for seq in gone:
        erased = {"seq": seq, "no_erase": bool(dice.randrange(2))}
        await ask(client, f"STREAM.MSG.DELETE.{stream}", erased)
    return f"{stream} {gone}"


async def root_purges(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Purge a stream, or its older part, or one subject of it."""
    stream = dice.choice(HISTORY)
    client = await let_in(cluster)
    await _loosen(client, stream)
    count = len(store.served[stream])
    how: dict[str, object] = dice.choice(
        [
            {},
            {"seq": dice.randrange(2, count + 1)},
            {"keep": dice.randrange(count)},
            {"filter": dice.choice(store.served[stream]).subject},
        ]
    )
    await ask(client, f"STREAM.PURGE.{stream}", how)
    return f"{stream} {how}"


async def _loosen(client: Client, stream: str) -> None:
    """Take a stream's protection away, stamps and all as they were: back it up, delete it, restore it without."""
    head, chunks = await back_up(client, stream)
    await ask(client, f"STREAM.DELETE.{stream}")
    config = {**head["config"], "deny_delete": False, "deny_purge": False}
    await restore(client, stream, Backup({**head, "config": config}, tuple(chunks)))


async def root_restores_streams(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Restore one, two or all streams from a backup of an earlier moment."""
    moment, chosen = dice.randrange(BURSTS - 1), sorted(dice.sample(HISTORY, dice.randint(1, 3)))
    client = await let_in(cluster)
    for stream in chosen:
        await ask(client, f"STREAM.DELETE.{stream}")
        await restore(client, stream, store.backups[moment, stream])
    return f"{' '.join(chosen)} of moment {moment}"


async def root_writes_to_the_ledger(dice: random.Random, cluster: ClusterUnderTest, store: Store) -> str:
    """Store bytes of one's own at the ledger's end."""
    client = await let_in(cluster)
    body = dice.choice([dice.randbytes(dice.randint(1, 300)), b"{}", dice.choice(store.served[EVENTS]).body])
    await _stored(client, ledger_subject(CLUSTER), body)
    return f"{len(body)} bytes {body[:24].hex()}"


ATTACKS: tuple[Attack, ...] = (
    provisioner_deletes,
    provisioner_makes_anew,
    provisioner_shrinks,
    master_key_repeats_a_commit,
    master_key_changes_a_commit,
    master_key_ends_safe_mode,
    root_rewrites,
    root_deletes_a_message,
    root_purges,
    root_restores_streams,
    root_writes_to_the_ledger,
)


# ---- backups -----------------------------------------------------------------------------------------------------------


async def back_up(client: Client, stream: str) -> tuple[dict[str, Any], list[bytes]]:
    """Return (config and state, chunks) of the server's own backup of a stream."""
    inbox = client.new_inbox()
    coming: asyncio.Queue[nats.aio.msg.Msg] = asyncio.Queue()
    heard = await client.subscribe(inbox, cb=coming.put)
    wanted = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES}
    head = await _asked_again(client, f"STREAM.SNAPSHOT.{stream}", wanted)
    chunks: list[bytes] = []
    while True:
        message = await asyncio.wait_for(coming.get(), ANSWER_S)
        if not message.data:
            break
        chunks.append(message.data)
        if message.reply:
            await message.respond(b"")
    await heard.unsubscribe()
    return {"config": head["config"], "state": head["state"]}, chunks


async def restore(client: Client, stream: str, backup: Backup) -> None:
    """Restore a stream, which must not be there."""
    answer = await ask(client, f"STREAM.RESTORE.{stream}", backup.head)
    target = answer["deliver_subject"]
    for chunk in backup.chunks:
        await client.request(target, chunk, timeout=ANSWER_S)
    done = json.loads((await client.request(target, b"", timeout=ANSWER_S)).data)
    assert "error" not in done, done


async def backups(store: Store) -> None:
    """Back up each stream of each older copy through the server's API."""
    for moment in range(BURSTS - 1):
        folder = store.older / f"{moment}-backup"
        shutil.copytree(store.older / str(moment), folder)
        async with server_on(folder) as cluster:
            client = await let_in(cluster)
            for stream in HISTORY:
                head, chunks = await back_up(client, stream)
                store.backups[moment, stream] = Backup(head, tuple(chunks))
        shutil.rmtree(folder)


# ---- attempts by those who may not -----------------------------------------------------------------------------------


MEMBERS: Final = ("n1", "gateway-main", "obs-tool", "projector", "operator", "master", "system", "mirror")


def attempts(store: Store) -> list[tuple[str, str, str, bytes]]:
    """Return (member, what, subject, body) of everything that no member's key lets it do to stored history."""
    made: list[tuple[str, str, str, bytes]] = []
    configs = {config.name: config for config in stream_configs(CLUSTER, "strict")}
    for member in (*MEMBERS, "provisioner"):
        for stream in HISTORY:
            small = json.dumps({"name": stream, "subjects": configs[stream].subjects, "max_msgs": 1}).encode()
            asked = {
                "purge": (f"$JS.API.STREAM.PURGE.{stream}", b""),
                "delete a message": (f"$JS.API.STREAM.MSG.DELETE.{stream}", b'{"seq":1}'),
                "restore": (f"$JS.API.STREAM.RESTORE.{stream}", b"{}"),
            }
            if member != "provisioner":
                asked["shrink"] = (f"$JS.API.STREAM.UPDATE.{stream}", small)
                asked["delete the stream"] = (f"$JS.API.STREAM.DELETE.{stream}", b"")
            for prefix in ("$JS.mirror.API", "$JS.core.API"):
                asked[f"purge by {prefix}"] = (f"{prefix}.STREAM.PURGE.{stream}", b"")
            made += [(member, f"{what} {stream}", subject, body) for what, (subject, body) in asked.items()]
        written = {
            "write a fact of n2": (store.served[EVENTS][0].subject.replace(".node.n1.", ".node.n2."), b"{}"),
            "write to the ledger": (ledger_subject(CLUSTER), store.served[LEDGER][0].body),
            "write a control event": (control_subject(CLUSTER, "settings.cluster"), store.served[CONTROL][-1].body),
        }
        if member == "master":
            del written["write to the ledger"]
        if member == "operator":
            del written["write a control event"]
        made += [(member, what, subject, body) for what, (subject, body) in written.items()]
    return made


async def attempt_all(cluster: ClusterUnderTest, store: Store) -> dict[str, int]:
    """Try everything that no member may; return how often each tried. Whoever is refused is not even answered."""
    clients = {name: await cluster.server.client(name) for name in (*MEMBERS, "provisioner")}
    tried: dict[str, int] = {}
    for member, _, subject, body in attempts(store):
        await clients[member].publish(subject, body, reply=clients[member].new_inbox())
        tried[member] = tried.get(member, 0) + 1
    for client in clients.values():
        await client.flush(int(ANSWER_S))
    return tried
