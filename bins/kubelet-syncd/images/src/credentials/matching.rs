//! Which credential is for which image, and which of several comes first (upstream `pkg/credentialprovider/keyring.go`).

use std::cmp::Reverse;

/// The name of the credentials for Docker's own registry; images of it are named `docker.io/...`.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// A pattern `host[:port][/path]`; `*` in a label of the host stands for any text of that label. A path is of whatever begins with
/// it: `/team` of `/team2`, too, and `/team/` is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    labels: Vec<String>,
    port: String,
    /// With its first slash; empty: of the whole host.
    path: String,
    /// As it is compared for the order: the longer and later one is the more special.
    text: String,
}

impl Pattern {
    /// As a credential names its registry: scheme and version of Docker's own addresses (`https://index.docker.io/v1/`) are taken
    /// off (upstream Add). `None` for what names no host.
    pub fn of_credential(text: &str) -> Option<Self> {
        let bare = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
        let (host, path) = split_path(bare);
        let version = path.strip_prefix("/v1").or_else(|| path.strip_prefix("/v2"));
        let path = version.filter(|rest| rest.starts_with('/')).unwrap_or(path);
        Self::of(host, if path == "/" { "" } else { path })
    }

    /// As `matchImages` of an image credential provider names images, which is taken as it stands. `None` for what names no host.
    pub fn of_images(text: &str) -> Option<Self> {
        let (host, path) = split_path(text);
        Self::of(host, path)
    }

    fn of(host: &str, path: &str) -> Option<Self> {
        let text = format!("{host}{path}");
        let (host, port) = split_port(host);
        if host.is_empty() {
            return None;
        }
        let labels = host.split('.').map(str::to_owned).collect();
        Some(Pattern { labels, port: port.to_owned(), path: path.to_owned(), text })
    }

    /// `repository`: with its domain (`docker.io/library/busybox`), without tag and digest.
    pub fn matches(&self, repository: &str) -> bool {
        let (host, path) = split_path(repository);
        let (host, port) = split_port(host);
        let labels: Vec<&str> = host.split('.').collect();
        port == self.port
            && labels.len() == self.labels.len()
            && self.labels.iter().zip(&labels).all(|(pattern, label)| glob(pattern, label))
            && path.starts_with(&self.path)
    }

    /// Whether its credential may be one for the repository: [`lookup`] chooses among those.
    pub fn concerns(&self, repository: &str) -> bool {
        self.matches(repository) || (self.is_default_registry() && is_of_default_registry(repository))
    }

    fn is_default_registry(&self) -> bool {
        self.text == DEFAULT_REGISTRY
    }

    /// Sorts the more special patterns first, and last the name that counts where no other fits.
    pub fn rank(&self) -> (bool, Reverse<&str>) {
        (self.is_default_registry(), Reverse(&self.text))
    }
}

fn is_of_default_registry(repository: &str) -> bool {
    repository.starts_with("docker.io/")
}

/// Those for the repository, the more special first. Credentials of Docker's own registry have a name that fits no image of it, and
/// count where nothing else fits (upstream Lookup).
pub fn lookup<'e, E>(entries: &'e [E], pattern: impl Fn(&E) -> &Pattern, repository: &str) -> Vec<&'e E> {
    let mut found: Vec<&E> = entries.iter().filter(|entry| pattern(entry).matches(repository)).collect();
    if found.is_empty() {
        found = entries.iter().filter(|entry| pattern(entry).concerns(repository)).collect();
    }
    found.sort_by(|a, b| pattern(a).rank().cmp(&pattern(b).rank()));
    found
}

/// The path with its slash.
fn split_path(text: &str) -> (&str, &str) {
    text.split_at(text.find('/').unwrap_or(text.len()))
}

fn split_port(host: &str) -> (&str, &str) {
    host.split_once(':').unwrap_or((host, ""))
}

/// `*` stands for any text, also none.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut rest = rest;
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_credential(text: &str) -> Pattern {
        Pattern::of_credential(text).unwrap()
    }

    /// With the rows of upstream's keyring_test.go.
    #[test]
    fn patterns() {
        for (pattern, repository, expected) in [
            ("registry.test", "registry.test/a/b", true),
            ("registry.test/", "registry.test/a", true),
            ("registry.test/team", "registry.test/team/app", true),
            ("registry.test/team", "registry.test/team2/app", true),
            ("registry.test/team/", "registry.test/team/app", true),
            ("registry.test/team/", "registry.test/team2/app", false),
            ("registry.test/team", "registry.test/other/app", false),
            ("registry.test:5000", "registry.test/a", false),
            ("registry.test:5000", "registry.test:5000/a", true),
            ("test", "registry.test/a", false),
            ("*.test", "registry.test/a", true),
            ("*.test", "a.registry.test/a", false),
            ("*.*.test", "a.registry.test/a", true),
            ("reg*ry.test", "registry.test/a", true),
            ("prefix.*.io", "prefix.kubernetes.io", true),
            ("prefix.kubernetes.*", "prefix.kubernetes.io", true),
            ("*-good.kubernetes.io", "prefix-good.kubernetes.io", true),
            ("*.kubernetes.io/blah", "prefix.kubernetes.io/blah", true),
            ("prefix.*.io:1111/foo", "prefix.kubernetes.io:1111/foo/bar", true),
            ("prefix.*.io/foo", "prefix.kubernetes.io:1111/foo/bar", false),
            ("*.kubernetes.io:1234/blah", "prefix.kubernetes.io:1111/blah", false),
            ("*.*.kubernetes.io", "prefix.kubernetes.io", false),
            ("*kubernetes.io", "a.kubernetes.io", false),
            ("*kubernetes.io", "kubernetes.io", true),
            ("k*.io", "quay.io", false),
            ("*.docker.io/path:1111", "prefix.docker.io/path:1111/foo", true),
            ("*.docker.io/path:1111", "prefix.docker.io/path/subpath:1111/foo", false),
        ] {
            for pattern in [Pattern::of_images(pattern).unwrap(), of_credential(pattern)] {
                assert_eq!(pattern.matches(repository), expected, "{pattern:?} {repository}");
            }
        }
        for none in ["", "/", "/path", ":5000"] {
            assert_eq!((Pattern::of_images(none), Pattern::of_credential(none)), (None, None), "{none}");
        }
        assert_eq!(Pattern::of_credential("https://"), None);
    }

    /// Of a credential's name scheme and version are taken off, the version with both of its slashes.
    #[test]
    fn addresses_of_credentials() {
        for (pattern, repository, expected) in [
            ("https://registry.test", "registry.test/a", true),
            ("http://registry.test/v1/", "registry.test/a", true),
            ("https://registry.test/v2/", "registry.test/a", true),
            ("https://registry.test/v2/team/", "registry.test/team/a", true),
            ("https://registry.test/v2/team/", "registry.test/team2/a", false),
            ("registry.test/v2", "registry.test/a", false),
            ("registry.test/v2", "registry.test/v2/a", true),
            ("registry.test/v1", "registry.test/v1alpha/a", true),
            ("registry.test/v10/", "registry.test/a", false),
        ] {
            assert_eq!(of_credential(pattern).matches(repository), expected, "{pattern} {repository}");
        }
        let images = Pattern::of_images("registry.test/v2/").unwrap();
        assert_eq!(["registry.test/a", "registry.test/v2/a"].map(|name| images.matches(name)), [false, true]);
    }

    #[test]
    fn found_for_an_image() {
        let lookup = |patterns: &[&str], repository: &str| -> Vec<String> {
            let all: Vec<Pattern> = patterns.iter().map(|text| of_credential(text)).collect();
            lookup(&all, |pattern| pattern, repository).into_iter().map(|pattern| pattern.text.clone()).collect()
        };
        let three = ["*.test", "registry.test", "registry.test/team"];
        assert_eq!(lookup(&three, "registry.test/team/app"), ["registry.test/team", "registry.test", "*.test"]);
        assert!(lookup(&three, "else.where/app").is_empty());
        let (hub, image) = ("https://index.docker.io/v1/", "docker.io/library/busybox");
        assert_eq!(lookup(&[hub], image), ["index.docker.io"]);
        assert_eq!(lookup(&[hub, "docker.io"], image), ["docker.io"], "where nothing else fits");
        for other in ["index.docker.io/library", "*.docker.io", "index.docker.io:443", "myhostdocker.io"] {
            assert!(lookup(&[other], image).is_empty(), "{other}: no other name will do");
        }
        assert!(lookup(&[hub], "registry.test/app").is_empty() && lookup(&[hub], "myhostdocker.io/a").is_empty());
        let mut ranked = [of_credential(hub), of_credential("docker.io"), of_credential("docker.io/library")];
        ranked.sort_by(|a, b| a.rank().cmp(&b.rank()));
        assert_eq!(ranked.map(|pattern| pattern.text), ["docker.io/library", "docker.io", "index.docker.io"]);
    }

    proptest! {
        #[test]
        fn never_panics_and_a_plain_name_matches_itself(text in "\\PC{0,40}", host in "[a-z]{1,8}(\\.[a-z]{1,8}){0,3}") {
            let _ = Pattern::of_credential(&text).map(|p| p.matches(&text));
            let pattern = of_credential(&host);
            let image = format!("{}/x", host);
            prop_assert!(pattern.matches(&image));
        }
    }
}
