//! What is written down, held against each other, with nothing started: one test binary of the files below, each of
//! which says what it asks.
//! (`tests/README.md` says why they share one.)

mod compatibility;
mod layers;
mod prose;
mod structure;
mod units;
