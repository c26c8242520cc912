"""What the machines are told of a request: sizes, flags and estimates of one model's traffic, never its text."""

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from adapters.http.body import ReadRequest
from domain.catalogue.tokens import WINDOW, Measure, TokenProfile
from domain.catalogue.work import TOKEN_LANES, text_work, work_of
from domain.ids import RequestId
from domain.inputs import EngineResult, NewRequest, NewSize
from domain.ports import Clock

_LENT_BYTES_MAX: Final = 8 * 1024 * 1024
_BYTES_PER_TOKEN_MAX: Final = 16
"""More than any text has. A body with much that its prompt does not show (blanks, a schema), or whose tokens were counted
without a cached part, would make the next one, of another client, seem to fit any window."""
_TOLD_AT_MOST: Final = 1_000
"""Requests whose estimate follows one answer; those of the others follow the next ones."""
_LEARN_US: Final = 100_000
"""Of traffic that is denser than one answer in this time a part is measured: it says the same, and costs nothing then."""


class _Asked(NamedTuple):
    """What an estimate of tokens is made from."""

    text_bytes: int
    max_tokens: int | None
    image_tokens: int


def _asked(read: ReadRequest) -> _Asked:
    return _Asked(read.text_bytes, read.max_tokens, read.image_tokens)


class Sizes:
    """Measures one model's own traffic, and estimates by it."""

    def __init__(self, lane: str, reserve: Callable[[], int], clock: Clock) -> None:
        """Begin without a measurement. `reserve`: tokens kept for an answer of which the client states no bound, at least."""
        self._lane, self._reserve, self._clock = lane, reserve, clock
        self.profile = TokenProfile()
        self.learned = 0
        """How many answers have changed the profile."""
        self._measure = self.profile.measure()
        self._learn_from_us = 0
        self._unsized: dict[RequestId, _Asked] = {}
        """Open requests that came before there was an estimate, in order of arrival."""
        self._told_first = False
        """The works of open requests were told after the first sample, which makes a token of what was a guess."""

    def remember(self, profile: TokenProfile) -> None:
        """Begin with what an earlier process measured, before the first request comes."""
        self.profile = profile
        self._measure = profile.measure()

    def describe(self, request: RequestId, read: ReadRequest) -> NewRequest:
        """Return what there is to say of a request; `forget` it when it ends.

        `est_tokens` is 0 while nothing is measured: then nobody knows, and `sized` tells it later.
        """
        asked = _asked(read)
        est_tokens = self._estimate(asked)
        if not est_tokens:
            self._unsized[request] = asked
        size_bytes = len(read.body)
        why = "too_large" if size_bytes > _LENT_BYTES_MAX else ""
        return NewRequest(
            request=request,
            work=work_of(
                self._lane, tokens=_expected(self._measure, asked), picture=read.picture, size_bytes=size_bytes
            ),
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
        if self.would_learn(read) and _teach(self.profile, read, result):
            self._learn_from_us = self._clock.monotonic_us() + _LEARN_US
            self._measure = self.profile.measure()
            self.learned += 1

    @property
    def is_rough(self) -> bool:
        """Whether work is guessed still: another unit than the one that the first answer will give."""
        return self._lane in TOKEN_LANES and not self.profile.ratio_logs

    def work_by_now(self, read: ReadRequest) -> int:
        """Return the work that `read` would be stated at now (micro-units); 0 where that is what it was stated at."""
        return self._work(_asked(read)) if self._lane in TOKEN_LANES else 0

    def work_of_lent(self, read: ReadRequest, result: EngineResult) -> int:
        """Return the work of a lent request whose owner had only guessed it (micro-units); 0 if it is not known here either.

        The answer itself is the first sample then, as it is at an owner.
        """
        if self._lane not in TOKEN_LANES:
            return 0
        profile = TokenProfile()
        _teach(profile, read, result)
        if profile.ratio_logs:
            return text_work(_expected(profile.measure(), _asked(read)))
        return 0 if self.is_rough else self.work_by_now(read)

    def sized(self) -> dict[RequestId, NewSize]:
        """Return what is known by now of open requests that came before it was, a thousand at a time; empty before.

        Their estimates each once. Their works with these, and of the first thousand after the very first sample too.
        """
        if self.profile.measured:
            first = list(islice(self._unsized, _TOLD_AT_MOST))
            return {request: self._new_size(self._unsized.pop(request)) for request in first}
        if self._told_first or self.is_rough:
            return {}
        self._told_first = True
        return {request: self._new_size(asked) for request, asked in islice(self._unsized.items(), _TOLD_AT_MOST)}

    def forget(self, request: RequestId) -> None:
        """Take note that a request has ended."""
        self._unsized.pop(request, None)

    def _new_size(self, asked: _Asked) -> NewSize:
        return NewSize(est_tokens=self._estimate(asked), work=self._work(asked) if self._lane in TOKEN_LANES else 0)

    def _work(self, asked: _Asked) -> int:
        return text_work(_expected(self._measure, asked))

    def _estimate(self, asked: _Asked) -> int:
        """Return the tokens that a request surely does not exceed; 0 while nobody knows."""
        estimate = self._measure.estimate(asked.text_bytes, asked.max_tokens, self._reserve())
        return estimate + asked.image_tokens if estimate is not None else 0


def _expected(measure: Measure, asked: _Asked) -> int:
    return measure.expected(asked.text_bytes, asked.max_tokens) + asked.image_tokens


def _teach(profile: TokenProfile, read: ReadRequest, result: EngineResult) -> bool:
    """Let `profile` learn from an answer to `read`; tell whether there was something to learn."""
    # an engine that counts says at least one token of a prompt; without that it did not count
    if result.status != 200 or not result.complete or result.tokens_in <= 0 or read.images:
        return False
    tokens_in = max(result.tokens_in, -(-read.text_bytes // _BYTES_PER_TOKEN_MAX))
    profile.learn(read.text_bytes, tokens_in, result.tokens_out)
    return True
