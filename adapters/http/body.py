"""Reads a request's body within bounds and finds out what a router must know of it. A hostile one costs little and no more.

The original bytes stay what they are: engines get them as the client sent them, but for the model id.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from aiohttp import HttpVersion11, web

from adapters.http.errors import ApiError
from adapters.http.members import NotAnObjectError, RepeatedKeyError, Span, spans
from domain.catalogue.tokens import ROUGH_ANSWER, ROUGH_BYTES_PER_TOKEN
from domain.catalogue.work import Picture, picture_of
from domain.errors import BadIdError
from domain.ids import ModelId, model_id
from domain.ports import Clock

DEPTH_MAX = 64
KEYS_MAX = 10_000
ELEMENTS_MAX = 100_000
BODY_FIRST_S = 30
"""A body that comes slower than 1 KiB/s is given up after this time."""
_RATE_BYTES_PER_S = 1024
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of the body after a quote that nothing closes, so that no byte is looked at twice."""
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_DEPTH_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_IMAGE_PARTS: Final = frozenset({"image_url", "input_image", "image"})
IMAGE_TOKENS: Final = 1500
"""What one image of a prompt is taken to need: models differ, most stay below."""


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole request as it came, and what was read in it."""

    body: bytes
    model: ModelId
    model_span: Span
    stream: bool
    stream_options: bool
    """Whether the client says anything of what a stream is to hold besides the answer."""
    max_tokens: int | None
    """The most that the answer may have, as the client states it; None if it does not."""
    image_parts: int
    """Images in the messages."""
    image_bytes: int
    """How much of the body they are."""
    picture: Picture
    """What it asks for if it is a request for pictures."""

    @property
    def images(self) -> bool:
        """Whether there is an image in the messages."""
        return self.image_parts > 0

    @property
    def text_bytes(self) -> int:
        """The size that a token profile judges: the body without its images."""
        return len(self.body) - self.image_bytes

    @property
    def image_tokens(self) -> int:
        """What the images need of the context window, on top of what a token profile says of the text."""
        return self.image_parts * IMAGE_TOKENS

    @property
    def answer_tokens(self) -> int:
        """The most that the answer may have; a guess if the client does not state it."""
        return self.max_tokens if self.max_tokens is not None else ROUGH_ANSWER

    @property
    def est_tokens(self) -> int:
        """A rough guess at the tokens of prompt and answer together, for a model without a token profile."""
        return -(-self.text_bytes // ROUGH_BYTES_PER_TOKEN) + self.image_tokens + self.answer_tokens


def check_headers(request: web.BaseRequest, limit_bytes: int) -> None:
    """Return if the headers announce a JSON body within the limit.

    Raises:
        ApiError: 413, or 415 for a content type or encoding that is not taken.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise ApiError(
            "unsupported_content_encoding", f"Content-Encoding must be identity, got {encoding[:40]!r}", close=True
        )
    if request.content_type != "application/json":
        raise ApiError(
            "unsupported_content_type",
            f"Content-Type must be application/json, got {request.content_type[:80]!r}",
            close=True,
        )
    if (request.content_length or 0) > limit_bytes:
        raise _too_large(limit_bytes)


class BodyReader:
    """Reads the bodies of one process, all of them together within a bound, those that are still on their way included."""

    def __init__(self, limit_bytes: int, all_bytes: int, clock: Clock) -> None:
        """Let one body have `limit_bytes`, and all that are here at once `all_bytes`."""
        self.limit_bytes, self._all_bytes, self._clock = limit_bytes, all_bytes, clock
        self._used_bytes = 0

    @contextlib.asynccontextmanager
    async def reading(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """Give the body for as long as the block keeps it.

        Raises:
            ApiError: 413, 415, 408, 400, or 503 when there is no room for it now.
        """
        check_headers(request, self.limit_bytes)
        reserved = request.content_length if request.content_length is not None else self.limit_bytes
        if self._used_bytes + reserved > self._all_bytes:
            raise ApiError("queue_full", f"bodies of requests fill {self._all_bytes} bytes already", close=True)
        self._used_bytes += reserved
        try:
            await ask_for_body(request)
            body = await read_bytes(request, self.limit_bytes, self._clock)
            self._used_bytes += len(body) - reserved
            reserved = len(body)
            yield body
        finally:
            self._used_bytes -= reserved


async def ask_for_body(request: web.BaseRequest) -> None:
    """Say 100 to one that waits for it before it sends its body."""
    waits = request.headers.get("Expect", "").strip().lower() == "100-continue" and request.version >= HttpVersion11
    if waits and not request.content.is_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # aiohttp's own way to say that the answer has not begun


async def read_bytes(request: web.BaseRequest, limit_bytes: int, clock: Clock) -> bytes:
    """Return the body, counted as it comes.

    Raises:
        ApiError: 413 past the limit, 408 when it comes too slowly, 400 when it is cut.
    """
    if request.content.is_eof() and request.content.exception() is None:
        # a small body has come with its headers: there is nothing to wait for
        whole = request.content.read_nowait()
        if len(whole) > limit_bytes:
            raise _too_large(limit_bytes)
        return whole
    parts: list[bytes] = []
    size, began_us = 0, clock.monotonic_us()
    try:
        while True:
            async with asyncio.timeout(BODY_FIRST_S):
                part = await request.content.readany()
            if not part:
                return b"".join(parts) if len(parts) != 1 else parts[0]
            parts.append(part)
            size += len(part)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            passed_s = (clock.monotonic_us() - began_us) // 1_000_000
            if passed_s > BODY_FIRST_S and size < passed_s * _RATE_BYTES_PER_S:
                raise _too_slow(size)
    except TimeoutError:
        raise _too_slow(size) from None
    except web.RequestPayloadError:
        raise ApiError("invalid_body", "the body is cut or badly framed", close=True) from None


def parse(body: bytes) -> ReadRequest:
    """Return what a router must know of `body`.

    Raises:
        ApiError: 400 with the parameter at fault.
    """
    check_shape(body)
    document, places = _decode(body)
    model = document.get("model")
    if not isinstance(model, str):
        raise ApiError("invalid_model", "model: must be a string", param="model")
    try:
        public = model_id(model)
    except BadIdError as error:
        raise ApiError("invalid_model", str(error), param="model") from None
    image_parts, image_bytes = _images(document.get("messages"))
    return ReadRequest(
        body=body,
        model=public,
        model_span=places["model"],
        stream=_flag(document, "stream"),
        stream_options="stream_options" in document,
        max_tokens=_max_tokens(document),
        image_parts=image_parts,
        image_bytes=image_bytes,
        picture=picture_of(document),
    )


def check_shape(body: bytes) -> None:
    """Return if `body` is neither nested too deeply nor made of too many pieces, whatever else it may be.

    Raises:
        ApiError: 400.
    """
    # strings go first, so that what is counted is structure; the first guard bounds the cost of taking them out
    if body.count(b'"') - body.count(b'\\"') > 2 * (KEYS_MAX + ELEMENTS_MAX):
        raise ApiError("invalid_json", f"the body has more than {KEYS_MAX + ELEMENTS_MAX} strings")
    structure = _STRING.sub(b"", body)
    if structure.count(b":") > KEYS_MAX:
        raise ApiError("invalid_json", f"the body has more than {KEYS_MAX} keys")
    brackets = structure.translate(None, _NO_BRACKETS)
    if structure.count(b",") > ELEMENTS_MAX or len(brackets) > 2 * ELEMENTS_MAX:
        raise ApiError("invalid_json", f"the body has more than {ELEMENTS_MAX} elements")
    depth = 0
    for bracket in brackets:
        depth += _DEPTH_STEP[bracket]
        if depth > DEPTH_MAX:
            raise ApiError("invalid_json", f"the body is nested more than {DEPTH_MAX} deep")


def _decode(body: bytes) -> tuple[dict[str, Any], dict[str, Span]]:
    try:
        document = msgspec.json.decode(body)
        if not isinstance(document, dict):
            raise ApiError("invalid_json", "the body must be a JSON object")
        return document, spans(body)
    except RepeatedKeyError:
        raise ApiError("invalid_json", "a key stands twice at the top of the body") from None
    except (msgspec.DecodeError, NotAnObjectError, RecursionError):
        # the decoder's own words may quote the body
        raise ApiError("invalid_json", "the body is not valid JSON") from None


def _flag(document: dict[str, Any], name: str) -> bool:
    value = document.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ApiError("invalid_body", f"{name}: must be true or false", param=name)
    return value


def _max_tokens(document: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = document.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 1 << 31:
            raise ApiError("invalid_body", f"{name}: must be a whole number below 2^31", param=name)
        if value >= 0:
            return value
    return None


def _images(messages: object) -> tuple[int, int]:
    """Return how many images the messages hold, and their bytes: content parts, or Ollama's `images` beside the content."""
    if not isinstance(messages, list):
        return 0, 0
    said = [message for message in messages if isinstance(message, dict)]
    parts = (part for message in said if isinstance(message.get("content"), list) for part in message["content"])
    images = [part for part in parts if isinstance(part, dict) and part.get("type") in _IMAGE_PARTS]
    beside = [image for message in said if isinstance(message.get("images"), list) for image in message["images"]]
    sizes = [len(image) for image in beside if isinstance(image, str)] + [_image_bytes(image) for image in images]
    return len(images) + len(beside), sum(sizes)


def _image_bytes(part: dict[str, Any]) -> int:
    """Return the length of what an image part carries: a URL, most often one with the image itself in base64."""
    values = (inner for value in part.values() for inner in (value.values() if isinstance(value, dict) else (value,)))
    return max((len(value) for value in values if isinstance(value, str)), default=0)


def _too_slow(size_bytes: int) -> ApiError:
    return ApiError("body_timeout", f"the body came too slowly: {size_bytes} bytes so far", close=True)


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError("body_too_large", f"the body must have at most {limit_bytes} bytes", close=True)
