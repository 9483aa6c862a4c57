//! (room laid out; see the commit that fills it)
