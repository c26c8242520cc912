"""Fixed-point arithmetic for prices: Q32 integers, with exponential and logarithm of our own.

Floats are banned from decisions because their sums and libm's functions differ between Python versions and machines; these
functions give the same integer everywhere. A Q32 number `x` stands for x / 2**32.
"""

from typing import Final

ONE: Final = 1 << 32
"""1 in Q32."""
_GUARD: Final = 24
"""Extra bits of the inner sums, so that the last bit of the result is right but for one unit."""
_INNER_BITS: Final = 32 + _GUARD
_INNER_ONE: Final = ONE << _GUARD
_LN2: Final = 49946518145322874
"""ln 2 with 32 + 24 fraction bits, rounded."""
_EXP_TERMS: Final = tuple(range(1, 17))
_LOG_TERMS: Final = 20
_TABLE_BITS: Final = 5
_STEPS: Final = 1 << _TABLE_BITS
_STEP_BITS: Final = _INNER_BITS - _TABLE_BITS
EXP_MAX: Final = 40 * ONE
"""exp(40) is 2.4e17; beyond it a price means nothing, and the result is held there."""


def exp_q32(x_q32: int) -> int:
    """Return e**x in Q32, within one unit of the last place times the result; 0 where it would round to 0.

    The argument is reduced to x = k ln 2 + r with 0 <= r < ln 2, then summed as a Taylor series.
    """
    x = min(x_q32, EXP_MAX) << _GUARD
    k, r = divmod(x, _LN2)
    if k < -33:
        return 0
    total = term = _INNER_ONE
    for i in _EXP_TERMS:
        term = (term * r >> _INNER_BITS) // i
        if not term:
            break
        total += term
    shift = k - _GUARD
    return total << shift if shift >= 0 else total >> -shift


def ln_q32(numerator: int, denominator: int = 1) -> int:
    """Return ln(numerator / denominator) in Q32, within two units of the last place.

    The ratio is reduced to m * 2**k with 1 <= m < 2, then to m = c (1 + small) with c from a table, and
    ln (m / c) = 2 artanh((m - c) / (m + c)) as a series.

    Raises:
        ValueError: one of the two is not above zero.
    """
    if numerator <= 0 or denominator <= 0:
        raise ValueError(f"ln of {numerator}/{denominator}: both must be above zero")
    k = numerator.bit_length() - denominator.bit_length()
    bits = _INNER_BITS - k
    m = (numerator << bits if bits >= 0 else numerator >> -bits) // denominator
    if m < _INNER_ONE:
        k -= 1
        bits += 1
        m = (numerator << bits if bits >= 0 else numerator >> -bits) // denominator
    step = (m - _INNER_ONE) >> _STEP_BITS
    c = _INNER_ONE + (step << _STEP_BITS)
    y = ((m - c) << _INNER_BITS) // (m + c)
    # 2 artanh y: with y below 1/64 the powers from the eleventh on are below the last bit, so that five terms are the series
    square = y * y >> _INNER_BITS
    third = y * square >> _INNER_BITS
    fifth = third * square >> _INNER_BITS
    seventh = fifth * square >> _INNER_BITS
    ninth = seventh * square >> _INNER_BITS
    twice_artanh = 2 * (y + third // 3 + fifth // 5 + seventh // 7 + ninth // 9)
    return (twice_artanh + _LN_TABLE[step] + k * _LN2) >> _GUARD


def _twice_artanh(y: int) -> int:
    """Return 2 artanh y by the whole series; 56 fraction bits on both sides."""
    square = y * y >> _INNER_BITS
    total, power = 0, y
    for odd in range(1, 2 * _LOG_TERMS, 2):
        total += power // odd
        power = power * square >> _INNER_BITS
        if not power:
            break
    return 2 * total


_LN_TABLE: Final = tuple(_twice_artanh((i << _INNER_BITS) // (2 * _STEPS + i)) for i in range(_STEPS))
"""ln (1 + i / 32): with it the series of a logarithm has five terms, not eighteen."""


def times(value: int, factor_q32: int) -> int:
    """Return value * factor, rounded down."""
    return value * factor_q32 >> 32


def ceil_div(numerator: int, denominator: int) -> int:
    """Return numerator / denominator rounded up; the denominator must be above zero."""
    return -(-numerator // denominator)
