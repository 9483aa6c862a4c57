//! One function body, compiled for each instruction set, chosen at run time; the compiler vectorises it.
//!
//! Invariants. A body calls only `#[inline(always)]` helpers, and has plain `for` loops: a closure and the adaptor that takes it
//! (`for_each`, `map`, `fold`, `array::from_fn`) are functions of their own, compiled without the wide registers, and whether the compiler
//! merges them into the body is its choice. Where it does not, a fused multiply-add is a call of libm for each element (a gradient of batch
//! norm took seven times as long). `tests/layers.rs` looks for closures in bodies and in the helpers. Iterators over iterators (`zip`,
//! `chunks`) are fine. And it is written so that every level gives the same bits: fixed lanes for sums, `fma::<FMA>` where fused
//! multiply-add is meant.
#![allow(unsafe_code)]
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Level {
    Plain = 0,
    Avx2 = 1,
    Avx512 = 2,
}
impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Plain if cfg!(target_arch = "aarch64") => "neon",
            Level::Plain => "plain",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}
const UNKNOWN: u8 = 255;
static LEVEL: AtomicU8 = AtomicU8::new(UNKNOWN);
/// What this machine can run, found once.
#[inline]
pub fn level() -> Level {
    match LEVEL.load(Relaxed) {
        0 => Level::Plain,
        1 => Level::Avx2,
        2 => Level::Avx512,
        _ => find(),
    }
}
#[cold]
fn find() -> Level {
    let found = detect();
    LEVEL.store(found as u8, Relaxed);
    found
}
/// Runs `f` as if the machine had no more than this level, one such run at a time: tests that compare bits take every side of it.
#[cfg(test)]
pub fn at<R>(level: Level, f: impl FnOnce() -> R) -> R {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let found = detect();
    LEVEL.store((level as u8).min(found as u8), Relaxed);
    let r = f();
    LEVEL.store(found as u8, Relaxed);
    r
}
#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let wide = ["avx512f", "avx512vl", "avx512dq", "avx512bw"];
    let has = |f: &str| match f {
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        _ => is_x86_feature_detected!("avx512bw"),
    };
    match avx2 {
        true if wide.into_iter().all(has) => Level::Avx512,
        true => Level::Avx2,
        false => Level::Plain,
    }
}
#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Plain
}

/// `simd! { fn name<T: Bound>(args) -> R { body } }`: in the body the const `FMA` says whether fused multiply-add is one instruction.
macro_rules! simd {
    ($(#[$m:meta])* $v:vis fn $name:ident $(<$($g:ident : $b:path),+>)? ($($a:ident : $t:ty),* $(,)?) $(-> $r:ty)? $body:block) => {
        $(#[$m])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $v fn $name $(<$($g: $b),+>)? ($($a: $t),*) $(-> $r)? {
            #[inline(always)]
            #[allow(dead_code, clippy::too_many_arguments)]
            fn body<const FMA: bool $(, $($g: $b),+)?>($($a: $t),*) $(-> $r)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
                fn avx512 $(<$($g: $b),+>)? ($($a: $t),*) $(-> $r)? { body::<true $(, $($g),+)?>($($a),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$($g: $b),+>)? ($($a: $t),*) $(-> $r)? { body::<true $(, $($g),+)?>($($a),*) }
                match $crate::kernels::simd::level() {
                    // SAFETY: `level` found the features on this machine.
                    $crate::kernels::simd::Level::Avx512 => return unsafe { avx512 $(::<$($g),+>)? ($($a),*) },
                    // SAFETY: as above.
                    $crate::kernels::simd::Level::Avx2 => return unsafe { avx2 $(::<$($g),+>)? ($($a),*) },
                    $crate::kernels::simd::Level::Plain => {}
                }
            }
            body::<{ cfg!(target_arch = "aarch64") } $(, $($g),+)?>($($a),*)
        }
    };
}
pub(crate) use simd;
