"""Posts events to the endpoints of `[[webhooks]]`: each hook for itself, in order, at least once.

A hook reads on from where its endpoint stands. An event that is not taken is tried again, later each time, before the next one;
after hours without success the hook stops and says where it stands. Nothing is kept meanwhile: the streams keep it.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from adapters.clickhouse.pages import BadQueryError
from adapters.clock import random_fraction
from adapters.http.server import Call
from adapters.http.webhook import Outcome, WebhookClient, key_of
from adapters.log.public import Came, Missed, Place, bounds_of, created_of, newest, read_public
from domain.errors import BadConfigError, BusError
from domain.ports import Clock, Stream
from projections.feed import PublicEvent, Wanted, fits
from services.config import WebhookConfig
from services.projector.hook_book import HookBook, Standing
from services.projector.now import BusTime
from services.projector.parameters import Parameters, none_left
from services.projector.since import place_of, since_of
from services.projector.told import Told

_LOG: Final = logging.getLogger("leaseway.webhooks")
_ID: Final = re.compile(r"[A-Za-z0-9/._-]{1,128}")
_ODD: Final = re.compile(r"[^!-~]")
"""What no header can hold: the bus takes any bytes for a subject."""
_BUS_PAUSE_S: Final = 2.0
_S: Final = 1_000_000


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How a hook tries again, in seconds."""

    first_s: float = 1.0
    """Pause after the first failure; it doubles with each further one."""
    most_s: float = 300.0
    note_s: float = 5.0
    """How often a place is kept while nothing is wanted of what comes."""


State = Literal["starting", "ok", "retrying", "waiting", "disabled"]
STATES: Final = get_args(State)
Result = Literal["taken", "refused", "no_answer"]
"""How a post ended: with a 2xx, with another status, without any."""


class Supply(msgspec.Struct, frozen=True):
    """What hooks live on."""

    streams: Mapping[str, Stream]
    clock: Clock
    told: Told
    """Says what of the streams is told."""


class Hook:
    """One webhook. `run` it once; `shown` tells how it is."""

    def __init__(self, config: WebhookConfig, supply: Supply, data: Path, pace: Pace) -> None:
        """Prepare the hook of `config`.

        Raises:
            BadConfigError: its secret cannot be read, or is none; or it says no place to begin at.
        """
        self.config = config
        _check_since(config)
        self._supply, self._clock, self._pace = supply, supply.clock, pace
        self._time = BusTime(supply.streams, supply.clock)
        self._book = HookBook(data, config.name)
        self._key = key_of(secret_of(config))
        self._wanted = Wanted(
            kinds=config.events, subjects=config.subjects, owner=config.owner, helper=config.helper, model=config.model
        )
        self._standing = Standing(place=Place())
        self._begun = False
        self._noted_us = self._clock.monotonic_us()
        self.state: State = "starting"
        self.posts: dict[Result, int] = {}
        """By how they ended."""
        self.retries = 0
        """Posts of an event that was posted before."""
        self.missed = 0
        """Messages that were gone before they could be read."""
        self._attempts = self._failures = 0
        self._stored_us: int | None = None
        """When the event that is being delivered was stored, by the monotonic clock; None if there is none."""
        self._failing_since_us = -1
        self._error = ""
        self._status = 0

    def shown(self) -> dict[str, Any]:
        """Return how the hook is, as JSON has it; the secret is in none of it, nor what may be secret in its url."""
        return {
            "name": self.config.name,
            "endpoint": shown_url(self.config.url),
            "state": self.state,
            "place": str(self._standing.place),
            "delivered": self._standing.delivered,
            "failures": self._failures,
            "attempts": self._attempts,
            "missed": self.missed,
            "failing_s": self._failing_us() // _S,
            "last_status": self._status,
            "error": self._error,
        }

    @property
    def place(self) -> Place:
        """Return how far its endpoint is."""
        return self._standing.place

    def oldest_s(self) -> float:
        """Return how long ago the event was stored that its endpoint does not take; 0 while nothing waits for it."""
        return max(0, self._clock.monotonic_us() - self._stored_us) / _S if self._stored_us is not None else 0.0

    async def run(self) -> None:
        """Deliver until cancelled, or until the endpoint has failed for too long."""
        async with WebhookClient(self.config.url, self._key) as client:
            while self.state != "disabled":
                try:
                    await self._deliver_all(client)
                except (BusError, TimeoutError, OSError) as error:  # OSError: its place cannot be kept
                    await self._wait(str(error) or "the bus is silent")
                except Exception as error:  # noqa: BLE001  # a fault of ours: the others go on, and this one says so
                    _LOG.exception("webhook_failed", extra={"hook": self.config.name})
                    await self._wait(f"a fault of the projector: {type(error).__name__}")

    async def _wait(self, why: str) -> None:
        self.state, self._error = "waiting", why
        _LOG.warning("webhook_waits", extra={"hook": self.config.name, "why": why})
        await asyncio.sleep(_BUS_PAUSE_S)

    async def _deliver_all(self, client: WebhookClient) -> None:
        await self._stand()
        self.state, self._error = "ok", ""
        standing, silence_s = self._standing, self._pace.note_s
        coming = read_public(self._supply.streams, standing.place, silence_s=silence_s, created_ns=standing.created_ns)
        async with aclosing(coming) as items:
            async for item in items:
                match item:
                    case Came():
                        event = self._supply.told.event(item)
                        wanted = event is not None and fits(self._wanted, event)
                        if event is not None and wanted and not await self._deliver(client, item, event):
                            self._disable()
                            return
                        self._advance(item.place, taken=wanted)
                    case Missed():
                        self.missed += item.first - 1 - item.after if item.first > item.after else 0
                        said = {"stream": item.stream, "after": item.after, "first": item.first}
                        _LOG.warning("webhook_missed", extra={"hook": self.config.name, **said})
                        if item.created_ns:  # that stream was made anew
                            self._standing = msgspec.structs.replace(self._standing, created_ns=await self._created())
                        self._advance(item.place, taken=False)
                    case None:
                        self._note()

    async def _stand(self) -> None:
        """Know the place, and have it kept: an endpoint that has taken an event is not posted it again because of a full disk."""
        if not self._begun:
            self._standing = self._book.read() or await self._begin()
            self._begun = True
        self._standing = self._standing.among(await self._created())
        self._note()  # of a new hook, too: it shall not begin elsewhere after a restart

    async def _created(self) -> tuple[int, ...]:
        return created_of(await bounds_of(self._supply.streams))

    async def _begin(self) -> Standing:
        """Return where a new hook begins."""
        since = self.config.since
        streams = self._supply.streams
        place = await place_of(streams, self._clock, since) if since else await newest(streams)
        return Standing(place=place)

    async def _deliver(self, client: WebhookClient, came: Came, event: PublicEvent) -> bool:
        """Post `event` until it is taken; False once the endpoint has failed for too long, or wants no more."""
        message_id = event.id if _ID.fullmatch(event.id) else f"{came.stream}-{came.message.seq}"
        more = {"leaseway-place": str(came.place), "leaseway-subject": _ODD.sub("?", event.subject)}
        age_us = (await self._time.now_ns() - came.message.stamp_ns) // 1000
        self._stored_us = self._clock.monotonic_us() - age_us
        for attempt in range(1 << 30):
            self._attempts += 1
            self.retries += attempt > 0
            outcome = await client.post(message_id, self._clock.wall_us() // _S, event.body, more)
            self._count(outcome)
            if not outcome.error:
                self._recover()
                return True
            self._fail(outcome)
            if outcome.gone or self._failing_us() >= self.config.give_up_h * 3600 * _S:
                return False
            await asyncio.sleep(self._pause_s(attempt, outcome))
        return False

    def _count(self, outcome: Outcome) -> None:
        self._status = outcome.status
        result: Result = "taken" if not outcome.error else "refused" if outcome.status else "no_answer"
        self.posts[result] = self.posts.get(result, 0) + 1

    def _pause_s(self, attempt: int, outcome: Outcome) -> float:
        """Return how long to wait: twice as long each time, up to a bound, and never all hooks at once."""
        pause_s = min(self._pace.first_s * (1 << min(attempt, 30)), self._pace.most_s) * (0.5 + random_fraction() / 2)
        return max(pause_s, min(outcome.retry_after_s, self._pace.most_s))

    def _failing_us(self) -> int:
        return self._clock.monotonic_us() - self._failing_since_us if self._failing_since_us >= 0 else 0

    def _fail(self, outcome: Outcome) -> None:
        self._failures += 1
        if self._failing_since_us < 0:
            self._failing_since_us = self._clock.monotonic_us()
            _LOG.warning("webhook_failing", extra={"hook": self.config.name, "why": outcome.error})
        self.state, self._error = "retrying", outcome.error

    def _recover(self) -> None:
        if self._failing_since_us >= 0:
            _LOG.info("webhook_recovered", extra={"hook": self.config.name, "after_s": self._failing_us() // _S})
        self._failing_since_us, self._stored_us = -1, None
        self.state, self._error = "ok", ""

    def _disable(self) -> None:
        self._note()
        told = {"hook": self.config.name, "place": str(self._standing.place), "why": self._error}
        _LOG.error("webhook_disabled", extra={**told, "failing_s": self._failing_us() // _S})
        self.state = "disabled"

    def _advance(self, place: Place, *, taken: bool) -> None:
        delivered = self._standing.delivered + taken
        self._standing = msgspec.structs.replace(self._standing, place=place, delivered=delivered)
        if taken or self._clock.monotonic_us() - self._noted_us >= self._pace.note_s * _S:
            self._note()

    def _note(self) -> None:
        self._book.write(self._standing)
        self._noted_us = self._clock.monotonic_us()


class Webhooks:
    """All webhooks of a projector."""

    def __init__(self, configs: Sequence[WebhookConfig], supply: Supply, data: Path, pace: Pace | None = None) -> None:
        """Prepare them.

        Raises:
            BadConfigError: a secret cannot be read, or is none; or a hook says no place to begin at.
        """
        self.hooks = [Hook(config, supply, data, pace or Pace()) for config in configs]

    def shown(self) -> list[dict[str, Any]]:
        """Return how each hook is."""
        return [hook.shown() for hook in self.hooks]

    async def answer(self, _: Call, said: Parameters) -> dict[str, Any]:
        """Answer GET /v1/webhooks."""
        none_left(said)
        return {"webhooks": self.shown()}

    async def run(self) -> None:
        """Run all of them until cancelled."""
        async with asyncio.TaskGroup() as group:
            for hook in self.hooks:
                group.create_task(hook.run(), name=f"webhook {hook.config.name}")


def _check_since(config: WebhookConfig) -> None:
    try:
        since_of(config.since)
    except BadQueryError as error:
        raise BadConfigError(f"webhook {config.name}: {error}") from None


def secret_of(config: WebhookConfig) -> str:
    """Return the secret of a hook, from the configuration or from its file.

    Raises:
        BadConfigError: the file cannot be read, or others can read it.
    """
    if config.secret_file is None:
        return config.secret
    try:
        mode = config.secret_file.stat().st_mode & 0o777
        text = config.secret_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfigError(
            f"webhook {config.name}: secret_file {config.secret_file}: cannot be read: {error}"
        ) from None
    if mode & 0o077:
        rule = f"must be readable by its owner alone (0600), mode is {mode:04o}"
        raise BadConfigError(f"webhook {config.name}: secret_file {config.secret_file}: {rule}")
    return text


def shown_url(url: str) -> str:
    """Return where an endpoint is, without the path and query that may hold a token of it."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}/..."
