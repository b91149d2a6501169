//! `kubelet-iptables`: keeps the chains of iptables that other components look for (`makeIPTablesUtilChains`). It exists because
//! iptables is a program of the machine's, and takes capabilities that none of the daemons has.
//!
//! # Serves / calls
//! Questions of kubelet-volnetd alone: from the one inherited socket whose other end volnetd has, or (as a unit) from
//! connections that root alone may make. Calls nobody.
//!
//! # Privileges
//! A user of its own; CAP_NET_ADMIN, and CAP_NET_RAW for the raw socket of the legacy variant, whose lock (/run/xtables.lock)
//! `kubelet` lets its group open. Of files Landlock leaves programs with their libraries, and the lock.
//!
//! # Security
//! A question says whether to look at the canary first, and nothing else: chains, rules, programs and their arguments are fixed
//! in [`chains`] and [`keep`]. No environment, no shell.
//!
//! # State
//! None: what there is, the kernel tells.
//!
//! # When it fails
//! The asker's pipe ends, and the question is asked again a minute later. It ends when nothing is asked for a while.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`chains`] | which chains and rules there are, and the arguments that make sure of them |
//! | [`keep`] | in which order, and what each exit code means |

pub mod chains;
pub mod keep;
