//! Entries of `preloadedImagesVerificationAllowlist`: an image's name, or the start of names with `/*` (upstream
//! `pkg/kubelet/images/pullmanager/image_pull_policies.go`, getAllowlistImagePattern).

/// Longest name of an image without its domain (`github.com/distribution/reference`, RepositoryNameTotalLengthMax).
const NAME_MAX: usize = 255;

/// Why an entry is refused, in upstream's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternError {
    #[error("leading/trailing spaces are not allowed")]
    Blanks,
    #[error("the supplied pattern is too short")]
    Short,
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed")]
    Wildcard,
    #[error("at least registry hostname is required")]
    NoHost,
    #[error("failed to parse as an image name: invalid reference format")]
    Format,
    #[error("failed to parse as an image name: repository name must be lowercase")]
    UpperCase,
    #[error("failed to parse as an image name: repository name must not be more than {NAME_MAX} characters")]
    Long,
    #[error("neither tag nor digest is accepted in an image reference")]
    Tagged,
}

/// The start of names before `/*` is not looked at any closer, blanks in it included.
pub(super) fn check(pattern: &str) -> Result<(), PatternError> {
    if pattern.trim() != pattern {
        return Err(PatternError::Blanks);
    }
    let is_wildcard = pattern.ends_with("/*");
    let start = if is_wildcard { &pattern[..pattern.len() - 1] } else { pattern };
    match start {
        "" => Err(PatternError::Short),
        _ if start.contains('*') => Err(PatternError::Wildcard),
        "/" if is_wildcard => Err(PatternError::NoHost),
        _ if is_wildcard => Ok(()),
        image => check_name(image),
    }
}

fn check_name(image: &str) -> Result<(), PatternError> {
    if is_name(image) {
        let path = image.split_once('/').filter(|(domain, _)| is_domain(domain)).map_or(image, |(_, path)| path);
        return if path.len() > NAME_MAX { Err(PatternError::Long) } else { Ok(()) };
    }
    let name = image.split_once('@').filter(|(_, digest)| !digest.is_empty()).map_or(image, |(name, _)| name);
    let tagged = name.rsplit_once(':').filter(|(_, tag)| !tag.is_empty() && !tag.contains('/'));
    let name = tagged.map_or(name, |(name, _)| name);
    if name.len() < image.len() && is_name(name) {
        return Err(PatternError::Tagged);
    }
    if is_name(&name.to_lowercase()) { Err(PatternError::UpperCase) } else { Err(PatternError::Format) }
}

/// `[domain[:port]/]component[/component...]`, of any length.
fn is_name(name: &str) -> bool {
    let is_path = |path: &str| path.split('/').all(is_component);
    is_path(name) || name.split_once('/').is_some_and(|(domain, path)| is_domain(domain) && is_path(path))
}

/// Lower-case letters and digits, with `.`, `_`, `__` or any number of `-` between them.
fn is_component(component: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    component.starts_with(plain)
        && component.ends_with(plain)
        && component
            .split(plain)
            .all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|b| b == b'-'))
}

/// A host name, or an IPv6 address in brackets, and perhaps a port.
fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        Some((host, port)) => (host, Some(port)),
        None => (domain, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':'),
        None => host.split('.').all(is_label),
    };
    is_host && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "@sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd";

    /// Upstream's rows (`image_pull_policies_test.go`), and some of the grammar of names.
    #[test]
    fn entries() {
        let good = [
            "ubuntu",
            "docker.io/library/ubuntu",
            "docker.io/library/*",
            "test.io/test/image1",
            "test.io/test/*",
            "test.io/*",
            "r.io:5000/a/b",
            "R.io/app",
            "[fd00::1]:5000/app",
            "[fd00::1]/app",
            "r.io/a.b_c__d---e/x",
            // Nothing but the start is compared.
            "r.io/App/*",
            "r.io//x/*",
            "/x/*",
            "r.io/a b/*",
            "r.io/x@y/*",
        ];
        for entry in good {
            assert_eq!(check(entry), Ok(()), "{entry}");
        }
        let with_digest = format!("test.io/test/image1{DIGEST}");
        let with_both = format!("test.io/test/image1:v1{DIGEST}");
        let bad = [
            ("", PatternError::Short),
            (" ", PatternError::Blanks),
            ("test.io/test/image1 ", PatternError::Blanks),
            ("\ttest.io/*", PatternError::Blanks),
            ("*", PatternError::Wildcard),
            ("image.repo/pokus*/imagename", PatternError::Wildcard),
            ("image.repo/pokus*", PatternError::Wildcard),
            ("image.repo/*/imagename", PatternError::Wildcard),
            ("r.io/*/*", PatternError::Wildcard),
            ("/*", PatternError::NoHost),
            ("image.repo/", PatternError::Format),
            ("registry.io/myorg/:tag", PatternError::Format),
            ("/app", PatternError::Format),
            ("r.io//x", PatternError::Format),
            ("r.io/a b", PatternError::Format),
            ("r.io/a..b", PatternError::Format),
            ("r.io/-a", PatternError::Format),
            ("r.io/a_", PatternError::Format),
            ("r.io:/a", PatternError::Format),
            ("r.io:5x/a", PatternError::Format),
            ("-r.io/a", PatternError::Format),
            ("r..io/A", PatternError::Format),
            ("[]/a", PatternError::Format),
            ("r.io/a@", PatternError::Format),
            ("r.io/a:", PatternError::Format),
            ("r.io/App", PatternError::UpperCase),
            ("App", PatternError::UpperCase),
            ("test.io/test/image1:tagged", PatternError::Tagged),
            ("ubuntu:1", PatternError::Tagged),
            (with_digest.as_str(), PatternError::Tagged),
            (with_both.as_str(), PatternError::Tagged),
        ];
        for (entry, why) in bad {
            assert_eq!(check(entry), Err(why), "{entry}");
        }
        assert_eq!(check(&format!("r.io/{}", "a".repeat(NAME_MAX))), Ok(()));
        assert_eq!(check(&"a".repeat(NAME_MAX + 1)), Err(PatternError::Long));
    }
}
