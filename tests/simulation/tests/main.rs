//! Fixed seeds.
