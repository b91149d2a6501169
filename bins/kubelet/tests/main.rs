//! The tests of this crate from outside: one binary of the files below, because each would hold another copy of the same
//! libraries.

mod command_line;
mod launcher;
