//! Which credential is for which image, and which of several comes first (upstream `pkg/credentialprovider/keyring.go`).

/// A pattern `host[:port][/path]`; `*` in a label of the host stands for any text of that label. The scheme and the
/// versions of Docker's own addresses (`https://index.docker.io/v1/`) are taken off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    labels: Vec<String>,
    port: String,
    path: String,
    /// As it is compared for the order: the longer and later one is the more special.
    text: String,
}

impl Pattern {
    /// `None` for what names no host.
    pub fn parse(text: &str) -> Option<Self> {
        let bare = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
        let bare = bare.strip_suffix('/').unwrap_or(bare);
        let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
        // Addresses of registries' own interfaces, which are no part of an image's name.
        let path = match path.split('/').next() {
            Some("v1" | "v2") => path.get(2..).unwrap_or_default().trim_start_matches('/'),
            _ => path,
        };
        let (host, port) = split_port(host);
        if host.is_empty() {
            return None;
        }
        let colon = if port.is_empty() { "" } else { ":" };
        let slash = if path.is_empty() { "" } else { "/" };
        let text = format!("{host}{colon}{port}{slash}{path}");
        let labels = host.split('.').map(str::to_owned).collect();
        Some(Pattern { labels, port: port.to_owned(), path: path.to_owned(), text })
    }

    /// `repository`: with its domain (`docker.io/library/busybox`), without tag and digest.
    pub fn matches(&self, repository: &str) -> bool {
        let (host, path) = repository.split_once('/').unwrap_or((repository, ""));
        let (host, port) = split_port(host);
        let labels: Vec<&str> = host.split('.').collect();
        port == self.port
            && labels.len() == self.labels.len()
            && self.labels.iter().zip(&labels).all(|(pattern, label)| glob(pattern, label))
            && path.starts_with(&self.path)
    }

    /// Sorts the more special patterns first.
    pub fn rank(&self) -> std::cmp::Reverse<&str> {
        std::cmp::Reverse(&self.text)
    }
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

/// The name under which Docker's own registry is found in credentials; images of it are named `docker.io/...`.
pub const DOCKER_HUB: &str = "index.docker.io";

/// What patterns are compared with: images of Docker's own registry go by its credentials' name.
pub fn names_to_match(repository: &str) -> Vec<String> {
    match repository.strip_prefix("docker.io/") {
        Some(path) => vec![repository.to_owned(), format!("{DOCKER_HUB}/{path}")],
        None => vec![repository.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns() {
        for (pattern, repository, expected) in [
            ("registry.test", "registry.test/a/b", true),
            ("https://registry.test/v1/", "registry.test/a", true),
            ("https://registry.test/v2/", "registry.test/a", true),
            ("registry.test/team", "registry.test/team/app", true),
            ("registry.test/team", "registry.test/other/app", false),
            ("registry.test:5000", "registry.test/a", false),
            ("registry.test:5000", "registry.test:5000/a", true),
            ("*.test", "registry.test/a", true),
            ("*.test", "a.registry.test/a", false),
            ("*.*.test", "a.registry.test/a", true),
            ("reg*ry.test", "registry.test/a", true),
            ("k8s.*.io", "k8s.gcr.io/pause", true),
            ("test", "registry.test/a", false),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(repository), expected, "{pattern} {repository}");
        }
        assert!(Pattern::parse("").is_none() && Pattern::parse("https://").is_none());
        assert_eq!(names_to_match("docker.io/library/busybox")[1], "index.docker.io/library/busybox");
    }

    #[test]
    fn the_more_special_one_comes_first() {
        let mut patterns: Vec<Pattern> =
            ["*.test", "registry.test", "registry.test/team"].iter().filter_map(|p| Pattern::parse(p)).collect();
        patterns.sort_by(|a, b| a.rank().cmp(&b.rank()));
        let order: Vec<&str> = patterns.iter().map(|p| p.text.as_str()).collect();
        assert_eq!(order, ["registry.test/team", "registry.test", "*.test"]);
    }

    proptest! {
        #[test]
        fn never_panics_and_a_plain_name_matches_itself(text in "\\PC{0,40}", host in "[a-z]{1,8}(\\.[a-z]{1,8}){0,3}") {
            let _ = Pattern::parse(&text).map(|p| p.matches(&text));
            let pattern = Pattern::parse(&host).unwrap();
            let image = format!("{}/x", host);
            prop_assert!(pattern.matches(&image));
        }
    }
}
