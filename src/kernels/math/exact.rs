//! For tests: the same functions in double-double arithmetic, about 100 bits, by series and Newton steps that share nothing with the
//! kernels. Slow.
use std::f64::consts as c;
use std::ops::{Add, Div, Mul, Neg, Sub};

#[derive(Clone, Copy, Debug)]
pub struct Dd(pub f64, pub f64);
fn sum(a: f64, b: f64) -> Dd {
    let s = a + b;
    let back = s - a;
    Dd(s, if s.is_finite() { (a - (s - back)) + (b - back) } else { 0.0 })
}
impl From<f64> for Dd {
    fn from(v: f64) -> Dd {
        Dd(v, 0.0)
    }
}
impl Neg for Dd {
    type Output = Dd;
    fn neg(self) -> Dd {
        Dd(-self.0, -self.1)
    }
}
impl Add for Dd {
    type Output = Dd;
    fn add(self, b: Dd) -> Dd {
        let (s, t) = (sum(self.0, b.0), sum(self.1, b.1));
        let s = sum(s.0, s.1 + t.0);
        sum(s.0, s.1 + t.1)
    }
}
impl Sub for Dd {
    type Output = Dd;
    fn sub(self, b: Dd) -> Dd {
        self + -b
    }
}
impl Mul for Dd {
    type Output = Dd;
    fn mul(self, b: Dd) -> Dd {
        let p = self.0 * b.0;
        if !p.is_finite() || p == 0.0 {
            return p.into();
        }
        sum(p, self.0.mul_add(b.0, -p) + (self.0 * b.1 + self.1 * b.0))
    }
}
impl Div for Dd {
    type Output = Dd;
    fn div(self, b: Dd) -> Dd {
        let q = self.0 / b.0;
        if !q.is_finite() || !b.0.is_finite() || q == 0.0 {
            return q.into();
        }
        let r = self - Dd::from(q) * b;
        let q2 = r.0 / b.0;
        let r = r - Dd::from(q2) * b;
        Dd::from(q) + Dd(q2, 0.0) + Dd(r.0 / b.0, 0.0)
    }
}
macro_rules! with_f64 { ($($op:ident $f:ident)*) => { $(
    impl $op<f64> for Dd { type Output = Dd; fn $f(self, b: f64) -> Dd { self.$f(Dd::from(b)) } }
    impl $op<Dd> for f64 { type Output = Dd; fn $f(self, b: Dd) -> Dd { Dd::from(self).$f(b) } }
)* } }
with_f64! { Add add Sub sub Mul mul Div div }

pub const LN_2: Dd = Dd(c::LN_2, 2.3190468138462996e-17);
pub const PI: Dd = Dd(c::PI, 1.2246467991473532e-16);
const PI_3: f64 = -2.9947698097183397e-33;
impl Dd {
    pub fn two_to(self, k: i32) -> Dd {
        let half = 2f64.powi(k / 2);
        let rest = 2f64.powi(k - k / 2);
        Dd(self.0 * half * rest, self.1 * half * rest)
    }
    pub fn abs(self) -> Dd {
        if self.0 < 0.0 { -self } else { self }
    }
    pub fn sqrt(self) -> Dd {
        let s = self.0.sqrt();
        if s == 0.0 || !s.is_finite() {
            return s.into();
        }
        let r = self - Dd::from(s) * Dd::from(s);
        Dd::from(s) + Dd(r.0 / (2.0 * s), 0.0)
    }
    /// exp(self) - 1 for |self| < 1 or so: Taylor on a 256th, squared up.
    fn expm1_small(self) -> Dd {
        if self.0.abs() < 1e-35 {
            return self;
        }
        let r = self * (1.0 / 256.0);
        let mut e = Dd(0.0, 0.0);
        for k in (1..=12).rev() {
            e = r * (1.0 + e) / k as f64;
        }
        for _ in 0..8 {
            e = e * (e + 2.0);
        }
        e
    }
    pub fn exp(self) -> Dd {
        if self.0 > 720.0 || self.0 < -780.0 || self.0.is_nan() {
            return self.0.exp().into();
        }
        let k = (self.0 / c::LN_2).round();
        (1.0 + (self - LN_2 * k).expm1_small()).two_to(k as i32)
    }
    pub fn expm1(self) -> Dd {
        if self.0.abs() < 0.5 { self.expm1_small() } else { self.exp() - 1.0 }
    }
    pub fn log1p(self) -> Dd {
        if self.0.abs() < 1e-35 {
            return self;
        }
        if self.0 > -0.3 && self.0 < 0.5 {
            // 2 atanh(z / (z + 2))
            let s = self / (self + 2.0);
            let (z, mut r) = (s * s, Dd(0.0, 0.0));
            for k in (0..30).rev() {
                r = r * z + 1.0 / Dd::from((2 * k + 1) as f64);
            }
            return 2.0 * s * r;
        }
        let u = self + 1.0;
        if !(u.0 > 0.0 && u.0.is_finite()) {
            return u.0.ln().into();
        }
        let k = u.0.log2().round() as i32;
        (u.two_to(-k / 2).two_to(-k - -k / 2) - 1.0).log1p() + LN_2 * k as f64
    }
    pub fn log(self) -> Dd {
        if self.0 > 0.0 && self.0 < 1e-100 {
            return self.two_to(500).log() - LN_2 * 500.0;
        }
        (self - 1.0).log1p()
    }
    /// Quarter turns modulo 4 and the rest.
    fn reduce(self) -> (i64, Dd) {
        let n = (self.0 / c::FRAC_PI_2).round();
        let r = self - Dd::from(n) * (PI.0 * 0.5) - Dd::from(n) * (PI.1 * 0.5) - Dd::from(n * (PI_3 * 0.5));
        (n as i64, r)
    }
    fn sin_small(self) -> Dd {
        let (z, mut r) = (self * self, Dd(0.0, 0.0));
        for k in (1..=16).rev() {
            r = -z * (1.0 + r) / ((2 * k) * (2 * k + 1)) as f64;
        }
        self * (1.0 + r)
    }
    fn cos_small(self) -> Dd {
        let (z, mut r) = (self * self, Dd(0.0, 0.0));
        for k in (1..=16).rev() {
            r = -z * (1.0 + r) / ((2 * k) * (2 * k - 1)) as f64;
        }
        1.0 + r
    }
    pub fn sin(self) -> Dd {
        let (n, r) = self.reduce();
        let v = if n & 1 == 0 { r.sin_small() } else { r.cos_small() };
        if n & 2 == 0 { v } else { -v }
    }
    pub fn cos(self) -> Dd {
        let (n, r) = self.reduce();
        let v = if n & 1 == 0 { r.cos_small() } else { r.sin_small() };
        if (n + 1) & 2 == 0 { v } else { -v }
    }
    /// The angle of (x, self): a Newton step on f64's.
    pub fn atan2(self, x: Dd) -> Dd {
        let y0 = Dd::from(self.0.atan2(x.0));
        if x.0 == 0.0 || self.0 == 0.0 || !x.0.is_finite() || !self.0.is_finite() {
            return if y0.0.abs() > 3.0 { if y0.0 > 0.0 { PI } else { -PI } } else { y0.0 / c::PI * PI };
        }
        if self.0.abs() < 1e-200 && x.0.abs() < 1e100 {
            return self.two_to(600).atan2(x.two_to(600));
        }
        let scale = x.0.abs().max(self.0.abs());
        let (y, x) = (self / scale, x / scale);
        let (s, k) = (y0.sin(), y0.cos());
        y0 + (y * k - x * s) / (x * k + y * s)
    }
    pub fn atan(self) -> Dd {
        if self.0.abs() < 1e-20 { self } else { self.atan2(Dd(1.0, 0.0)) }
    }
    pub fn asin(self) -> Dd {
        if self.0.abs() < 1e-20 { self } else { self.atan2(((1.0 - self) * (1.0 + self)).sqrt()) }
    }
    pub fn acos(self) -> Dd {
        ((1.0 - self) * (1.0 + self)).sqrt().atan2(self)
    }
    pub fn erf(self) -> Dd {
        let a = self.abs();
        let r = if a.0 > 3.0 {
            1.0 - a.erfc()
        } else {
            // 2 / sqrt(pi) exp(-a^2) a sum (2 a^2)^n / (3 5 ... (2n + 1))
            let (mut term, mut total, mut n) = (Dd(1.0, 0.0), Dd(1.0, 0.0), 0.0);
            while term.0 > total.0 * 1e-33 {
                n += 1.0;
                term = term * (a * a) * 2.0 / (2.0 * n + 1.0);
                total = total + term;
            }
            2.0 / PI.sqrt() * (-(a * a)).exp() * a * total
        };
        if self.0 < 0.0 { -r } else { r }
    }
    /// exp(self^2) erfc(self) for self > 3, by its continued fraction.
    pub fn erfcx(self) -> Dd {
        let mut f = Dd(0.0, 0.0);
        for k in (1..200).rev() {
            f = 0.5 * k as f64 / (self + f);
        }
        1.0 / (PI.sqrt() * (self + f))
    }
    pub fn erfc(self) -> Dd {
        if self.0 < 0.0 {
            2.0 - (-self).erfc()
        } else if self.0 <= 3.0 {
            1.0 - self.erf()
        } else {
            (-(self * self)).exp() * self.erfcx()
        }
    }
    /// Newton steps from `start`, which only has to be near.
    pub fn erfinv(self, start: f64) -> Dd {
        let mut y = Dd::from(start.abs());
        for _ in 0..3 {
            let off = if y.0 < 0.7 { y.erf() - self.abs() } else { (1.0 - self.abs()) - y.erfc() };
            let u = off * PI.sqrt() * 0.5 * (y * y).exp();
            y = y - u / (1.0 + y * u);
        }
        if self.0 < 0.0 { -y } else { y }
    }
    pub fn max0(self) -> Dd {
        if self.0 > 0.0 { self } else { Dd(0.0, 0.0) }
    }
}
