"""What each page shows: asked of the other processes, and put into words."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from adapters.times import utc
from domain.errors import CallerError, LeasewayError, UnreachableError
from projections.decision_log import KINDS
from projections.why.cluster import ClusterAt
from projections.why.model import ModelStory
from services.asking import error_of
from services.console import cluster
from services.console.peers import Peers
from services.console.trouble import Trouble, troubles
from services.past.questions import kind_of
from services.past.source import NotKnownError
from services.past.told import story_from, with_word_of
from services.texts import at, why
from services.texts.sentences import said as sentence_of
from services.texts.telemetry import QUESTIONS, cautions, table_of, window_of

Query = Mapping[str, str]
FILTERS: Final = ("owner", "helper", "kind", "code", "outcome", "request", "lease", "from", "to")
"""What the decision log is asked by: parameters of /admin/v1/decisions."""
ROWS: Final = 200
ROWS_MAX: Final = 1000
"""On a page whose rows would be of one moment else; the projector gives no more at once."""
EVERY_S: Final = 5
"""The page of the cluster is loaded again so often, unless it is told otherwise."""
EVERY_S_MAX: Final = 3600
_WINDOW: Final = ("from", "to", "step", "node", "model")
_OF_STATE: Final = ("generation", "version", "term", "policy", "mode", "safe_mode")
_OTHER_FORM: Final = (msgspec.ValidationError, LookupError, TypeError, AttributeError)
"""What comes of an answer that has not the form which is read here: one of another release may say less, or say it otherwise."""
_LOG: Final = logging.getLogger(__name__)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page."""

    template: str
    title: str
    troubles: list[Trouble]
    more: dict[str, Any]
    """What its template shows."""
    status: int = 200
    every_s: int = 0
    """Seconds after which a browser loads it again; 0: never."""
    problem: str = ""
    """Why there is nothing to be seen."""


class Pages:
    """Makes pages of what `peers` say."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def cluster(self, query: Query) -> Page:
        """Return what runs, waits and is lent now."""
        said, state = await asyncio.gather(self._peers.health(), self._state())
        more: dict[str, Any] = {"processes": said, "state": None, "nodes": [], "links": [], "breakers": []}
        every_s = every_of(query, EVERY_S)
        page = Page(template="cluster", title="Cluster", troubles=troubles(said), more=more, every_s=every_s)
        try:
            if state is not None:
                more |= {name: list(rows(state)) for name, rows in _TABLES.items()}
                more["state"] = {name: state[name] for name in _OF_STATE}
        except _OTHER_FORM as error:
            return _not_understood(page, error)
        return page

    async def decisions(self, query: Query) -> Page:
        """Return the newest rows of the decision log, the newest first."""
        asked = {name: query[name] for name in FILTERS if name in query}
        folded = query.get("rows") != "all"
        more: dict[str, Any] = {"asked": asked, "folded": folded, "kinds": tuple(KINDS), "rows": []}
        more |= {"older": "", "left_out": ""}

        async def show() -> None:
            limit = ROWS
            rows = await self._decided(asked, limit, folded=folded)
            if len(rows) == limit and _one_moment(rows):
                limit = ROWS_MAX
                rows = await self._decided(asked, limit, folded=folded)
            more["rows"] = [_decision(row) for row in reversed(rows)]
            if len(rows) == limit:
                more["older"] = _older(asked, rows, folded=folded)
                if _one_moment(rows):
                    more["left_out"] = f"these are the newest {limit} of one moment: what else it has is left out"

        return await self._page("decisions", "Decisions", more, show, every_s=every_of(query, 0))

    async def why(self, query: Query) -> Page:
        """Return the story of what is asked for."""
        what = query.get("of", "")
        more: dict[str, Any] = {"of": what, "lines": []}

        async def show() -> None:
            kind, name = kind_of(what)
            story = await story_from(self._peers.history, self._peers.projector, kind, name)
            if isinstance(story, ModelStory):
                story = with_word_of(story, await self._state_or_why())
            more["lines"] = list(why.lines_of(story))

        return await self._page("why", f"Why {what}" if what else "Why", more, show if what else None)

    async def at(self, query: Query) -> Page:
        """Return the state of the cluster at a moment: a version, or a time."""
        moment, only = query.get("moment", ""), query.get("only", "")
        more: dict[str, Any] = {"moment": moment, "only": only, "lines": []}

        async def show() -> None:
            asked = {"version" if moment.isascii() and moment.isdigit() else "time": moment}
            said = await self._history("/admin/v1/at", asked | ({"only": only} if only else {}))
            more["lines"] = list(at.lines_of(msgspec.convert(said, ClusterAt)))

        return await self._page("at", f"State at {moment}" if moment else "State", more, show if moment else None)

    async def telemetry(self, query: Query) -> Page:
        """Return what the cluster did over a window."""
        question = query.get("question", "savings")
        asked = {name: query[name] for name in _WINDOW if name in query}
        more: dict[str, Any] = {
            "question": question,
            "questions": QUESTIONS,
            "asked": asked,
            "table": None,
            "window": "",
        }

        async def show() -> None:
            if question not in QUESTIONS:
                raise AskedWronglyError(f"question: must be one of {', '.join(QUESTIONS)}; got {question[:80]!r}")
            said = await self._history(f"/admin/v1/telemetry/{question}", asked)
            table = table_of(question, said, whole=False)
            rows = [{key: row[key] for key in table.columns} for row in table.rows]
            more["table"], more["remarks"] = table._replace(rows=rows), [*table.remarks, *cautions(said)]
            more["window"], more["step_s"] = window_of(said), said["step"]

        return await self._page("telemetry", "Telemetry", more, show)

    async def _page(
        self,
        template: str,
        title: str,
        more: dict[str, Any],
        show: Callable[[], Awaitable[None]] | None,
        *,
        every_s: int = 0,
    ) -> Page:
        """Return a page whose `show` has put into `more` what it shows; what keeps it from that is said in its place."""
        health = asyncio.ensure_future(self._peers.health())
        status, problem = 200, ""
        strange: Exception | None = None
        try:
            if show is not None:
                await show()
        except LeasewayError as error:
            status, problem = _status(error), str(error)
        except _OTHER_FORM as error:
            strange = error
        said = troubles(await health)
        page = Page(
            template=template, title=title, troubles=said, more=more, status=status, every_s=every_s, problem=problem
        )
        return page if strange is None else _not_understood(page, strange)

    async def _decided(self, asked: Query, limit: int, *, folded: bool) -> list[dict[str, Any]]:
        """Return the newest rows of the decision log, the newest last."""
        wanted = {**asked, "limit": str(limit), "folded": "true" if folded else "false"}
        rows: list[dict[str, Any]] = (await self._history("/admin/v1/decisions", wanted))["decisions"]
        return rows

    async def _history(self, path: str, asked: Query) -> Any:
        status, said = await self._peers.history(path, asked)
        if status == 200:
            return said
        _, why_not, _ = error_of(said)
        if status >= 500:
            raise UnreachableError(f"projector {self._peers.projector}: {why_not}")
        raise (NotKnownError if status == 404 else AskedWronglyError)(why_not)

    async def _state(self) -> dict[str, Any] | None:
        state = await self._state_or_why()
        return None if isinstance(state, UnreachableError) else state

    async def _state_or_why(self) -> dict[str, Any] | UnreachableError:
        try:
            return await self._peers.state()
        except UnreachableError as error:
            return error


class AskedWronglyError(CallerError):
    """A question that can never have an answer."""


_TABLES: Final = {"nodes": cluster.nodes, "links": cluster.links, "breakers": cluster.breakers}


def every_of(query: Query, default_s: int) -> int:
    """Return after how many seconds a page is loaded again, as its `every` says; `default_s` if that is no number of seconds."""
    text = query.get("every", "")
    return min(int(text), EVERY_S_MAX) if text.isascii() and text.isdigit() and len(text) < 9 else default_s


def _not_understood(page: Page, error: Exception) -> Page:
    """Return `page` without what was answered; the log says what was looked for in it."""
    _LOG.error("answer_not_understood", exc_info=error, extra={"page": page.template})
    problem = (
        "The answer has another form than is read here. Are all processes of one release? The console's log says more."
    )
    return msgspec.structs.replace(page, status=502, problem=problem)


def _status(error: LeasewayError) -> int:
    if isinstance(error, NotKnownError):
        return 404
    return 400 if isinstance(error, CallerError) else 503


def _decision(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as it is shown: when, what, about whom, in words."""
    ends = {side: f"{row[side]}/{row[f'{side}_model']}" if row[f"{side}_model"] else row[side] for side in _SIDES}
    return {
        "at": row["at"],
        "kind": row["kind"],
        **ends,
        "said": sentence_of(row),
        "times": row.get("rows", 1),
        "request": row["request"],
        "lease": row["lease"],
        "version": row["version"],
    }


_SIDES: Final = ("owner", "helper")


def _one_moment(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether all rows have the same stamp, to the microsecond, in which times are asked for."""
    return bool(rows[0]["at_ns"] // 1000 == rows[-1]["at_ns"] // 1000)


def _older(asked: Query, rows: Sequence[Mapping[str, Any]], *, folded: bool) -> str:
    """Return the query for the rows before these.

    What has the stamp of the oldest one comes again: a commit's rows share theirs, and none is to be missed.
    """
    before = utc(rows[0]["at_ns"] + (0 if _one_moment(rows) else 1000), "microseconds")
    return urlencode({**asked, "to": before} | ({} if folded else {"rows": "all"}))
