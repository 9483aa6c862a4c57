"""Prints the polynomials of `fit.rs`: `python fit.py > fit.rs` (needs mpmath; a minute).

Each is a least-squares fit on Chebyshev nodes, reweighted towards the minimax one (Lawson), of the relative error of the function it
serves. Coefficients are rounded from the lowest on, each before the rest is fitted again, so that later ones mend the rounding.
"""
import functools
import struct
import sys

from mpmath import mp, mpf

mp.dps = 60
STEPS = 30


def rounded(v, bits):
    return mpf(struct.unpack("f", struct.pack("f", float(v)))[0]) if bits == 24 else mpf(float(v))


def nodes(lo, hi, count):
    return [(lo + hi) / 2 + (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]


def solve(rows, values, weights):
    n = len(rows[0])
    a = mp.matrix(n, n)
    b = mp.matrix(n, 1)
    for r, v, w in zip(rows, values, weights):
        for i in range(n):
            x = w * r[i]
            b[i] += x * v
            for j in range(i, n):
                a[i, j] += x * r[j]
    for i in range(n):
        for j in range(i):
            a[i, j] = a[j, i]
    return list(mp.lu_solve(a, b))


def fit(target, scale, lo, hi, terms, bits):
    """c with sum c_i x^i near target(x) on [lo, hi]; scale(x) turns an error of it into a relative error of the function."""
    xs = nodes(mpf(lo), mpf(hi), 6 * terms + 20)
    ts = [target(x) for x in xs]
    ss = [abs(scale(x)) for x in xs]
    powers = [[x**i for i in range(terms)] for x in xs]
    done = []
    lawson = [mpf(1)] * len(xs)
    while len(done) < terms:
        k = len(done)
        rest = [t - sum(c * p for c, p in zip(done, ps)) for t, ps in zip(ts, powers)]
        for _ in range(STEPS if k == 0 else 1):
            cs = solve([ps[k:] for ps in powers], rest, [l * s * s for l, s in zip(lawson, ss)])
            errors = [abs((r - sum(c * p for c, p in zip(cs, ps[k:]))) * s) for r, ps, s in zip(rest, powers, ss)]
            if k == 0:
                top = max(errors)
                lawson = [l * (e / top + mpf("1e-6")) for l, e in zip(lawson, errors)]
                total = sum(lawson)
                lawson = [l / total for l in lawson]
        done.append(rounded(cs[0], bits))
    worst = max(abs((t - sum(c * p for c, p in zip(done, ps))) * s) for t, ps, s in zip(ts, powers, ss))
    return done, worst


def ulps(worst, bits):
    return float(worst * mpf(2) ** bits)


def show(name, bits, target, scale, lo, hi, terms):
    cs, worst = fit(target, scale, lo, hi, terms, bits)
    print(f"{name} f{32 if bits == 24 else 64} {terms}: {ulps(worst, bits):.4f} ulp", file=sys.stderr)
    return cs


def odd(f):
    """f(x) = x + x^3 p(x^2): p, and what an error of p does, as functions of x^2."""
    ratio = lambda z: f(mp.sqrt(z)) / mp.sqrt(z)
    return lambda z: (ratio(z) - 1) / z, lambda z: z / ratio(z)


def erfcx(z):
    return mp.exp(z * z) * mp.erfc(z)


def tail():
    """The normal distribution's upper tail beyond a, times exp(a^2 / 2): t p(1 - 2 t), t = k / (a + k), k = 3.5."""
    t = lambda w: (1 - w) / 2
    value = lambda w: erfcx(mpf("3.5") * (1 - t(w)) / t(w) / mp.sqrt(2)) / 2 / t(w)
    return value, lambda w: 1 / value(w)


@functools.lru_cache(None)
def inverse_erf(w):
    """erfinv(x) / x where w = -log(1 - x^2)."""
    if w < mpf("1e-30"):
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    q, y = mp.exp(-w) / (1 + x), mp.sqrt(w) * mpf("0.9")
    while True:
        d = (mp.erfc(y) - q) * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        d = d / (1 - y * d) if abs(y * d) < 0.5 else d / (1 + abs(d))
        y += d
        if abs(d) < mpf("1e-50"):
            return y / x


def gamma_table(name, f, low, high, terms):
    """A function only f64 has; scaled by itself."""
    return lambda b: polynomial(b, name, f, lambda x: 1 / f(x), low, high, 0, terms)


def log_gamma(at, t):
    """lgamma(at + t) / t for at = 1, 2."""
    return mp.loggamma(at + t) / t if t else mp.psi(0, at)


def root_of_digamma():
    with mp.workdps(60):
        return mp.findroot(lambda x: mp.psi(0, x), mpf("1.4616"))


NEAR0 = mpf("1e-25")
DIGAMMA_ROOT = root_of_digamma()


def erfinv_far(center):
    value = lambda v: inverse_erf((v + center) ** 2)
    return value, lambda v: 1 / value(v)


TABLES = [
    ("EXP", "exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2", lambda b: polynomial(
        b, "exp", lambda x: (mp.exp(x) - 1 - x) / x**2, lambda x: x * x / mp.exp(x), -HALF_LN2, HALF_LN2, 5, 10)),
    ("LOG", "f32: log(1 + f) = f - f^2/2 + f^3 p(f) for |f| <= 1/3; f64: log((1 + s) / (1 - s)) = 2 s + s^3 p(s^2) for |s| <= 0.1716", lambda b: polynomial(
        b, "log", lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, lambda f: f**3 / mp.log1p(f), -mpf(1) / 3, mpf(1) / 3, 8, 0) if b == 24 else polynomial(
        b, "log", lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z, lambda z: z / 2, NEAR0, (3 - 2 * mp.sqrt(2))**2, 0, 7)),
    ("SIN", "sin(r) = r + r^3 p(r^2) for |r| <= pi / 4", lambda b: polynomial(b, "sin", *odd(mp.sin), NEAR0, QUARTER**2, 4, 6)),
    ("COS", "cos(r) = 1 - r^2 / 2 + r^4 p(r^2) for |r| <= pi / 4", lambda b: polynomial(
        b, "cos", lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z * z / mp.cos(mp.sqrt(z)), mpf("1e-15"), QUARTER**2, 3, 6)),
    ("TANH", "tanh(x) = x + x^3 p(x^2) for |x| <= 0.625", lambda b: polynomial(b, "tanh", *odd(mp.tanh), NEAR0, mpf("0.625") ** 2, 5, 12)),
    ("SINH", "sinh(x) = x + x^3 p(x^2) for |x| <= 1", lambda b: polynomial(b, "sinh", *odd(mp.sinh), NEAR0, mpf(1), 4, 7)),
    ("ATAN", "atan(x) = x + x^3 p(x^2) for |x| <= sqrt(2) - 1", lambda b: polynomial(
        b, "atan", *odd(mp.atan), NEAR0, (mp.sqrt(2) - 1) ** 2 * mpf("1.001"), 5, 11)),
    ("ASIN", "asin(x) = x + x^3 p(x^2) for |x| <= 1/2", lambda b: polynomial(b, "asin", *odd(mp.asin), NEAR0, mpf("0.25"), 5, 12)),
    ("ERF", "erf(x) = x + x p(x^2) for |x| <= 0.85", lambda b: polynomial(
        b, "erf", lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)), NEAR0, mpf("0.85") ** 2, 6, 11)),
    ("TAIL", "the normal distribution beyond a: exp(-a^2 / 2) t p(1 - 2 t), t = 3.5 / (a + 3.5), for 0 <= a <= 14.6 (f32), 38.7 (f64)", lambda b: polynomial(
        b, "tail", *tail(), mpf(-1), 1 - 7 / ((mpf("14.6") if b == 24 else mpf("38.7")) + mpf("3.5")), 10, 24)),
    ("LOG_LONG", "f64: log((1 + s) / (1 - s)) = 2 s + s^3 (2/3 + s^2 p(s^2)) for |s| <= 0.1716", lambda b: polynomial(
        b, "log, long", lambda z: ((2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z - mpf(2) / 3) / z, lambda z: z * z / 2, mpf("1e-12"), (3 - 2 * mp.sqrt(2))**2, 0, 9)),
    ("INVERSE_ERF", "erfinv(x) = x p(w - 3.125), w = -log(1 - x^2) <= 6.25", lambda b: polynomial(
        b, "erfinv", lambda v: inverse_erf(v + mpf("3.125")), lambda v: 1 / inverse_erf(v + mpf("3.125")), mpf("-3.125"), mpf("3.125"), 11, 24)),
    ("INVERSE_ERF_FAR", "erfinv(x) = x p(sqrt(w) - 3.25), sqrt(w) from 2.5 to 4.1 (f32), 4 (f64)", lambda b: polynomial(
        b, "erfinv, far", *erfinv_far(mpf("3.25")), mpf("-0.75"), mpf("0.85") if b == 24 else mpf("0.75"), 9, 20)),
    ("INVERSE_ERF_END", "f64: erfinv(x) = x p(sqrt(w) - 5), sqrt(w) from 4 to 6.1", lambda b: polynomial(
        b, "erfinv, end", *erfinv_far(mpf(5)), mpf(-1), mpf("1.1"), 0, 18)),
    ("LGAMMA_1", "f64: lgamma(1 + t) = t p(t) for |t| <= 1/2", gamma_table("lgamma at 1", functools.partial(log_gamma, 1), mpf(-0.5), mpf(0.5), 28)),
    ("LGAMMA_2", "f64: lgamma(2 + t) = t p(t) for |t| <= 1/2", gamma_table("lgamma at 2", functools.partial(log_gamma, 2), mpf(-0.5), mpf(0.5), 18)),
    ("DIGAMMA", "f64: digamma(1.5 + t) = (1.5 + t - root) p(t) for |t| <= 1/2", gamma_table(
        "digamma", lambda t: mp.psi(0, mpf("1.5") + t) / (mpf("1.5") + t - DIGAMMA_ROOT), mpf(-0.5), mpf(0.5), 24)),
]
HALF_LN2 = mp.log(2) / 2 * mpf("1.005")
QUARTER = mp.pi / 4 * mpf("1.02")


def polynomial(bits, name, target, scale, lo, hi, *terms):
    if not terms[bits != 24]:
        return []
    return show(name, bits, target, scale, lo, hi, terms[bits != 24])


def parts(v, bits, count, first=None):
    """v as an unevaluated sum; `first` bits only in the first part, so that products with small integers are exact."""
    out = []
    for i in range(count):
        b = first if first and i == 0 else bits
        m, e = mp.frexp(v)
        p = rounded(mp.nint(m * mpf(2) ** b) * mpf(2) ** (int(e) - b), bits)
        out.append(p)
        v -= p
    return out


CONSTANTS = [
    ("LN2", "ln(2) in two parts, the first short: k times it is exact", lambda b: parts(mp.log(2), b, 2, 12 if b == 24 else 38)),
    ("LOG2_E", "1 / ln(2)", lambda b: parts(1 / mp.log(2), b, 2)),
    ("LOG10_E", "1 / ln(10)", lambda b: parts(1 / mp.log(10), b, 2)),
    ("LOG10_2", "log10(2), the first part short", lambda b: parts(mp.log10(2), b, 2, 12 if b == 24 else 38)),
    ("TWO_OVER_PI", "2 / pi", lambda b: parts(2 / mp.pi, b, 1)),
    ("HALF_PI", "pi / 2", lambda b: parts(mp.pi / 2, b, 3)),
    ("DIGAMMA_ROOT", "the positive root of digamma", lambda b: parts(DIGAMMA_ROOT, b, 2)),
    ("GELU", "2 sqrt(2 / pi), then 0.044715 times that, two parts each", lambda b: parts(
        2 * mp.sqrt(2 / mp.pi), b, 2) + parts(2 * mp.sqrt(2 / mp.pi) * mpf("0.044715"), b, 2)),
]


def literal(v, bits):
    s = f"{struct.unpack('f', struct.pack('f', float(v)))[0]:.9g}" if bits == 24 else repr(float(v))
    if bits == 24:
        for digits in range(1, 10):
            s = f"{float(v):.{digits}g}"
            if struct.pack("f", float(s)) == struct.pack("f", float(v)):
                break
    return s if "e" in s or "." in s else s + ".0"


def kind(count, name):
    return f"[{name}; {count}]" if count > 1 else name


def values_of(vs, bits):
    texts = [literal(v, bits) for v in vs]
    return f"[{', '.join(texts)}]" if len(texts) > 1 else texts[0]


def main():
    print("//! Polynomials (lowest coefficient first) and constants in parts, for f32 and f64. Written by `fit.py`, which says how they are fitted.")
    print('#![allow(clippy::approx_constant, reason = "the parts belong together")]')
    print("/// What the algorithms of the neighbouring files need to know of a type.")
    print("pub trait Fit: Sized + 'static {")
    for name, what, _ in TABLES:
        print(f"    /// {what}.\n    const {name}: &[Self];")
    for name, what, values in CONSTANTS:
        print(f"    /// {what}.\n    const {name}: {kind(len(values(24)), 'Self')};")
    print("}")
    for bits, name in ((24, "f32"), (53, "f64")):
        print(f"impl Fit for {name} {{")
        for table, _, values in TABLES:
            print(f"    const {table}: &[{name}] = &[{', '.join(literal(v, bits) for v in values(bits))}];")
        for constant, _, values in CONSTANTS:
            vs = values(bits)
            print(f"    const {constant}: {kind(len(vs), name)} = {values_of(vs, bits)};")
        print("}")
    with mp.workdps(500):
        bits = int(mp.floor(2 / mp.pi * mpf(2) ** (64 * 21)))
    words = [0] + [bits >> 64 * i & (2**64 - 1) for i in reversed(range(21))]
    print("/// 64 zero bits, then the bits of 2 / pi behind the point.")
    print(f"pub const TWO_OVER_PI_BITS: [u64; {len(words)}] = [{', '.join(f'{w:#018x}' for w in words)}];")


if __name__ == "__main__":
    main()
