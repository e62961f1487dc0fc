"""Independent answers in mpmath, from formulas that share nothing with the library's own numerics."""

from typing import NamedTuple

from mpmath import mp, mpf

DIGITS = 120


class Answer(NamedTuple):
    """ln of the normalizer, mean and variance, as mpf."""

    log: mpf
    mean: mpf
    variance: mpf


def _log_difference(log_a: mpf, log_b: mpf) -> mpf:
    """ln(e^a − e^b) for a > b."""
    return log_a + mp.log1p(-mp.exp(log_b - log_a))


def _log_erfc(h: mpf) -> mpf:
    return mp.log(mp.erfc(h))


def truncated_gaussian_integral(u, v, lower, upper) -> Answer:
    """∫ exp(ux − ½vx²) over [lower, upper] by error functions and integration by parts, in high precision.

    For v > 0 on erfc, for v < 0 on erfi, for v = 0 elementary; either bound may be infinite.
    """
    with mp.workdps(DIGITS):
        u, v, lower, upper = (mpf(z) for z in (u, v, lower, upper))
        if mp.isinf(lower):
            flipped = truncated_gaussian_integral(-u, v, -upper, mp.inf)
            return Answer(flipped.log, -flipped.mean, flipped.variance)

        def exponent(x):
            return u * x - v * x * x / 2

        if v == 0:
            return _exponential_integral(u, lower, upper)
        root = mp.sqrt(abs(v) / 2)
        h_low, h_high = root * (lower - u / v), root * (upper - u / v)
        log_prefactor = mp.log(mp.pi / (2 * abs(v))) / 2 + u * u / (2 * v)
        if v > 0:
            if h_low > 0:
                log_d = (
                    _log_difference(_log_erfc(h_low), _log_erfc(h_high)) if not mp.isinf(upper) else _log_erfc(h_low)
                )
            elif h_high < 0:
                log_d = _log_difference(_log_erfc(-h_high), _log_erfc(-h_low))
            else:
                log_d = mp.log(mp.erf(h_high) - mp.erf(h_low))
        else:
            log_d = mp.log(mp.erfi(h_high) - mp.erfi(h_low))
        log = log_prefactor + log_d
        density_low = mp.exp(exponent(lower) - log)
        density_high = mpf(0) if mp.isinf(upper) else mp.exp(exponent(upper) - log)
        flux = mpf(0) if mp.isinf(upper) else upper * density_high
        mean = (u - (density_high - density_low)) / v
        second = (1 + u * mean - (flux - lower * density_low)) / v
        return Answer(log, mean, second - mean**2)


def _exponential_integral(u, lower, upper) -> Answer:
    if mp.isinf(upper):
        return Answer(u * lower - mp.log(-u), lower - 1 / u, 1 / u**2)
    width = upper - lower
    if u == 0:
        return Answer(mp.log(width), (lower + upper) / 2, width**2 / 12)
    z = u * width
    ratio = mp.exp(z) / mp.expm1(z) if z < 0 else 1 / -mp.expm1(-z)  # e^z / (e^z − 1)
    log = u * lower + mp.log(width) + (mp.log(mp.expm1(z) / z) if z < 0 else z + mp.log(-mp.expm1(-z) / z))
    return Answer(log, lower + width * (ratio - 1 / z), width**2 * (1 / z**2 - ratio * (ratio - 1)))


def integral_by_quadrature(u, v, lower, upper) -> Answer:
    """The same integral by mpmath's own adaptive quadrature: an oracle for the oracle, for moderate u and v."""
    with mp.workdps(40):
        u, v = mpf(u), mpf(v)
        points = [mpf(lower), mpf(upper)]
        if v != 0 and points[0] < u / v < points[1]:
            points.insert(1, u / v)
        peak = max(u * x - v * x * x / 2 for x in points if not mp.isinf(x))

        def weigh(power):
            return mp.quad(lambda x: x**power * mp.exp(u * x - v * x * x / 2 - peak), points, maxdegree=10)

        zeroth, first, second = weigh(0), weigh(1), weigh(2)
        mean = first / zeroth
        return Answer(peak + mp.log(zeroth), mean, second / zeroth - mean**2)
