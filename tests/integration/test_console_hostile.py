"""Whatever names, reasons and questions hold, a page of the console shows it as text, and nothing in a page can run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import msgspec
import pytest

from projections.why.cluster import BreakerAt, ClusterAt, FitAt, LeaseAt, LinkAt, NodeAt, QueueAt, RuntimeAt
from projections.why.model import HelperSeen, ModelStory
from services.console.pages import ROWS
from services.console.peers import STATE
from services.console.render import STYLE
from services.texts.plain import printable
from services.texts.telemetry import COLUMNS, QUESTIONS
from tests.support.console_pages import Seen, look
from tests.support.console_peers import Peer, console, serving, state, well

SHOWN = """<script>alert(1)</script>"'`><img src=x onerror=alert(1)></pre></td></option>{{ 7*7 }}&amp;&#60;"""
EVIL = f"{SHOWN}\u202egnp.exe\u2066\u200b\x1b[2J\x00"
TEMPLATES = ("/", "/decisions", "/why", "/at", "/telemetry")


def evil(kind: type, **more: Any) -> dict[str, Any]:
    """Return a struct of this kind as JSON has it, with hostile text in every place for text."""
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        text = str(field.type)
        if field.type is str:
            made[field.name] = EVIL
        elif field.type in {int, bool}:
            made[field.name] = field.type(1)
        elif text.startswith("dict"):
            made[field.name] = {EVIL: EVIL}
        elif text == "tuple[str, ...]":
            made[field.name] = [EVIL]
    return made | more


MODEL = {
    **dict.fromkeys(("id", "local_id", "lane", "engine", "not_accepting", "hash"), EVIL),
    **dict.fromkeys(("slots", "context", "held", "in_engine", "lent", "samples", "token_us"), 1),
}
NODE = dict.fromkeys(("node", "url", "health"), EVIL) | {
    "enrolled": True,
    "retired": False,
    "registered": True,
    "draining": False,
    "silent_us": 1,
}
LINK = dict.fromkeys(("link", "owner", "owner_model", "helper", "helper_model"), EVIL)
LEASE = LINK | {"lease": EVIL, "reason": EVIL, "slots": 1, "out": 1, "age_us": 1, "job_us": 1, "gain_us": 1}
EVIL_STATE = state(
    generation=EVIL,
    policy=EVIL,
    version=EVIL,
    term=EVIL,
    nodes=[NODE | {"models": [MODEL | {"ready": True}, MODEL | {"ready": False, "not_accepting": ""}]}],
    links=[LINK, LINK | {"link": "without a lease"}],
    leases=[LEASE],
    breakers=[{"node": EVIL, "model": EVIL, "state": EVIL, "failures": 1, "until_us": 9}],
)
AT = evil(ClusterAt) | {
    name: [evil(kind)]
    for name, kind in {
        "nodes": NodeAt,
        "leases": LeaseAt,
        "fits": FitAt,
        "runtimes": RuntimeAt,
        "links": LinkAt,
        "breakers": BreakerAt,
        "queues": QueueAt,
    }.items()
}
STORY = evil(ModelStory, helpers=[evil(HelperSeen, verdict=None)], last_plan=None)


def decision(number: int, **more: Any) -> dict[str, Any]:
    """Return a row of the decision log."""
    names = ("owner", "owner_model", "helper", "helper_model", "reason", "lease", "at")
    at_ns = 1_790_000_000_000_000_000 + number * 1_000_000
    said = {"kind": "cleared", "request": EVIL + str(number), "version": number, "at_ns": at_ns, "rows": 2}
    return dict.fromkeys(names, EVIL) | said | more


def telemetry(question: str) -> dict[str, Any]:
    """Return an answer of telemetry; what is no number is hostile."""
    row: dict[str, Any] = {name: 1 if name.endswith("_us") else EVIL for name in COLUMNS[question]}
    if question == "idle":
        row |= {"state": "unknown"}
    told = [row | {"t": 60, "counted_in": 60, "backlog": 1}]
    return {"from": 0, "to": 120, "step": 60, "source": "minutes", "truncated": True, question: told}


class Page:
    """A console whose peers say hostile things."""

    def __init__(self, url: str, client: aiohttp.ClientSession, projector: Peer, master: Peer) -> None:
        self.url, self.client, self.projector, self.master = url, client, projector, master

    async def look(self, path: str, **query: str) -> Seen:
        """Return a page after having looked for whatever may not be in any."""
        seen = await look(self.client, self.url + path, **query)
        assert all(char.isprintable() or char == "\n" for char in seen.raw), (
            "something that nobody sees, or that turns text"
        )
        for tag, attributes in seen.elements:
            for name in ("href", "action"):
                where = attributes.get(name, "/")
                assert (where.startswith("/"), where.startswith("//")) == (True, False), (tag, where)
            if attributes.get("http-equiv"):
                assert attributes["content"].isdigit()
        return seen


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    answers: dict[str, Any] = {
        "/health": {"status": EVIL, "error": EVIL},
        "/admin/v1/decisions": {"decisions": [decision(number) for number in range(ROWS)]},
        "/admin/v1/at": AT,
    }
    answers |= {f"/admin/v1/telemetry/{question}": telemetry(question) for question in QUESTIONS}
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(
            serving(Peer({"/health": well(status="safe_mode", doubt=EVIL, feed=EVIL), STATE: EVIL_STATE}))
        )
        projector = await stack.enter_async_context(serving(Peer(answers)))
        gateway = await stack.enter_async_context(serving(Peer({"/health": (500, {"error": {"message": EVIL}})})))
        urls = {"master": master.url, "projector": projector.url, "gateway": gateway.url}
        url = await stack.enter_async_context(console(tmp_path, **urls))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Page(url, client, projector, master)


TEXT = printable(EVIL)


def words(text: str) -> str:
    return " ".join(text.split())


async def test_the_page_of_the_cluster_shows_hostile_names_reasons_and_doubts_as_text(page: Page):
    seen = await page.look("/")
    alarm, *_ = seen.banners
    assert words(TEXT) in words(alarm.text)
    assert sum(words(TEXT) in words(banner.text) for banner in seen.banners) == 4
    cells = {heading: value for row in seen.rows("node") for heading, value in row.items() if TEXT in value}
    assert cells.keys() == {"node", "health", "model", "engine", "model is"}
    first, second = seen.tables[1][1:]
    assert [TEXT in cell for cell in first] == [True, True, True, False, False, False, False, False, True]
    assert [TEXT in cell for cell in second] == [True, True, False]
    assert [TEXT in cell for cell in seen.tables[2][1]] == [True, True, False, False]
    assert TEXT in {row["state"] for row in seen.rows("process")}
    asked = {value for link in seen.links() for _, value in parse_qsl(urlsplit(link).query)}
    assert asked == {EVIL, f"{EVIL}/{EVIL}", "0"}, "a link asks of the very name"


async def test_the_decision_log_shows_hostile_rows_as_text_and_its_links_ask_of_their_very_names(page: Page):
    seen = await page.look("/decisions", owner=EVIL, rows="all")
    rows = seen.rows("when (UTC)")
    assert len(rows) == ROWS
    assert all(TEXT in rows[0][heading] for heading in ("when (UTC)", "owner", "helper", "what"))
    assert seen.fields()["owner"] == TEXT
    links = [dict(parse_qsl(urlsplit(link).query)) for link in seen.links()]
    assert {"of": EVIL + "0"} in links
    assert {"of": EVIL} in links
    assert links[-1]["owner"] == EVIL, "older ones are those of the same question"
    assert links[-1]["rows"] == "all"


async def test_a_story_and_a_state_show_hostile_text_as_text(page: Page):
    page.projector.answers[f"/admin/v1/why/model/n1/{SHOWN}"] = STORY
    seen = await page.look("/why", of=f"n1/{SHOWN}")
    assert (seen.status, words(TEXT) in words("".join(seen.lines))) == (200, True)
    assert seen.fields()["of"] == f"n1/{SHOWN}"
    assert f"n1/{SHOWN}" in seen.text["h1"]
    assert f"n1/{SHOWN}" in seen.text["title"]
    seen = await page.look("/at", moment=EVIL, only=EVIL)
    assert (seen.status, TEXT in "".join(seen.lines)) == (200, True)
    assert seen.fields() == {"moment": TEXT, "only": TEXT}
    assert TEXT in seen.text["h1"]


async def test_telemetry_shows_hostile_cells_and_remarks_as_text(page: Page):
    for question in QUESTIONS:
        seen = await page.look("/telemetry", question=question, node=EVIL)
        assert seen.status == 200, question
        assert words(TEXT) in words(seen.text["table" if question != "idle" else "p"]), question
        assert seen.fields()["node"] == TEXT


async def test_no_parameter_makes_more_of_a_page_than_text(page: Page):
    names = ("of", "moment", "only", "question", "every", "rows", "owner", "kind", "code", "to", "step", EVIL)
    for path in TEMPLATES:
        plain = await page.look(path)
        for query in (dict.fromkeys(names, EVIL), {"every": "5;url=https://evil.example"}, {"every": "9" * 30}):
            seen = await page.look(path, **query)
            assert (path, seen.status in {200, 400}) == (path, True)
            assert seen.elements[:6] == [
                each if each.tag != "title" else seen.elements[at] for at, each in enumerate(plain.elements[:6])
            ]


@pytest.mark.parametrize("status", [400, 404, 503])
async def test_what_a_refusal_says_is_shown_as_text(page: Page, status: int):
    code = "not_kept" if status == 404 else "bad_query"
    for each in ("decisions", "why/commit/1", "at", "telemetry/savings"):
        page.projector.answers[f"/admin/v1/{each}"] = (status, {"error": {"code": code, "message": EVIL}})
    for path in ("/decisions", "/why?of=1", "/at?moment=1", "/telemetry"):
        seen = await page.look(path)
        assert (path, seen.status) == (path, status)
        assert words(TEXT) in words(seen.banners[-1].text)


async def test_a_page_is_for_this_origin_alone_runs_nothing_and_is_not_kept(page: Page):
    for path in (*TEMPLATES, "/why?of=nonsense"):
        seen = await page.look(path)
        policy = dict(part.strip().split(" ", 1) for part in seen.headers["Content-Security-Policy"].split(";"))
        assert policy == {
            "default-src": "'none'",
            "style-src": "'self'",
            "form-action": "'self'",
            "base-uri": "'none'",
            "frame-ancestors": "'none'",
        }
        assert seen.headers["X-Content-Type-Options"] == "nosniff"
        assert seen.headers["Cache-Control"] == "no-store"
        assert seen.headers["Referrer-Policy"] == "no-referrer"
        assert seen.headers["Content-Type"] == "text/html; charset=utf-8"
        assert seen.headers["Server"] == "leaseway"
        assert [each.attributes["href"] for each in seen.elements if each.tag == "link"] == ["/style.css"]
        classes = {name for each in seen.elements for name in each.attributes.get("class", "").split()}
        assert all(f".{name}" in STYLE for name in classes), classes


async def test_the_style_is_a_file_of_its_own_and_loads_nothing(page: Page):
    async with page.client.get(f"{page.url}/style.css") as answer:
        assert (answer.status, answer.content_type, await answer.text()) == (200, "text/css", STYLE)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert not [word for word in ("url(", "@import", "//", "expression") if word in STYLE]


async def test_the_read_api_serves_what_stands_below_its_paths_and_leads_nowhere_else(page: Page):
    """A path with dots would be another one by the time the projector is asked."""
    page.projector.asked.clear()
    page.projector.answers["/v1/webhooks"] = {"webhooks": []}
    where = urlsplit(page.url)
    for path in (
        "/admin/v1/why/../../../v1/webhooks",
        "/admin/v1/why/%2e%2e/%2E%2E/../v1/webhooks",
        "/admin/v1/telemetry/./../../../v1/webhooks",
        "/admin/v1/telemetry",
        "/v1/webhooks",
    ):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.read())[9:12] == b"404", path
        writer.close()
    assert page.projector.asked == []
    async with page.client.get(f"{page.url}/admin/v1/decisions?limit=1&limit=2") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "bad_query")
    page.projector.answers["/admin/v1/decisions"] = (
        400,
        {"error": {"code": "bad_query", "message": EVIL, "param": "x"}},
    )
    async with page.client.get(f"{page.url}/admin/v1/decisions?x=%3C%3E") as answer:
        assert (answer.status, await answer.json()) == page.projector.answers["/admin/v1/decisions"]
        assert (answer.content_type, answer.headers["X-Content-Type-Options"]) == ("application/json", "nosniff")
    assert page.projector.asked == ["/admin/v1/decisions?x=%3C%3E"]
