"""Model ids rewritten on the way: public to local in a request, local to public in an answer, and no other byte touched."""

import re
from typing import Annotated, Final

import msgspec

from adapters.http.body import ReadRequest
from adapters.http.members import NotAnObjectError, RepeatedKeyError, replace, spans
from domain.ids import ModelId

EVENT_BYTES_MAX = 16 * 1024 * 1024
_BORDER: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE: Final = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")
_DONE: Final = b"[DONE]"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the engine states them; 0 where it does not."""

    tokens_in: int = 0
    tokens_out: int = 0


# what no engine can mean is no statement: it would be learnt from, and stored
_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _Counts(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None


class _Timings(msgspec.Struct, frozen=True, kw_only=True):
    prompt_n: _Tokens | None = None
    """Without what was in the cache: alone it says little of the prompt's size."""
    cache_n: _Tokens | None = None
    predicted_n: _Tokens | None = None

    @property
    def tokens_in(self) -> int:
        return self.prompt_n + self.cache_n if self.prompt_n is not None and self.cache_n is not None else 0


class _Stated(msgspec.Struct, frozen=True, kw_only=True):
    usage: _Counts | None = None
    timings: _Timings | None = None


class _UsageEvent(msgspec.Struct, frozen=True, kw_only=True):
    choices: list[msgspec.Raw]
    usage: _Counts


_STATED: Final = msgspec.json.Decoder(_Stated)
_USAGE_EVENT: Final = msgspec.json.Decoder(_UsageEvent)
_ASK_USAGE: Final = b',"stream_options":{"include_usage":true}'


class EventTooLargeError(ValueError):
    """One server-sent event is larger than any real one."""


def request_for_engine(request: ReadRequest, local_id: str, *, ask_usage: bool = False) -> bytes:
    """Return the body with the engine's own model id; `ask_usage`: of a stream, also ask for what it used."""
    more = _ASK_USAGE if ask_usage else b""
    return replace(request.body, request.model_span, msgspec.json.encode(local_id) + more)


def answer_for_client(body: bytes, public: ModelId) -> bytes:
    """Return a JSON answer with the public model id; bytes that have no top-level `model` text are returned as they are."""
    try:
        place = spans(body, until="model").get("model")
    except (NotAnObjectError, RepeatedKeyError):
        return body
    if place is None or body[place[0] : place[0] + 1] != b'"':
        return body
    return replace(body, place, msgspec.json.encode(public))


def usage_in(body: bytes) -> Usage | None:
    """Return the tokens that an answer (or one event's data) states: OpenAI's `usage`, else llama.cpp's `timings`."""
    if b'"usage"' not in body and b'"timings"' not in body:
        return None
    try:
        stated = _STATED.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if stated.usage is not None:
        return Usage(tokens_in=stated.usage.prompt_tokens or 0, tokens_out=stated.usage.completion_tokens or 0)
    if stated.timings is not None:
        return Usage(tokens_in=stated.timings.tokens_in, tokens_out=stated.timings.predicted_n or 0)
    return None


class StreamRewriter:
    """Rewrites a stream of server-sent events: takes bytes as they come, gives whole events, and knows how it ended."""

    def __init__(self, public: ModelId | None, *, hide_usage: bool = False) -> None:
        """Begin a stream whose events are to carry `public`; None: the id that they have.

        `hide_usage`: the event that holds nothing but the usage is for us alone, since the client did not ask for it.
        """
        self._public, self._hide_usage = public, hide_usage
        self._rest = b""
        self._searched = 0
        self.usage = Usage()
        self.done = False
        """The true terminator has come."""
        self.failed = False
        """The engine itself has sent an error event."""

    def feed(self, part: bytes) -> bytes:
        """Return the events that `part` completes, rewritten; empty if it completes none.

        Raises:
            EventTooLargeError: the event that is being received has no end in sight.
        """
        buffer = self._rest + part if self._rest else part
        events: list[bytes] = []
        begin = 0
        # a border may straddle two parts, hence the three bytes already seen
        search = max(0, self._searched - 3)
        while border := _BORDER.search(buffer, search):
            events.append(self._event(buffer[begin : border.end()]))
            begin = search = border.end()
        self._rest = buffer[begin:]
        self._searched = len(self._rest)
        if len(self._rest) > EVENT_BYTES_MAX:
            raise EventTooLargeError(f"an event must have at most {EVENT_BYTES_MAX} bytes")
        return b"".join(events)

    def end(self) -> bytes:
        """Return what is left when the engine ends the stream in order: a terminator without its blank line, or nothing."""
        rest, self._rest = self._rest, b""
        if _data_of(rest).strip() == _DONE:
            self.done = True
            return rest.rstrip(b"\r\n") + b"\n\n"
        return b""

    def _event(self, event: bytes) -> bytes:
        data = _data_of(event)
        if data.strip() == _DONE:
            self.done = True
            return event
        self.usage = usage_in(data) or self.usage
        if self._hide_usage and b'"usage"' in data and _is_usage_alone(data):
            return b""
        if b'"error"' in data and "error" in _places(data, None):
            self.failed = True
        if self._public is None:
            return event
        place = _places(data, "model").get("model")
        if place is None or data[place[0] : place[0] + 1] != b'"':
            return event
        return _replace_in_event(event, place, msgspec.json.encode(self._public))


def _is_usage_alone(data: bytes) -> bool:
    try:
        return not _USAGE_EVENT.decode(data).choices
    except (msgspec.DecodeError, RecursionError):
        return False


def _data_of(event: bytes) -> bytes:
    """Return the event's data as a client puts it together: its `data` lines, joined by line feeds."""
    return b"\n".join(event[begin:end] for begin, end in _data_spans(event))


def _data_spans(event: bytes) -> list[tuple[int, int]]:
    """Return the places of the values of the event's `data` lines; one space after the colon is not part of them."""
    found = []
    for line in _LINE.finditer(event):
        if line[1].startswith(b"data:"):
            begin = line.start(1) + (6 if line[1].startswith(b"data: ") else 5)
            found.append((begin, line.end(1)))
    return found


def _places(data: bytes, until: str | None) -> dict[str, tuple[int, int]]:
    try:
        return spans(data, until)
    except (NotAnObjectError, RepeatedKeyError):
        return {}


def _replace_in_event(event: bytes, place: tuple[int, int], value: bytes) -> bytes:
    """Return `event` with the bytes at `place` of its data replaced. A JSON string never spans lines."""
    before = 0
    for begin, end in _data_spans(event):
        length = end - begin
        if before <= place[0] and place[1] <= before + length:
            at = begin - before
            return event[: at + place[0]] + value + event[at + place[1] :]
        before += length + 1
    return event
