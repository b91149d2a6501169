//! Paths as text, by Go's rules: several limits of the configuration are stated in them.

/// Go's `filepath.Clean` for Unix.
pub fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            _ => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// True for an absolute path that `clean` leaves as it is.
pub fn is_canonical(path: &str) -> bool {
    path.starts_with('/') && clean(path) == path
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cleans_as_go_does() {
        let table = [
            ("", "."),
            ("abc", "abc"),
            ("abc/def", "abc/def"),
            ("a/", "a"),
            ("/", "/"),
            ("///", "/"),
            ("/../a", "/a"),
            ("../../a", "../../a"),
            ("a/../..", ".."),
            ("/a/./b//c/..", "/a/b"),
            ("./a", "a"),
        ];
        for (path, cleaned) in table {
            assert_eq!(clean(path), cleaned, "{path}");
        }
        assert!(is_canonical("/var/lib/kubelet"));
        assert!(!is_canonical("/var/lib/kubelet/") && !is_canonical("var") && !is_canonical("/a/../b"));
    }

    proptest! {
        #[test]
        fn cleaning_twice_changes_nothing(path in "[a./]{0,30}") {
            let once = clean(&path);
            prop_assert_eq!(clean(&once), once);
        }
    }
}
