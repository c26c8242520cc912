"""What the machines are told of a request: sizes, flags and estimates of one model's traffic, never its text."""

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from adapters.http.body import ReadRequest
from domain.catalogue.tokens import WINDOW, TokenProfile
from domain.catalogue.work import work_of
from domain.ids import RequestId
from domain.inputs import EngineResult, NewRequest
from domain.ports import Clock

_LENT_BYTES_MAX: Final = 8 * 1024 * 1024
_BYTES_PER_TOKEN_MAX: Final = 16
"""More than any text has. A body with much that its prompt does not show (blanks, a schema), or whose tokens were counted
without a cached part, would make the next one, of another client, seem to fit any window."""
_TOLD_AT_MOST: Final = 1_000
"""Requests whose estimate follows one answer; those of the others follow the next ones."""
_LEARN_US: Final = 100_000
"""Of traffic that is denser than one answer in this time a part is measured: it says the same, and costs nothing then."""


class _Unsized(NamedTuple):
    """What an estimate is made from."""

    text_bytes: int
    max_tokens: int | None
    image_tokens: int


class Sizes:
    """Measures one model's own traffic, and estimates by it."""

    def __init__(self, lane: str, reserve: Callable[[], int], clock: Clock) -> None:
        """Begin without a measurement. `reserve`: tokens kept for an answer of which the client states no bound, at least."""
        self._lane, self._reserve, self._clock = lane, reserve, clock
        self.profile = TokenProfile()
        self._measure = self.profile.measure()
        self._learn_from_us = 0
        self._unsized: dict[RequestId, _Unsized] = {}
        """Open requests that came before there was an estimate, in order of arrival."""

    def describe(self, request: RequestId, read: ReadRequest) -> NewRequest:
        """Return what there is to say of a request; `forget` it when it ends.

        `est_tokens` is 0 while nothing is measured: then nobody knows, and `sized` tells it later.
        """
        text_bytes = read.text_bytes
        asked = _Unsized(text_bytes, read.max_tokens, read.image_tokens)
        est_tokens = self._estimate(asked)
        if not est_tokens:
            self._unsized[request] = asked
        expected = self._measure.expected(text_bytes, read.max_tokens) + read.image_tokens
        size_bytes = len(read.body)
        why = "too_large" if size_bytes > _LENT_BYTES_MAX else ""
        return NewRequest(
            request=request,
            work=work_of(self._lane, tokens=expected, picture=read.picture, size_bytes=size_bytes),
            size_bytes=size_bytes,
            est_tokens=est_tokens,
            streaming=read.stream,
            replayable=True,
            lendable=not why,
            not_lendable=why,
            vision=read.images,
        )

    def would_learn(self, read: ReadRequest) -> bool:
        """Tell whether an answer to `read` teaches something now."""
        if read.images:
            return False
        return len(self.profile.answers) < WINDOW or self._clock.monotonic_us() >= self._learn_from_us

    def learn(self, read: ReadRequest, result: EngineResult) -> None:
        """Take what the model's own engine stated of a request that it answered; it may have stated nothing."""
        # an engine that counts says at least one token of a prompt; without that it did not count
        if result.status != 200 or result.tokens_in <= 0 or not self.would_learn(read):
            return
        self._learn_from_us = self._clock.monotonic_us() + _LEARN_US
        tokens_in = max(result.tokens_in, -(-read.text_bytes // _BYTES_PER_TOKEN_MAX))
        self.profile.learn(read.text_bytes, tokens_in, result.tokens_out)
        self._measure = self.profile.measure()

    def sized(self) -> dict[RequestId, int]:
        """Return the estimates of open requests that had none when they came: each once, a thousand at a time; empty before."""
        if not self.profile.measured:
            return {}
        first = list(islice(self._unsized, _TOLD_AT_MOST))
        return {request: self._estimate(self._unsized.pop(request)) for request in first}

    def forget(self, request: RequestId) -> None:
        """Take note that a request has ended."""
        self._unsized.pop(request, None)

    def _estimate(self, asked: _Unsized) -> int:
        """Return the tokens that a request surely does not exceed; 0 while nobody knows."""
        estimate = self._measure.estimate(asked.text_bytes, asked.max_tokens, self._reserve())
        return estimate + asked.image_tokens if estimate is not None else 0
