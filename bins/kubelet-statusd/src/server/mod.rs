//! The HTTP servers: who is let in, and how an answer is made.

pub mod answer;
