//! Gives the crate pyo3's `cfg`s (which Python it is built for), where the `python` feature is on.
fn main() {
    #[cfg(feature = "python")]
    pyo3_build_config::use_pyo3_cfgs();
}
