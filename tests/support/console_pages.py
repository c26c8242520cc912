"""A page of the console as a browser takes it apart: its elements, tables, banners and links, and whether it is well-formed."""

from html.parser import HTMLParser
from typing import Any, Final, NamedTuple

import aiohttp

ELEMENTS: Final = frozenset(
    {
        "html",
        "head",
        "meta",
        "title",
        "link",
        "body",
        "header",
        "nav",
        "main",
        "h1",
        "h2",
        "p",
        "div",
        "span",
        "a",
        "b",
        "pre",
        "code",
    }
    | {"form", "label", "input", "select", "option", "button", "table", "thead", "tbody", "tr", "th", "td"}
)
"""All that a page may be made of; none of them runs anything."""
ATTRIBUTES: Final = frozenset(
    {
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "rel",
        "href",
        "aria-current",
        "class",
        "role",
        "method",
        "action",
    }
    | {"value", "size", "placeholder", "autofocus", "selected", "inputmode", "colspan"}
)
_EMPTY: Final = frozenset({"meta", "link", "input"})


class Element(NamedTuple):
    """One element that has begun."""

    tag: str
    attributes: dict[str, str]


class Banner(NamedTuple):
    """What a page says before all else."""

    weight: str
    text: str


class Seen(HTMLParser):
    """What a page holds."""

    def __init__(self, status: int, headers: dict[str, str], raw: str) -> None:
        super().__init__(convert_charrefs=True)
        self.status, self.headers, self.raw = status, headers, raw
        self.elements: list[Element] = []
        self.text: dict[str, str] = {}
        """Tag -> the text of all such elements."""
        self.tables: list[list[list[str]]] = []
        self.banners: list[Banner] = []
        self.order: list[str] = []
        """Tags of main's own children, in order; of a div its class."""
        self._open: list[str] = []
        self.feed(raw)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, f"<{tag}> is nothing that a page is made of"
        attributes = {name: value or "" for name, value in attrs}
        assert attributes.keys() <= ATTRIBUTES, f"<{tag}>: {sorted(attributes)}"
        self.elements.append(Element(tag, attributes))
        if self._open[-1:] == ["main"]:
            self.order.append(attributes.get("class", "") if tag == "div" else tag)
        if tag == "div":
            self.banners.append(Banner(attributes["class"], ""))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1:] == [tag], f"</{tag}> within {self._open}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.text[tag] = self.text.get(tag, "") + data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data.strip() and data
        if "div" in self._open and data.strip():
            weight, text = self.banners[-1]
            self.banners[-1] = Banner(weight, f"{text} {data}".strip())

    def rows(self, *headings: str) -> list[dict[str, str]]:
        """Return the rows of the table that has these headings first, by heading; none if there is no such table."""
        for head, *rows in self.tables:
            if tuple(head[: len(headings)]) == headings:
                return [
                    dict(zip(head, (cell.strip() for cell in row), strict=True))
                    for row in rows
                    if len(row) == len(head)
                ]
        return []

    def links(self) -> list[str]:
        """Return where the page's links lead, in order."""
        return [each.attributes["href"] for each in self.elements if each.tag == "a"]

    def fields(self) -> dict[str, str]:
        """Return what stands in the fields of the page's form."""
        return {each.attributes["name"]: each.attributes["value"] for each in self.elements if each.tag == "input"}

    @property
    def lines(self) -> list[str]:
        """Return the lines of its story or state."""
        return self.text.get("pre", "").split("\n")


async def look(client: aiohttp.ClientSession, url: str, **query: Any) -> Seen:
    """Return a page of the console."""
    async with client.get(url, params=query) as answer:
        raw = await answer.text()
        assert answer.content_type == "text/html", raw
        return Seen(answer.status, dict(answer.headers), raw)
