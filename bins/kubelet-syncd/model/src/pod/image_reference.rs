//! Image names, as upstream takes and refuses them. By hand: a regex for this costs 12 MB of memory.
//! (distribution's `reference` package, upstream `pkg/util/parsers`)

use std::fmt;

/// The tag of a name without tag and digest.
const DEFAULT_TAG: &str = "latest";
const DEFAULT_DOMAIN: &str = "docker.io";
const PATH_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;

/// A name in its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// With the domain: `docker.io/library/busybox`.
    pub repository: String,
    /// Given, or `latest` where neither tag nor digest is given.
    pub tag: Option<String>,
    pub digest: Option<String>,
}

/// Why a text is no image name; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {image:?}: {problem}")]
pub struct InvalidImageName {
    pub image: String,
    problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Problem {
    Format,
    Identifier(String),
    Uppercase(String),
    TooLong,
    DigestFormat,
    DigestLength,
    DigestAlgorithm,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Format => f.write_str("invalid reference format"),
            Problem::Identifier(name) => {
                write!(f, "invalid repository name ({name}), cannot specify 64-byte hexadecimal strings")
            }
            Problem::Uppercase(name) => {
                write!(f, "invalid reference format: repository name ({name}) must be lowercase")
            }
            Problem::TooLong => write!(f, "repository name must not be more than {PATH_BYTES_MAX} characters"),
            Problem::DigestFormat => f.write_str("invalid checksum digest format"),
            Problem::DigestLength => f.write_str("invalid checksum digest length"),
            Problem::DigestAlgorithm => f.write_str("unsupported digest algorithm"),
        }
    }
}

impl ImageName {
    /// Takes a name apart and fills in what it leaves to custom.
    ///
    /// # Errors
    /// It is no image name.
    pub fn parse(image: &str) -> Result<Self, InvalidImageName> {
        parse(image).map_err(|problem| InvalidImageName { image: image.to_owned(), problem })
    }
}

/// The name to give to the runtime: with `:latest` where there is neither tag nor digest, else as it is. It is not
/// made fully qualified: what a short name means is the runtime's to say.
///
/// # Errors
/// It is no image name.
pub fn with_default_tag(image: &str) -> Result<String, InvalidImageName> {
    let name = ImageName::parse(image)?;
    let tag = name.tag.filter(|_| name.digest.is_none());
    Ok(match tag {
        Some(tag) if !image.ends_with(&format!(":{tag}")) => format!("{image}:{tag}"),
        _ => image.to_owned(),
    })
}

/// Whether the name, left alone, means the newest image (then the default pull policy is Always).
pub fn is_latest(image: &str) -> bool {
    ImageName::parse(image).is_ok_and(|name| name.tag.as_deref() == Some(DEFAULT_TAG))
}

fn parse(image: &str) -> Result<ImageName, Problem> {
    if image.len() == 64 && image.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(Problem::Identifier(image.to_owned()));
    }
    let (domain, remainder) = split_domain(image);
    let remote = remainder.split(':').next().unwrap_or_default();
    if remote.to_lowercase() != remote {
        return Err(Problem::Uppercase(remote.to_owned()));
    }

    let (named, digest) = match remainder.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (remainder.as_str(), None),
    };
    let (path, tag) = match named.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (named, None),
    };
    // A first part that is no host may still be a part of the path: `my_registry.x/y`.
    let path_bytes = match (is_domain(&domain), is_path_component(&domain)) {
        (true, _) => path.len(),
        (false, true) => domain.len() + 1 + path.len(),
        (false, false) => return Err(Problem::Format),
    };
    let format_ok = path.split('/').all(is_path_component) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    if !format_ok {
        return Err(Problem::Format);
    }
    if path_bytes > PATH_BYTES_MAX {
        return Err(Problem::TooLong);
    }
    if let Some(digest) = digest {
        check_digest(digest)?;
    }
    let default_tag = digest.is_none().then_some(DEFAULT_TAG);
    Ok(ImageName {
        repository: format!("{domain}/{path}"),
        tag: tag.or(default_tag).map(str::to_owned),
        digest: digest.map(str::to_owned),
    })
}

/// What stands before the first slash is a host only if it looks like one.
fn split_domain(image: &str) -> (String, String) {
    let (domain, rest) = match image.split_once('/') {
        None => (DEFAULT_DOMAIN, image),
        Some(("localhost", rest)) => ("localhost", rest),
        Some(("index.docker.io", rest)) => (DEFAULT_DOMAIN, rest),
        Some((first, rest)) if first.contains(['.', ':']) || first.to_lowercase() != first => (first, rest),
        Some(_) => (DEFAULT_DOMAIN, image),
    };
    let rest =
        if domain == DEFAULT_DOMAIN && !rest.contains('/') { format!("library/{rest}") } else { rest.to_owned() };
    (domain.to_owned(), rest)
}

/// Host name or bracketed IPv6 address, then perhaps a port.
fn is_domain(text: &str) -> bool {
    let (host_ok, port) = if let Some(rest) = text.strip_prefix('[') {
        match rest.split_once(']') {
            Some((address, "")) => (is_ipv6(address), None),
            Some((address, rest)) => match rest.strip_prefix(':') {
                Some(port) => (is_ipv6(address), Some(port)),
                None => return false,
            },
            None => return false,
        }
    } else {
        match text.split_once(':') {
            Some((host, port)) => (is_host(host), Some(port)),
            None => (is_host(text), None),
        }
    };
    host_ok && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

fn is_ipv6(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')
}

fn is_host(text: &str) -> bool {
    text.split('.').all(|label| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

/// Lower-case letters and digits, with single separators between: `.`, `_`, `__` or any number of `-`.
fn is_path_component(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = |b: Option<u8>| b.is_some_and(plain);
    if !ends(text.bytes().next()) || !ends(text.bytes().last()) {
        return false;
    }
    text.split(|c: char| c.is_ascii() && plain(c as u8))
        .all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= TAG_BYTES_MAX
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

/// `algorithm:hex`, at least 32 digits.
fn is_digest(text: &str) -> bool {
    let Some((algorithm, hex)) = text.split_once(':') else { return false };
    let parts_ok = algorithm.split(['-', '_', '+', '.']).all(|part| {
        part.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    parts_ok && hex.len() >= 32 && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

fn check_digest(text: &str) -> Result<(), Problem> {
    let (algorithm, hex) = text.split_once(':').ok_or(Problem::DigestFormat)?;
    if algorithm.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(Problem::DigestFormat);
    }
    let digits = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err(Problem::DigestAlgorithm),
    };
    if hex.len() != digits {
        return Err(Problem::DigestLength);
    }
    if hex.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(Problem::DigestFormat);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHA: &str = "sha256:7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";

    #[test]
    fn taken() {
        let digested = format!("r.example/a@{SHA}");
        let both = format!("a:1@{SHA}");
        #[rustfmt::skip]
        let cases: &[(&str, &str, &str, Option<&str>)] = &[
            // name                         what the runtime is given        repository                       tag
            ("busybox",                     "busybox:latest",                "docker.io/library/busybox",     Some("latest")),
            ("busybox:1.37",                "busybox:1.37",                  "docker.io/library/busybox",     Some("1.37")),
            ("user/app",                    "user/app:latest",               "docker.io/user/app",            Some("latest")),
            ("docker.io/app",               "docker.io/app:latest",          "docker.io/library/app",         Some("latest")),
            ("index.docker.io/u/app:x",     "index.docker.io/u/app:x",       "docker.io/u/app",               Some("x")),
            ("localhost/app",               "localhost/app:latest",          "localhost/app",                 Some("latest")),
            ("localhost:5000/app:v1",       "localhost:5000/app:v1",         "localhost:5000/app",            Some("v1")),
            ("registry.invalid/none:1",     "registry.invalid/none:1",       "registry.invalid/none",         Some("1")),
            ("[fd00::1]:5000/app",          "[fd00::1]:5000/app:latest",     "[fd00::1]:5000/app",            Some("latest")),
            ("HOST/app",                    "HOST/app:latest",               "HOST/app",                      Some("latest")),
            ("a__b/c---d.e:T_1.2-x",        "a__b/c---d.e:T_1.2-x",          "docker.io/a__b/c---d.e",        Some("T_1.2-x")),
            ("my_registry.x/y",             "my_registry.x/y:latest",        "my_registry.x/y",               Some("latest")),
            (&digested,                     &digested,                       "r.example/a",                   None),
            (&both,                         &both,                           "docker.io/library/a",           Some("1")),
        ];
        for (image, given, repository, tag) in cases {
            assert_eq!(with_default_tag(image).as_deref(), Ok(*given), "{image}");
            let name = ImageName::parse(image).unwrap();
            assert_eq!((name.repository.as_str(), name.tag.as_deref()), (*repository, *tag), "{image}");
        }
        assert!(is_latest("busybox") && is_latest("r.example:1/x:latest"));
        assert!(!is_latest("busybox:1") && !is_latest(&digested) && !is_latest("//"));
    }

    #[test]
    fn refused() {
        let long = format!("r.example/{}", "a".repeat(256));
        let cases: &[(&str, &str)] = &[
            ("", "invalid reference format"),
            ("busybox:", "invalid reference format"),
            ("busybox:a:b", "invalid reference format"),
            (":tag", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("a/", "invalid reference format"),
            ("-a", "invalid reference format"),
            ("a..b", "invalid reference format"),
            ("a___b", "invalid reference format"),
            ("a b", "invalid reference format"),
            ("a\n", "invalid reference format"),
            ("-x.example/a", "invalid reference format"),
            ("x.example:port/a", "invalid reference format"),
            ("a@sha256:12", "invalid reference format"),
            ("Busybox", "repository name (library/Busybox) must be lowercase"),
            ("r.example/Busybox:1", "repository name (Busybox) must be lowercase"),
            (&SHA[7..], "cannot specify 64-byte hexadecimal strings"),
            (&long, "repository name must not be more than 255 characters"),
            ("a@sha256:7cc4b5aefd1d0cadf8d97d4350462ba5", "invalid checksum digest length"),
            ("a@md5:7cc4b5aefd1d0cadf8d97d4350462ba5", "unsupported digest algorithm"),
        ];
        for (image, problem) in cases {
            let error = with_default_tag(image).unwrap_err().to_string();
            assert!(error.ends_with(problem), "{image:?}: {error}");
            assert!(error.starts_with("couldn't parse image name "), "{error}");
        }
        let tag = format!("a:{}", "t".repeat(129));
        assert!(with_default_tag(&tag).is_err());
        assert!(with_default_tag(&tag[..tag.len() - 1]).is_ok());
        let upper = format!("a@{}", SHA.to_uppercase().replace("SHA", "sha"));
        assert!(with_default_tag(&upper).unwrap_err().to_string().ends_with("invalid checksum digest format"));
    }

    proptest! {
        #[test]
        fn never_panics_and_the_default_tag_is_stable(image in "[a-zA-Z0-9./:@_\\-\\[\\] é]{0,80}") {
            if let Ok(given) = with_default_tag(&image) {
                prop_assert_eq!(with_default_tag(&given), Ok(given.clone()));
                prop_assert!(given.starts_with(&image));
            }
        }
    }
}
