//! `kubelet-flexvolume`: calls FlexVolume drivers for kubelet-volnetd, where the operator has switched it on. It exists because a
//! driver is a program that nobody knows, which mounts by itself: no process that decides anything runs one (decision 91).
//!
//! # Serves / calls
//! Questions of kubelet-volnetd alone: from the one inherited socket whose other end volnetd has, or (as a unit) from
//! connections that root alone may make. Calls nobody; what a driver calls is the driver's business.
//!
//! # Privileges
//! uid 0 and what a driver that mounts needs: its row of `bulkhead_privileges` says which capabilities and why. No fence: a fenced
//! process may not mount, and where drivers work nobody knows. It stays in the host's mount namespace, because what drivers mount must
//! be seen by the runtime.
//!
//! # Security
//! A question has names and options. The program is found by the driver's name below `volumePluginDir`, and only one
//! that root alone can have put there is run ([`driver`]); paths are built here of ids, below the node's root directory
//! ([`place`]); arguments are one fixed word, that path, one JSON object ([`options`]), and a word for a device that is
//! no option ([`act`]). Secrets are in that object, as the drivers' protocol has it: whoever may read other processes'
//! command lines reads them while the call lasts. They are in no log and in no file of ours. The environment is PATH
//! alone: drivers are shell scripts, which look for mount and jq there.
//!
//! # State
//! None. A driver that appears, changes or goes is noticed with the next question.
//!
//! # When it fails
//! The asker's pipe ends, the drivers that it runs end with it, and the question is asked again with the volume's next try. A driver that
//! hangs is killed after its time; one that the kernel does not let end keeps a place of its own driver's, and is named.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`driver`] | whether a driver's program may be run |
//! | [`place`] | which folders a volume has |
//! | [`options`] | what a driver is told |
//! | [`verdict`] | what a driver's answer means |
//! | [`calls`] | how many calls of a driver there may be, and how long one takes |
//! | [`act`] | what a question comes to |

pub mod act;
pub mod calls;
pub mod driver;
pub mod options;
pub mod place;
pub mod verdict;
