"""Why, as the projector tells it: for who asks it over HTTP."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from domain.errors import BadConfigError, UnreachableError
from projections.why.model import Alarm, ModelStory, alarmed
from services.asking import error_of
from services.past.at import known
from services.past.questions import STORIES, Story
from services.past.source import NotKnownError

Get = Callable[[str], Awaitable[tuple[int, Any]]]
"""Returns (status, JSON) of a path of the projector."""


async def story_from(get: Get, url: str, kind: str, name: str) -> Story:
    """Return the projector's answer to a question (services.past.questions); `url` names it in errors.

    Raises:
        NotKnownError: there is no such thing, or nothing is kept of it.
        UnreachableError: the projector cannot say.
        BadConfigError: it refuses the question.
    """
    story = await _asked(get, url, kind, name)
    if story is None and kind == "lease":  # a decision that granted none has the same form
        story = await _asked(get, url, "commit", name)
    if story is None:
        raise AssertionError("a missing answer is raised for all kinds but leases")
    return story


async def _asked(get: Get, url: str, kind: str, name: str) -> Story | None:
    """Return the projector's answer; None of a name that is no lease but may be another decision."""
    status, said = await get(f"/admin/v1/why/{kind}/{quote(name)}")
    if status == 200:
        story: Story = msgspec.convert(said, STORIES[kind])
        return story
    code, why, _ = error_of(said)
    if kind == "lease" and "ask why of the commit" in why:
        return None
    if status == 404 and code == "not_kept":
        raise NotKnownError(why)
    if status >= 500 or status == 404:  # one of an older release knows no such path
        raise UnreachableError(f"projector {url}: answers {status}: {why[:300]}")
    raise BadConfigError(why)


def with_word_of(story: ModelStory, master: Mapping[str, Any] | UnreachableError) -> ModelStory:
    """Return the story with what only a master's own process can say: that it is in safe mode, or (an error) not there.

    Raises:
        NotKnownError: node or model are not known.
    """
    if story.code in {"safe_mode", "bus_away"}:
        return story
    if isinstance(master, UnreachableError):
        return alarmed(known(story), Alarm("no_master", str(master)))
    return alarmed(story, Alarm("safe_mode", str(master.get("doubt", "")))) if master.get("safe_mode") else known(story)
