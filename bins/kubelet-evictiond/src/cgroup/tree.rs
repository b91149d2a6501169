//! The cgroups below one.

use std::path::Path;

/// Levels that are entered below it.
const DEEPEST: usize = 8;

/// The cgroups below this one, parents before children, `most` at most. One that is left out is so with all that is below it.
pub(super) fn below(mount: &Path, cgroup: &str, most: usize, is_left_out: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut level = vec![cgroup.trim_end_matches('/').to_owned()];
    for _ in 0..DEEPEST {
        let mut next = Vec::new();
        for parent in level {
            let names = folders(&mount.join(parent.trim_start_matches('/')));
            for path in names.into_iter().map(|name| format!("{parent}/{name}")).filter(|path| !is_left_out(path)) {
                if found.len() == most {
                    return found;
                }
                found.push(path.clone());
                next.push(path);
            }
        }
        level = next;
    }
    found
}

/// In the order of their names.
fn folders(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<_> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_first_and_not_without_end() {
        let temp = tempfile::tempdir().unwrap();
        for path in ["s/b/x/y", "s/b/out/z", "s/a", "t", &format!("s{}", "/deep".repeat(DEEPEST + 1))] {
            std::fs::create_dir_all(temp.path().join(path)).unwrap();
        }
        std::fs::write(temp.path().join("s/cgroup.procs"), "").unwrap();
        let below = |cgroup, most| below(temp.path(), cgroup, most, |path| path.ends_with("/out"));
        assert_eq!(below("/s/b", 9), ["/s/b/x", "/s/b/x/y"]);
        assert_eq!(below("/s", 4), ["/s/a", "/s/b", "/s/deep", "/s/b/x"]);
        assert_eq!(below("/s/b", 1), ["/s/b/x"], "one that is left out takes no place");
        assert_eq!(below("/s/deep", 99).len(), DEEPEST);
        assert_eq!(below("/s", 99).len(), 4 + DEEPEST);
        assert_eq!(below("/gone", 9), Vec::<String>::new());
    }
}
