//! Logs of containers on behalf of kubelet-evictiond, which decides what of them is rotated: whose they are ([`place`]), and how
//! one gets a new file and never loses the old one ([`rotate`]).

pub mod place;
pub mod rotate;
