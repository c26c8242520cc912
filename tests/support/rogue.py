"""A compromised node: its victim, a bus that it can attack, and one flat account to show that each attack is real."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

from nats.aio.client import Client
from nats.js.api import StreamConfig
from nats.js.client import JetStreamContext

from adapters.log.reader import Reader
from adapters.nats.accounts import CORE, SYSTEM, Member, rights
from adapters.nats.enrolment import enrol
from adapters.nats.layout import consumer_configs, stream_configs
from adapters.nats.provision import Provisioned, reload_servers
from adapters.nats.server import NatsServer
from domain.events import codec
from domain.master.inputs import Rejected
from domain.ports import StoredMessage
from domain.subjects import DECISIONS, EVENTS
from tests.support.nats import CLUSTER, NODES, ServerUnderTest
from tests.support.waiting import until

Kind = Literal["open", "permitted", "ours"]
"""One account without rights; one account with the very rights that we give; two accounts with them."""
ROOT = f"lw.{CLUSTER}"


class Scene:
    """Node n1 has been taken over and n2 is its victim: it was granted two leases and has not acknowledged the first."""

    def __init__(self, server: ServerUnderTest) -> None:
        self.server = server
        self.refused: list[str] = []
        self.heard: list[tuple[str, bytes]] = []
        """What reached n2 on its lease subjects."""
        self.beats: list[tuple[str, str]] = []
        """(subject, reply subject) of heartbeats at the master."""
        self.grants = 0
        self.unacknowledged = 0
        """What n1's own consumer has delivered to wherever n1 said, and waits for its acknowledgement."""
        self.victims_ack = ""
        self.rogue: Client
        self.victim: Client
        self.master: Client
        self.core: JetStreamContext

    async def set(self) -> None:
        self.rogue = await self.server.client("n1", errors=self.refused)
        self.victim = await self.server.client("n2")
        self.master = await self.server.client("master")
        self.core = self.master.jetstream()
        for owner in ("n2", "n2", "n1"):
            await self.grant(owner)
        inbox = self.victim.new_inbox()
        answers = await self.victim.subscribe(inbox)
        await self.victim.publish(f"$JS.API.CONSUMER.MSG.NEXT.{DECISIONS}.n2", b'{"batch":1}', reply=inbox)
        self.victims_ack = (await answers.next_msg(5)).reply
        await answers.unsubscribe()
        await self._listen()

    async def _listen(self) -> None:
        async def to_victim(message) -> None:
            self.heard.append((message.subject, message.data))

        async def beat(message) -> None:
            self.beats.append((message.subject, message.reply))
            if message.reply:
                await message.respond(b"thank you")

        await self.victim.subscribe(f"{ROOT}.lease.n2.>", cb=to_victim)
        await self.master.subscribe(f"{ROOT}.hb.>", cb=beat)
        await self.victim.flush()
        await self.master.flush()

    async def grant(self, owner: str) -> None:
        body = json.dumps({"grant": self.grants, "owner": owner}).encode()
        await self.core.publish(f"{ROOT}.lease.{owner}.n9.0011223344556677.granted", body)
        self.grants += 1

    async def say(self, subject: str, body: bytes = b"{}", reply: str = "") -> None:
        await self.rogue.publish(subject, body, reply=reply)

    async def answer(self, subject: str, body: bytes = b"") -> dict[str, object] | None:
        """Return the rogue's answer to a request, None if there is none or it is a refusal."""
        got: list[bytes] = []

        async def note(message) -> None:
            got.append(message.data)

        inbox = self.rogue.new_inbox()
        answers = await self.rogue.subscribe(inbox, cb=note)
        await self.rogue.publish(subject, body, reply=inbox)
        await until("an answer or a refusal", lambda: got or self.refused)
        await answers.unsubscribe()
        return json.loads(got[0]) if got and got[0].startswith(b"{") and b'"error"' not in got[0] else None

    async def hear(self, subject: str, body: bytes = b"{}") -> bytes:
        """Return what comes back, whatever its subject."""
        inbox = self.rogue.new_inbox()
        answers = await self.rogue.subscribe(inbox)
        await self.rogue.publish(subject, body, reply=inbox)
        data: bytes = (await answers.next_msg(5)).data
        await answers.unsubscribe()
        return data

    async def settle(self) -> None:
        """Return when whatever the rogue has said has had all the effect that it will have.

        Everything of it goes through queues, each in order: so what is answered later was done later.
        """
        for _ in range(2):
            assert await self.hear(f"{ROOT}.node.n1.status.accepting")
            assert (
                await self.hear(f"$JS.API.CONSUMER.MSG.NEXT.{DECISIONS}.n1", b'{"batch":1,"no_wait":true}') is not None
            )
            self.unacknowledged = max(self.unacknowledged, (await self.pending_of("n1"))[1])
            assert await self.hear(f"$JS.API.CONSUMER.RESET.{DECISIONS}.n1")
            await self.core.publish(f"{ROOT}.obs.1.heartbeat_seen", b"marker")
            await self.core.publish(f"{ROOT}.safe_mode.left", b"marker")
        await self.victim.flush()

    async def stored(self, stream: str) -> list[tuple[str, bytes]]:
        """Return (subject, body) of what `stream` holds beyond what the scene itself has put there."""
        info = await self.core.stream_info(stream)
        found = [await self.core.get_msg(stream, seq) for seq in range(1, info.state.last_seq + 1)]
        messages = [
            (message.subject or "", message.data or b"")
            for message in found[self.grants if stream == DECISIONS else 0 :]
        ]
        return [each for each in messages if each[1] != b"marker" and not each[0].startswith(f"{ROOT}.node.n1.")]

    async def rejected_facts(self) -> list[str]:
        """Return why the master's reader refuses the facts that n1 has said: they are stored under its own name."""
        reader = Reader(CLUSTER, self.server.credentials("master").cluster_mac_secret)
        codes = []
        for seq in range(1, (await self.core.stream_info(EVENTS)).state.last_seq + 1):
            message = await self.core.get_msg(EVENTS, seq)
            subject = message.subject or ""
            judged = reader.fact(StoredMessage(seq, 1_000, subject, b"", message.data or b""))
            if subject.startswith(f"{ROOT}.node.n1.queue.") and isinstance(judged, Rejected):
                codes.append(judged.code)
        return codes

    def unsigned_heard(self) -> list[tuple[str, bytes]]:
        """Return what n2 has heard on its lease subjects that carries no signature: it believes none of it."""
        return [each for each in self.heard if codec.split_tag(each[1], "sig") is None and b'"grant"' not in each[1]]

    async def pending_of(self, name: str) -> tuple[int, int]:
        """Return (delivered, unacknowledged) of the durable consumer `name` on LW_DECISIONS."""
        info = await self.core.consumer_info(DECISIONS, name)
        assert info.delivered is not None
        return info.delivered.consumer_seq, info.num_ack_pending or 0

    async def comes_true_or_is_refused(self, check: Callable[[], object]) -> bool:
        """Tell whether `check` comes true, rather than the server refusing what should bring it about."""
        await until("the attack or its refusal", lambda: check() or self.refused)
        return bool(check())


@asynccontextmanager
async def flat_server(data: Path, *, permitted: bool) -> AsyncIterator[ServerUnderTest]:
    """Yield a server as one would set it up without thinking of reply subjects: everybody in the account of the streams."""
    async with AsyncExitStack() as stack:
        server = NatsServer(data, cluster=CLUSTER, port=0, monitor_port=0)
        stack.push_async_callback(server.stop)
        await server.start()
        roster = enrol(data, CLUSTER, NODES, {"main": ""})
        (data / "nats" / "accounts.conf").write_text(_flat_accounts(roster.members, permitted=permitted))
        await reload_servers(data, server.url)
        made = Provisioned(nodes=(), roster=roster, streams_made=(), streams_changed=(), consumers_made=())
        under_test = ServerUnderTest(data, [server], made)
        stack.push_async_callback(under_test.close)
        jetstream = (await under_test.client("provisioner")).jetstream()
        for config in stream_configs(CLUSTER, "strict"):
            await jetstream.add_stream(_careless(config))
        for member in roster.members:
            for stream, consumer in consumer_configs(CLUSTER, member).items():
                await jetstream.add_consumer(stream, consumer)
        yield under_test


def _careless(config: StreamConfig) -> StreamConfig:
    config.deny_delete = config.deny_purge = False
    config.allow_direct = True
    return config


def _flat_accounts(members: tuple[Member, ...], *, permitted: bool) -> str:
    users = {
        member.name: json.dumps(
            {"publish": rights(CLUSTER, member).publish, "subscribe": rights(CLUSTER, member).subscribe}
        )
        for member in members
    }
    lines = [
        f"{{nkey: {member.public_key}" + (f", permissions: {users[member.name]}" if permitted else "") + "}"
        for member in members
        if member.role != "system"
    ]
    system = next(member for member in members if member.role == "system")
    return (
        f"system_account: {SYSTEM}\naccounts {{\n  {SYSTEM} {{ users: [ {{nkey: {system.public_key}}} ] }}\n"
        f"  {CORE} {{ jetstream: enabled\n    users: [\n" + "\n".join(lines) + "\n    ]\n  }\n}\n"
    )


__all__ = ["DECISIONS", "EVENTS", "ROOT", "Kind", "Scene", "flat_server"]
