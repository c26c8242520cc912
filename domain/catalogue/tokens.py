"""How many tokens a request needs, estimated and never counted: from the size of its body and what engines stated of others.

A profile belongs to one model of one node and learns from that model's own answers: bytes of the body per token of the prompt,
and tokens of the answer. Two questions are asked of it, and they want different answers:

- `expected`: what the request is most likely to take. It becomes the request's work, whose price must be right on average.
- `estimate`: what it surely does not exceed. It is held against a helper's context window, where too little means an answer cut
  short. It is pulled up by the profile's own measured spread, so that traffic that is all alike is taken at its word and mixed
  traffic is not. No margin is configured.

Integers only, so that what a node decides by it can be told again.
"""

from typing import Final

import msgspec

from domain import fixed

WINDOW: Final = 50
"""Samples kept of each kind; the oldest goes first."""
MEASURED_FROM: Final = 2
"""Samples from which on a spread is measured."""
DEVIATIONS: Final = 2
"""So many deviations below the mean is the ratio that an estimate takes: 97 of 100 bodies have more bytes per token."""
SIZE_MAX: Final = 1 << 40
TOKENS_MAX: Final = 1 << 31
"""What is beyond these is no request: it counts as this."""
ROUGH_BYTES_PER_TOKEN: Final = 4
ROUGH_ANSWER: Final = 256
"""The guess that stands in for a model that was never measured, where some figure is needed."""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile says now, worked out: asking it costs next to nothing."""

    ratio: int
    """Bytes per token, the mean; Q32. 0 if none was measured."""
    low_ratio: int
    """Bytes per token that nearly every body has at least; Q32. 0 without samples enough."""
    answer: int
    """Tokens of the mean answer; -1 if none was measured."""
    long_answer: int
    """Tokens that 95 of 100 answers stay within."""

    def estimate(self, size_bytes: int, max_tokens: int | None, reserve: int) -> int | None:
        """Return the tokens of prompt and answer that a request of `size_bytes` surely does not exceed.

        None without a measured profile: then nobody knows whether it fits a window. `max_tokens` is the client's own bound of the
        answer; without one, the answer has what 95 of 100 had, and at least `reserve` (`scheduling_context_reserve`).
        """
        if not self.low_ratio:
            return None
        answer = max_tokens if max_tokens is not None else max(reserve, self.long_answer)
        return min(_tokens(size_bytes, self.low_ratio) + answer, TOKENS_MAX)

    def expected(self, size_bytes: int, max_tokens: int | None) -> int:
        """Return the tokens of prompt and answer that a request of `size_bytes` is most likely to have; at least 1.

        Without a sample this is a rough guess (four bytes a token, answers of 256): some figure is needed.
        """
        if self.ratio:
            prompt = _tokens(size_bytes, self.ratio)
        else:
            prompt = fixed.ceil_div(min(size_bytes, SIZE_MAX), ROUGH_BYTES_PER_TOKEN)
        answer = self.answer if self.answer >= 0 else ROUGH_ANSWER
        if max_tokens is not None:
            answer = min(answer, max_tokens) if self.answer >= 0 else max_tokens
        return max(1, min(prompt + answer, TOKENS_MAX))


class TokenProfile(msgspec.Struct):
    """What was measured of one model's traffic."""

    ratio_logs: list[int] = []
    """ln(bytes per token) of the newest prompts in Q32, oldest first."""
    answers: list[int] = []
    """Tokens of the newest answers, oldest first."""

    def learn(self, size_bytes: int, prompt_tokens: int | None, answer_tokens: int | None) -> None:
        """Take what an engine stated of a successful request whose text had `size_bytes`; None where it stated nothing.

        Requests with images should not be given: their bytes are no text.
        """
        if size_bytes > 0 and prompt_tokens is not None and prompt_tokens > 0:
            log = fixed.ln_q32(min(size_bytes, SIZE_MAX), min(prompt_tokens, TOKENS_MAX))
            self.ratio_logs = [*self.ratio_logs[1 - WINDOW :], log]
        if answer_tokens is not None and answer_tokens >= 0:
            self.answers = [*self.answers[1 - WINDOW :], min(answer_tokens, TOKENS_MAX)]

    @property
    def measured(self) -> bool:
        """Whether there are samples enough for an estimate."""
        return len(self.ratio_logs) >= MEASURED_FROM

    def measure(self) -> Measure:
        """Return what the samples say now. It holds until the next `learn`."""
        count, answers = len(self.ratio_logs), self.answers
        mean = sum(self.ratio_logs) // count if count else 0
        return Measure(
            ratio=_ratio(mean) if count else 0,
            low_ratio=_ratio(mean - DEVIATIONS * self._spread()) if self.measured else 0,
            answer=sum(answers) // len(answers) if answers else -1,
            long_answer=sorted(answers)[fixed.ceil_div(95 * len(answers), 100) - 1] if answers else 0,
        )

    def estimate(self, size_bytes: int, max_tokens: int | None, reserve: int) -> int | None:
        """Return what `measure` says of one request."""
        return self.measure().estimate(size_bytes, max_tokens, reserve)

    def expected(self, size_bytes: int, max_tokens: int | None) -> int:
        """Return what `measure` says of one request."""
        return self.measure().expected(size_bytes, max_tokens)

    def _spread(self) -> int:
        """Return the standard deviation of the ratios' logarithms, with the error of their mean."""
        count, total = len(self.ratio_logs), sum(self.ratio_logs)
        # n * sum(x^2) - (sum x)^2 = n * (n - 1) * variance, exact; (n + 1) / n allows for the mean's own error
        squares = count * sum(log * log for log in self.ratio_logs) - total * total
        return _root(squares * (count + 1) // (count * count * (count - 1)))


def _root(value: int) -> int:
    """Return the square root, rounded down (Newton's method from above); `value` is not negative."""
    if value < 2:
        return value
    root = 1 << (value.bit_length() + 1) // 2
    while (lower := (root + value // root) // 2) < root:
        root = lower
    return root


def _ratio(ratio_log: int) -> int:
    """Return e**ratio_log bytes a token in Q32; a token has at least a hundredth of a byte."""
    return max(fixed.exp_q32(ratio_log), fixed.ONE // 100)


def _tokens(size_bytes: int, ratio: int) -> int:
    """Return the tokens of `size_bytes` at `ratio` bytes a token, rounded up."""
    return min(fixed.ceil_div(min(size_bytes, SIZE_MAX) << 32, ratio), TOKENS_MAX)
