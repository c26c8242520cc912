"""Tokens of a request: estimated from its size, pulled up by what the model's own traffic varies, never counted."""

import random
from math import isqrt

import msgspec
import pytest

from domain.catalogue.tokens import SIZE_MAX, TOKENS_MAX, WINDOW, TokenProfile, _root


def profile_of(*ratios, answers=(), prompt=1000):
    """A profile that has seen prompts of `prompt` tokens with these bytes per token."""
    profile = TokenProfile()
    for ratio in ratios:
        profile.learn(round(ratio * prompt), prompt, None)
    for answer in answers:
        profile.learn(0, None, answer)
    return profile


def test_a_model_without_a_measured_profile_has_no_estimate():
    assert TokenProfile().estimate(1000, 10, 256) is None
    assert profile_of(4).estimate(1000, 10, 256) is None  # one sample has no spread
    assert profile_of(4, 4).estimate(1000, 10, 256) is not None


def test_what_engines_do_not_state_teaches_nothing():
    profile = TokenProfile()
    for size, prompt, answer in ((0, 5, None), (100, 0, None), (100, None, None), (100, -1, -1)):
        profile.learn(size, prompt, answer)
    assert profile == TokenProfile()


def test_traffic_that_is_all_alike_is_taken_at_its_word():
    assert profile_of(4, 4, 4).estimate(4000, 100, 256) == pytest.approx(1100, abs=1)


def test_an_estimate_is_pulled_up_by_the_spread_of_the_ratio():
    even, mixed = profile_of(*[4] * 20), profile_of(*[3, 5.33] * 10)
    assert mixed.expected(4000, 0) == pytest.approx(1000, rel=0.01)
    assert mixed.estimate(4000, 0, 0) > 1.5 * even.estimate(4000, 0, 0)


def test_of_mixed_traffic_nearly_all_requests_stay_within_their_estimate():
    rng, profile, over = random.Random(5), TokenProfile(), 0
    for number in range(3000):
        tokens = rng.randrange(50, 4000)
        size = round(tokens * rng.lognormvariate(1.4, 0.25)) + 1
        estimate = profile.estimate(size, 0, 0)
        if number >= 100 and estimate is not None and estimate < tokens:
            over += 1
        profile.learn(size, tokens, 0)
    assert over / 2900 < 0.04


def test_the_answer_has_what_the_client_allows_however_little_or_much():
    profile = profile_of(4, 4, answers=[500] * 20)
    assert [profile.estimate(4000, most, 256) - 1000 for most in (0, 10, 9000)] == pytest.approx([0, 10, 9000], abs=1)


def test_without_a_bound_the_answer_has_what_nearly_all_had_and_at_least_the_reserve():
    long = profile_of(4, 4, answers=[*range(1, 20), 900])
    assert long.estimate(4000, None, 0) - 1000 == pytest.approx(19, abs=1)
    assert long.estimate(4000, None, 256) - 1000 == pytest.approx(256, abs=1)
    longer = profile_of(4, 4, answers=[*range(1, 19), 800, 900])
    assert longer.estimate(4000, None, 256) - 1000 == pytest.approx(800, abs=1)
    assert profile_of(4, 4).estimate(4000, None, 256) - 1000 == pytest.approx(256, abs=1)


def test_expected_tokens_follow_the_means_and_a_bound_caps_the_answer():
    profile = profile_of(2, 8, answers=[100, 300])
    assert profile.expected(4000, None) == pytest.approx(1000 + 200, abs=2)
    assert profile.expected(4000, 50) == pytest.approx(1000 + 50, abs=2)
    assert profile.expected(4000, 5000) == pytest.approx(1000 + 200, abs=2)


def test_expected_tokens_of_an_unmeasured_model_are_a_rough_guess_and_never_none():
    assert TokenProfile().expected(401, None) == 101 + 256
    assert TokenProfile().expected(401, 64) == 101 + 64
    assert TokenProfile().expected(0, 0) == 1


def test_of_more_samples_than_are_kept_the_newest_count():
    profile = profile_of(*[1] * 500, *[4] * WINDOW, answers=[9] * 500 + [1] * WINDOW)
    assert (len(profile.ratio_logs), len(profile.answers)) == (WINDOW, WINDOW)
    assert profile.estimate(4000, None, 0) == pytest.approx(1001, abs=1)


def test_sizes_without_bounds_are_held_within_64_bits():
    profile = TokenProfile()
    for size, tokens in ((10**30, 1), (1, 10**30), (SIZE_MAX, TOKENS_MAX)):
        profile.learn(size, tokens, tokens)
    assert profile.estimate(10**30, None, 10**30) == TOKENS_MAX
    assert profile.expected(10**30, 10**30) <= TOKENS_MAX
    msgspec.json.encode(profile)


@pytest.mark.parametrize("value", [*range(70), 10**12 - 1, 10**12, 10**12 + 1, (1 << 90) - 1])
def test_square_roots_are_rounded_down(value):
    assert _root(value) == isqrt(value)
