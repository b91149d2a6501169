//! mountOptions of an NFS volume: which are known, and what becomes of each. mount.nfs translates some and hands the rest to the
//! kernel; here the same is done by a closed list, so that a parameter of the kernel that nobody has looked at cannot be set.
//! Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rustix::mount::MountAttrFlags;
use serde::{Deserialize, Serialize};

use super::super::mount_attributes::Attribute;
use super::negotiation::Version;

/// More than anybody writes, and a message stays small.
const MAX_OPTIONS: usize = 64;
const MAX_BYTES: usize = 256;

/// Options as the worker needs them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Options {
    /// Tried one after the other.
    pub versions: Vec<Version>,
    /// The kernel's own, in the order in which they were written.
    pub parameters: Vec<(String, Option<String>)>,
    /// Bits of the mount itself (`MOUNT_ATTR_*`).
    pub attributes: u32,
    /// `proto` leaves only addresses of this family.
    pub family: Option<Family>,
    /// All of them as upstream writes them in its messages: sorted, each once.
    pub shown: String,
}

/// Of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const fn has(self, address: IpAddr) -> bool {
        matches!((self, address), (Family::V4, IpAddr::V4(_)) | (Family::V6, IpAddr::V6(_)))
    }
}

/// An option that is not known, or whose value is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an incorrect mount option was specified: {option:?}: {why}")]
pub struct InvalidOption {
    pub option: String,
    pub why: String,
}

/// What an option may be.
enum Rule {
    /// A parameter of the kernel without a value.
    Flag,
    /// One with a number in these bounds.
    Number(u32, u32),
    /// One with one of these words.
    Word(&'static [&'static str]),
    /// One with words of these, separated by colons.
    Words(&'static [&'static str]),
    /// One with an address.
    Address,
    /// A label of SELinux.
    Label,
    /// Sets or clears bits of the mount.
    Attribute(Attribute),
    /// Nothing to be done: the words are for programs that read fstab, or name what is the case anyway.
    Ignored,
}

/// The transports and their addresses' family.
const PROTOCOLS: [&str; 6] = ["tcp", "tcp6", "udp", "udp6", "rdma", "rdma6"];

fn rule(name: &str) -> Option<Rule> {
    const MAX: u32 = i32::MAX as u32;
    if let Some(attribute) = Attribute::of(name) {
        return Some(Rule::Attribute(attribute));
    }
    Some(match name {
        "acl" | "noacl" | "ac" | "noac" | "cto" | "nocto" | "lock" | "nolock" | "rdirplus" | "nordirplus"
        | "resvport" | "noresvport" | "sharecache" | "nosharecache" | "soft" | "softerr" | "softreval"
        | "nosoftreval" | "hard" | "intr" | "nointr" | "posix" | "noposix" | "fsc" | "nofsc" | "trunkdiscovery"
        | "notrunkdiscovery" | "tcp" | "udp" | "rdma" | "sync" | "async" | "dirsync" => Rule::Flag,
        "acdirmax" | "acdirmin" | "acregmax" | "acregmin" | "actimeo" | "namlen" | "retrans" => Rule::Number(0, MAX),
        "bsize" | "rsize" | "wsize" | "timeo" => Rule::Number(1, MAX),
        "port" | "mountport" => Rule::Number(0, 65_535),
        "mountvers" => Rule::Number(1, 3),
        "nconnect" | "max_connect" => Rule::Number(1, 16),
        "local_lock" => Rule::Word(&["none", "all", "flock", "posix"]),
        "lookupcache" => Rule::Word(&["all", "none", "pos", "positive"]),
        "write" => Rule::Word(&["lazy", "eager", "wait"]),
        "xprtsec" => Rule::Word(&["none", "tls", "mtls"]),
        "mountproto" => Rule::Word(&["tcp", "tcp6", "udp", "udp6"]),
        "proto" => Rule::Word(&PROTOCOLS),
        "sec" => Rule::Words(&["none", "null", "sys", "krb5", "krb5i", "krb5p"]),
        "clientaddr" | "mountaddr" => Rule::Address,
        "context" | "fscontext" | "defcontext" | "rootcontext" => Rule::Label,
        "ro" => Rule::Attribute(Attribute::Set(MountAttrFlags::MOUNT_ATTR_RDONLY)),
        "rw" => Rule::Attribute(Attribute::Clear(MountAttrFlags::MOUNT_ATTR_RDONLY)),
        // "retry" is how long mount.nfs goes on trying: here the volume is tried again by kubelet-syncd.
        "defaults" | "_netdev" | "auto" | "noauto" | "nofail" | "nouser" | "fg" | "retry" | "sloppy" => Rule::Ignored,
        _ if name.starts_with("x-") => Rule::Ignored,
        _ => return None,
    })
}

impl Options {
    /// Reads mountOptions: each string may hold several, separated by commas. The last word on one thing counts.
    ///
    /// # Errors
    /// One that is not known, with a value that is none, or that says the opposite of another one.
    pub fn parse(texts: &[String], read_only: bool) -> Result<Options, InvalidOption> {
        let all: Vec<&str> = texts.iter().flat_map(|text| text.split(',')).map(str::trim).collect();
        let written: Vec<&str> = all.into_iter().filter(|option| !option.is_empty()).collect();
        if written.len() > MAX_OPTIONS {
            let option = written[MAX_OPTIONS].chars().take(MAX_BYTES).collect();
            return Err(InvalidOption { option, why: format!("at most {MAX_OPTIONS} are allowed") });
        }
        let mut options = Options::default();
        let (mut version, mut minor, mut udp) = (None, None, false);
        for option in &written {
            let bad =
                |why: &str| InvalidOption { option: option.chars().take(MAX_BYTES).collect(), why: why.to_owned() };
            if option.len() > MAX_BYTES || option.chars().any(char::is_control) {
                return Err(bad("too long, or with characters that no option has"));
            }
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (*option, None),
            };
            match (name, value) {
                ("vers" | "nfsvers", Some(value)) => version = Some(wanted(value).ok_or_else(|| bad(VERSIONS))?),
                ("v3" | "v4" | "v4.0" | "v4.1" | "v4.2", None) => version = wanted(&name[1..]),
                ("minorversion", Some(value)) => {
                    let number = number(value, 0, 2).ok_or_else(|| bad("a number from 0 to 2 is wanted"))?;
                    minor = Some(number);
                }
                // The name of a server is resolved by kubelet-syncd alone.
                ("mounthost", Some(value)) if value.parse::<IpAddr>().is_ok() => {
                    options.parameter("mountaddr", Some(value));
                }
                ("mounthost", Some(_)) => return Err(bad("an address is wanted, names are not resolved here")),
                _ => {
                    let rule = rule(name).ok_or_else(|| bad("it is not known here"))?;
                    options.apply(&rule, name, value).map_err(|why| bad(&why))?;
                    udp |= name == "udp" || (name == "proto" && value.is_some_and(|value| value.starts_with("udp")));
                }
            }
        }
        let said: &str = written.iter().find(|option| option.starts_with("minorversion")).copied().unwrap_or_default();
        options.versions = match (version, minor) {
            (None, None) if udp => vec![Version::V3],
            (None, None) => Version::ALL.to_vec(),
            (None | Some(Wanted::Any4), Some(minor)) => vec![Version { major: 4, minor }],
            (Some(Wanted::Any4), None) => Version::ALL.into_iter().filter(|version| version.major == 4).collect(),
            (Some(Wanted::One(version)), None) => vec![version],
            (Some(Wanted::One(version)), Some(minor)) if version == (Version { major: 4, minor }) => vec![version],
            (Some(Wanted::One(_)), Some(_)) => {
                return Err(InvalidOption { option: said.to_owned(), why: "another version is named as well".into() });
            }
        };
        let mut shown: BTreeSet<&str> = written.into_iter().collect();
        if read_only {
            options.attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY.bits();
            shown.insert("ro");
        }
        if options.is_read_only() {
            options.parameter("ro", None);
        }
        options.shown = shown.into_iter().collect::<Vec<_>>().join(",");
        Ok(options)
    }

    pub fn is_read_only(&self) -> bool {
        self.attributes & MountAttrFlags::MOUNT_ATTR_RDONLY.bits() != 0
    }

    fn parameter(&mut self, name: &str, value: Option<&str>) {
        self.parameters.retain(|(known, _)| known != name);
        self.parameters.push((name.to_owned(), value.map(str::to_owned)));
    }

    fn apply(&mut self, rule: &Rule, name: &str, value: Option<&str>) -> Result<(), String> {
        let ok = match (rule, value) {
            (Rule::Flag, None) => true,
            (Rule::Number(min, max), Some(value)) => {
                number(value, *min, *max).ok_or_else(|| format!("a number from {min} to {max} is wanted"))?;
                true
            }
            (Rule::Word(words), Some(value)) => {
                if !words.contains(&value) {
                    return Err(format!("one of {} is wanted", words.join(", ")));
                }
                true
            }
            (Rule::Words(words), Some(value)) => {
                if !value.split(':').all(|word| words.contains(&word)) {
                    return Err(format!("some of {}, separated by colons, are wanted", words.join(", ")));
                }
                true
            }
            (Rule::Address, Some(value)) => {
                value.parse::<IpAddr>().map_err(|_| "an IPv4 or IPv6 address is wanted".to_owned())?;
                true
            }
            (Rule::Label, Some(value)) => {
                let is_label = |c: char| c.is_ascii_alphanumeric() || "_:.-".contains(c);
                if value.is_empty() || !value.trim_matches('"').chars().all(is_label) {
                    return Err("a label of SELinux without categories is wanted".to_owned());
                }
                self.parameter(name, Some(value.trim_matches('"')));
                return Ok(());
            }
            (Rule::Attribute(attribute), None) => {
                self.attributes = attribute.applied_to(self.attributes);
                return Ok(());
            }
            (Rule::Ignored, _) => return Ok(()),
            (Rule::Flag | Rule::Attribute(_), Some(_)) => return Err("it takes no value".to_owned()),
            (_, None) => return Err("it needs a value".to_owned()),
        };
        debug_assert!(ok, "everything else has returned");
        if name == "proto" {
            self.family = value.map(|value| if value.ends_with('6') { Family::V6 } else { Family::V4 });
        }
        self.parameter(name, value);
        Ok(())
    }
}

const VERSIONS: &str = "one of 3, 4, 4.0, 4.1, 4.2 is wanted";

/// What a version's text asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    One(Version),
    /// The newest of version 4 that both sides have.
    Any4,
}

fn wanted(text: &str) -> Option<Wanted> {
    Some(match text {
        "3" => Wanted::One(Version::V3),
        "4" => Wanted::Any4,
        "4.0" => Wanted::One(Version { major: 4, minor: 0 }),
        "4.1" => Wanted::One(Version { major: 4, minor: 1 }),
        "4.2" => Wanted::One(Version { major: 4, minor: 2 }),
        _ => return None,
    })
}

fn number(text: &str, min: u32, max: u32) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| plain && (min..=max).contains(number))
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
