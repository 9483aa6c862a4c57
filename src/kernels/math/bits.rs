//! What is done on the bits of a float, the same for f32 and f64 and free of branches, and limits that depend on the type.
pub trait Bits: Sized {
    /// 1.5 * 2^(digits - 1): added to a small number it rounds it to an integer, which then stands in the lowest bits.
    const MAGIC: Self;
    /// exp(x) is infinite from here on; still n <= 128 (1024).
    const EXP_MAX: Self;
    /// exp(x) is 0 below; so far down that the factors of `scale` are 0 themselves
    /// (infinity times exp(-infinity) is NaN), and just below a power of 2 (the largest number times it does not overflow on the way).
    const EXP_MIN: Self;
    /// Below it x + x^2 rounds to x.
    const TINY: Self;
    /// Above it 1 + x^2 rounds to x^2.
    const HUGE: Self;
    /// (limit, factor): above the limit, or below its inverse, 1 / x comes near the ends of the range; the factor, or its inverse, leads
    /// away without costing a quotient a bit.
    const INVERTIBLE: [Self; 2];
    /// The same for x^2.
    const SQUARABLE: [Self; 2];
    /// self * 2^n, given n + MAGIC. In two factors: overflow and subnormals come out right.
    fn scale(self, n: Self) -> Self;
    /// 2^n for a normal result, given n + MAGIC.
    fn pow2(n: Self) -> Self;
    /// (k, m, 2^-k) with self = 2^k m and m about 1: from 2/3 to 4/3 (f32), from 1/sqrt(2) to sqrt(2) (f64). For positive finite
    /// numbers; 2^-k is not for subnormal ones.
    fn split(self) -> (Self, Self, Self);
    /// Is n odd, given n + MAGIC?
    fn odd(n: Self) -> bool;
    /// self, negated where bit 1 of n is set, given n + MAGIC.
    fn flip(self, n: Self) -> Self;
    /// a * b - p, where p is a * b rounded. Exact far from overflow and underflow.
    fn mul_error<const F: bool>(a: Self, b: Self, p: Self) -> Self;
}
macro_rules! bits { ($($t:ident $u:ident lowest $lowest:expr, exp $low:literal $high:literal invertible $i:literal $if:literal squarable $s:literal $sf:literal;)*) => { $(
    const _: () = {
        const FIELD: u32 = $t::MANTISSA_DIGITS - 1; // the bits of a stored fraction
        const BIAS: $u = $t::MAX_EXP as $u - 1;
        const MAGIC: $t = (3u64 << (FIELD - 1)) as $t;
        const UNIT: $t = (1u64 << FIELD) as $t;
        const fn two_to(n: $u) -> $t {
            $t::from_bits((BIAS + n) << FIELD)
        }
        impl Bits for $t {
            const MAGIC: $t = MAGIC;
            const EXP_MAX: $t = $high;
            const EXP_MIN: $t = $low;
            const TINY: $t = $t::EPSILON / 4.0;
            const HUGE: $t = (1u64 << (FIELD / 2 + 2)) as $t;
            const INVERTIBLE: [$t; 2] = [two_to($i), 1.0 / two_to($if)];
            const SQUARABLE: [$t; 2] = [two_to($s), 1.0 / two_to($sf)];
            #[inline(always)]
            fn scale(self, n: $t) -> $t {
                let twice = n.to_bits().wrapping_sub(MAGIC.to_bits() - 2 * BIAS);
                let half = twice >> 1;
                self * $t::from_bits(half << FIELD) * $t::from_bits(twice.wrapping_sub(half) << FIELD)
            }
            #[inline(always)]
            fn pow2(n: $t) -> $t {
                $t::from_bits(n.to_bits().wrapping_sub(MAGIC.to_bits() - BIAS) << FIELD)
            }
            #[inline(always)]
            fn split(self) -> ($t, $t, $t) {
                const FRACTION: $u = ($lowest as $t).to_bits() & ((1 << FIELD) - 1); // of the lowest m, whose exponent is -1
                let subnormal = self < $t::MIN_POSITIVE;
                let b = (if subnormal { self * UNIT } else { self }).to_bits();
                let e = b.wrapping_sub(FRACTION) >> FIELD; // k + BIAS - 1
                let m = $t::from_bits(b.wrapping_sub(e << FIELD).wrapping_add((BIAS - 1) << FIELD));
                let k = $t::from_bits(UNIT.to_bits() | e) - (UNIT + (BIAS - 1) as $t);
                let inverse = $t::from_bits((2 * BIAS - 1).wrapping_sub(e) << FIELD);
                (if subnormal { k - FIELD as $t } else { k }, m, inverse)
            }
            #[inline(always)]
            fn odd(n: $t) -> bool {
                n.to_bits() & 1 != 0
            }
            #[inline(always)]
            fn flip(self, n: $t) -> $t {
                $t::from_bits(self.to_bits() ^ ((n.to_bits() & 2) << ($u::BITS - 2)))
            }
            #[inline(always)]
            fn mul_error<const F: bool>(a: $t, b: $t, p: $t) -> $t {
                if F { a.mul_add(b, -p) } else { plain::$t(a, b, p) }
            }
        }
    };
)* } }
bits! {
    f32 u32 lowest 2.0 / 3.0, exp -176.2 88.8 invertible 96 40 squarable 48 98;
    f64 u64 lowest std::f64::consts::FRAC_1_SQRT_2, exp -1418.3 709.9 invertible 800 256 squarable 400 600;
}
/// The error of a product without fused multiply-add.
mod plain {
    #[inline(always)]
    pub fn f32(a: f32, b: f32, p: f32) -> f32 {
        (a as f64 * b as f64 - p as f64) as f32
    }
    /// Dekker, A floating-point technique for extending the available precision (1971).
    #[inline(always)]
    pub fn f64(a: f64, b: f64, p: f64) -> f64 {
        let halve = |v: f64| {
            let c = v * 134217729.0; // 2^27 + 1
            let high = c - (c - v);
            (high, v - high)
        };
        let ((ah, al), (bh, bl)) = (halve(a), halve(b));
        ((ah * bh - p) + ah * bl + al * bh) + al * bl
    }
}
