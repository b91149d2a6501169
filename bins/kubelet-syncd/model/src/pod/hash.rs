//! The container hash: what makes a running container "changed". Byte-exact with upstream
//! (`pkg/kubelet/container/helpers.go` HashContainer), because taking a node over must restart nothing.

use std::fmt::Write as _;

use bulkhead_types::hash::fnv1a_32;

use super::labels::go_json_string;

/// FNV-1a over Go's dump of the JSON bytes of `{image, name}`. Only these two fields ever restart a container.
pub fn container_hash(name: &str, image: &str) -> u32 {
    let json = format!("{{\"image\":{},\"name\":{}}}", go_json_string(image), go_json_string(name));
    let mut dump = String::with_capacity(12 + json.len() * 4);
    dump.push_str("([]uint8)[");
    for (index, byte) in json.bytes().enumerate() {
        if index > 0 {
            dump.push(' ');
        }
        // Writing to a String cannot fail.
        let _ = write!(dump, "{byte}");
    }
    dump.push(']');
    fnv1a_32(dump.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        let busybox = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
        for (name, image, hash) in [
            ("test_container", "foo/image:v1", "8e45cbd0"),
            ("main", busybox, "a785d335"),
            ("i1", busybox, "51efb9d8"),
            ("w", busybox, "5695304c"),
            ("r", busybox, "100d7f7b"),
            ("un", busybox, "7631d788"),
        ] {
            assert_eq!(format!("{:x}", container_hash(name, image)), hash, "{name}");
        }
    }
}
