"""What the bus holds: every stream with its limits, every durable consumer with its filter."""

import dataclasses
from enum import Enum
from typing import Final, Literal

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from adapters.nats.accounts import Member
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER, SNAPSHOTS

Durability = Literal["strict", "relaxed"]

DAY_S: Final = 24 * 3600.0
EVENTS_AGE_S: Final = 7 * DAY_S
LEDGER_AGE_S: Final = 2 * EVENTS_AGE_S
EVENTS_BYTES: Final = 2 * 1024**3
"""Default room for facts; full means that new ones are refused, never that old ones vanish unread."""
SNAPSHOTS_BYTES: Final = 256 * 1024**2
DUPLICATE_WINDOW_S: Final = 120.0
IRREPLACEABLE: Final = (EVENTS, CONTROL, LEDGER, DECISIONS)
"""Streams that nothing else can restore: they are never made anew where they have been before."""


def stream_configs(
    cluster: str, durability: Durability, *, replicas: int = 1, events_bytes: int = EVENTS_BYTES
) -> tuple[StreamConfig, ...]:
    """Return the configuration of every stream of `cluster`, in the order in which they are made."""
    root = f"lw.{cluster}"
    kib = 1024
    facts = (f"{root}.node.>", f"{root}.gateway.>", f"{root}.obs.>")
    decisions = tuple(f"{root}.{kind}.>" for kind in ("lease", "health", "request", "breaker", "safe_mode"))
    events = _kept(EVENTS, facts, replicas, max_age=EVENTS_AGE_S, max_bytes=events_bytes, max_msg_size=128 * kib)
    if durability == "relaxed" and replicas == 1:
        # an acknowledged fact may be lost in a power cut; the master notices it at its next start (a history gap)
        events.persist_mode = PersistMode.ASYNC
    snapshots = _kept(SNAPSHOTS, (f"{root}.snap.>",), replicas, max_bytes=SNAPSHOTS_BYTES, max_msg_size=1024 * kib)
    snapshots.discard = DiscardPolicy.OLD
    control = _kept(CONTROL, (f"{root}.control.>",), replicas, max_msg_size=256 * kib)
    control.allow_atomic = True  # several settings change together or not at all
    return (
        events,
        control,
        _kept(LEDGER, (f"{root}.ledger",), replicas, max_age=LEDGER_AGE_S, max_msg_size=512 * kib),
        _kept(DECISIONS, decisions, replicas, max_age=LEDGER_AGE_S, max_msg_size=64 * kib),
        snapshots,
    )


def _kept(  # limits, each named
    name: str, subjects: tuple[str, ...], replicas: int, *, max_age: float = 0, max_bytes: int = -1, max_msg_size: int
) -> StreamConfig:
    """Return a stream that nobody can delete from and that refuses what does not fit."""
    return StreamConfig(
        name=name,
        subjects=list(subjects),
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        num_replicas=replicas,
        discard=DiscardPolicy.NEW,
        max_age=max_age,
        max_bytes=max_bytes,
        max_msg_size=max_msg_size,
        duplicate_window=DUPLICATE_WINDOW_S,
        deny_delete=True,
        deny_purge=True,
        allow_direct=False,
    )


def consumer_configs(cluster: str, member: Member) -> dict[str, ConsumerConfig]:
    """Return stream name -> durable pull consumer of `member`; it carries the member's name."""
    root, name = f"lw.{cluster}", member.name
    everyone = (f"{root}.health.>", f"{root}.breaker.>", f"{root}.safe_mode.>")
    control = _durable(name, (f"{root}.control.>",))
    if member.role == "node":
        own = (f"{root}.lease.{name}.>", f"{root}.lease.*.{name}.>", f"{root}.request.{name}.>")
        return {CONTROL: control, DECISIONS: _durable(name, (*own, *everyone))}
    if member.role == "gateway":
        catalogue = (f"{root}.node.*.status.>", f"{root}.node.*.model.>")
        return {CONTROL: control, DECISIONS: _durable(name, everyone), EVENTS: _durable(name, catalogue)}
    if member.role == "preflight":
        # it never gets a message: its one use is to be reset, see adapters.nats.preflight
        return {CONTROL: _durable(name, (f"{root}.control.preflight.none",))}
    return {}


def _durable(name: str, filters: tuple[str, ...]) -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=name,
        name=name,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=30.0,
        max_ack_pending=1000,
        filter_subjects=list(filters),
    )


def differences(wanted: StreamConfig, found: StreamConfig) -> dict[str, tuple[str, str]]:
    """Return field -> (wanted, found), as text, where a stream is not as `wanted` says."""
    mine, theirs = dataclasses.asdict(wanted), dataclasses.asdict(found)
    return {
        field: (_told(mine[field]), _told(theirs[field]))
        for field in _COMPARED
        if _told(mine[field]) != _told(theirs[field])
    }


_COMPARED: Final = (
    "subjects", "retention", "storage", "num_replicas", "discard", "max_age", "max_bytes", "max_msg_size",
    "duplicate_window", "deny_delete", "deny_purge", "allow_direct", "persist_mode",
)  # fmt: skip


def _told(value: object) -> str:
    """Return `value` in words; the server has several ways of saying that something is not set."""
    if value in (None, 0, -1, False, "", PersistMode.DEFAULT):
        return "default"
    return str(value.value if isinstance(value, Enum) else value)
