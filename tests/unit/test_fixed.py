"""Fixed-point functions agree with exact ones, on the whole range that prices use."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain import fixed

UNIT = 2.0**-32


@given(st.integers(min_value=-40 * fixed.ONE, max_value=39 * fixed.ONE))
def test_exp_is_right_to_a_part_in_a_billion(x: int):
    exact = math.exp(x * UNIT) / UNIT
    assert abs(fixed.exp_q32(x) - exact) <= 1 + exact * 1e-9


@given(st.integers(min_value=1, max_value=10**18), st.integers(min_value=1, max_value=10**18))
def test_ln_is_right_to_two_units_of_the_last_place(numerator: int, denominator: int):
    exact = (math.log(numerator) - math.log(denominator)) / UNIT
    assert abs(fixed.ln_q32(numerator, denominator) - exact) <= 2 + abs(exact) * 1e-14


@given(st.integers(min_value=-20 * fixed.ONE, max_value=20 * fixed.ONE), st.integers(min_value=0, max_value=fixed.ONE))
def test_exp_never_falls(x: int, step: int):
    assert fixed.exp_q32(x) <= fixed.exp_q32(x + step)


def test_results_are_the_same_literals_on_every_python_and_machine():
    assert fixed.exp_q32(0) == fixed.ONE
    assert fixed.ln_q32(1) == 0
    assert fixed.exp_q32(-100 * fixed.ONE) == 0
    assert fixed.exp_q32(1000 * fixed.ONE) == fixed.exp_q32(fixed.EXP_MAX)
    # literal results: the same on every Python and machine
    assert [fixed.exp_q32(fixed.ONE), fixed.ln_q32(10), fixed.ln_q32(1, 3)] == [11674931554, 9889527670, -4718503851]


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 0), (-1, 1)])
def test_ln_of_nothing_is_refused(numerator: int, denominator: int):
    with pytest.raises(ValueError, match="must be above zero"):
        fixed.ln_q32(numerator, denominator)


@given(st.integers(0, (1 << 50) - 1))
def test_five_terms_are_the_whole_series_of_a_logarithm(y: int):
    # given any argument that the table leaves for it: below 1/64
    square = y * y >> 56
    powers = [y]
    for _ in range(5):
        powers.append(powers[-1] * square >> 56)
    # then the sixth term is nothing, as are all after it
    assert powers[5] == 0
    assert fixed._twice_artanh(y) == 2 * sum(power // odd for power, odd in zip(powers, (1, 3, 5, 7, 9), strict=False))


@given(st.integers(1, 1 << 120), st.integers(1, 1 << 120))
def test_a_logarithm_is_its_whole_series(numerator: int, denominator: int):
    bits = numerator.bit_length() - denominator.bit_length()
    bits -= (numerator << max(0, -bits)) < (denominator << max(0, bits))
    scaled = (numerator << max(0, 56 - bits)) // (denominator << max(0, bits - 56))
    step = (scaled - (1 << 56)) >> 51
    c = (1 << 56) + (step << 51)
    y = ((scaled - c) << 56) // (scaled + c)
    whole = fixed._twice_artanh(y) + fixed._LN_TABLE[step] + bits * fixed._LN2
    assert y < 1 << 50
    if bits <= 56:  # beyond, the numerator loses bits before it is divided
        assert fixed.ln_q32(numerator, denominator) == whole >> 24
