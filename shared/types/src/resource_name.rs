//! Names of resources, as upstream tells their kinds apart (`pkg/apis/core/v1/helper`).

use crate::{Quantity, is_dns1123_subdomain};

/// What names of huge pages begin with; the size of a page follows.
pub const HUGE_PAGES: &str = "hugepages-";

/// `hugepages-<size>`, whatever the size (upstream `IsHugePageResourceName`).
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

/// Size of one page in bytes; None: the name is none of huge pages, or its size is no quantity (upstream
/// `HugePageSizeFromResourceName`).
pub fn huge_page_size(name: &str) -> Option<Quantity> {
    Quantity::parse(name.strip_prefix(HUGE_PAGES)?).ok()
}

/// `memory` or huge pages: what the memory manager assigns.
pub fn is_memory(name: &str) -> bool {
    name == "memory" || is_huge_page(name)
}

/// What may be set for a pod as a whole (upstream `IsSupportedPodLevelResource`).
pub fn is_pod_level(name: &str) -> bool {
    name == "cpu" || is_memory(name)
}

/// A resource of Kubernetes itself: `kubernetes.io/` stands in its name, or no domain at all (upstream `IsNativeResource`).
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// A device or another countable thing with a domain of its own. Its name has to be valid with `requests.` in front too, as quotas
/// name it (upstream `IsExtendedResourceName`).
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && is_qualified_name(&format!("requests.{name}"))
}

/// `[prefix/]name`: the prefix a DNS subdomain, the name of 1 to 63 characters (upstream `IsQualifiedName`).
pub fn is_qualified_name(text: &str) -> bool {
    let name = match text.split_once('/') {
        Some((prefix, _)) if !is_dns1123_subdomain(prefix) => return false,
        Some((_, name)) => name,
        None => text,
    };
    name.len() <= 63 && is_key_shape(name)
}

/// Letters, digits, `-`, `_` and `.`, of which the first and the last is a letter or digit; of any length but 0: the name in a
/// [qualified name](is_qualified_name), and a label's value.
pub fn is_key_shape(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.iter().all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()))
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_resources() {
        // Name, whether it is native, extended, memory.
        for (name, native, extended, memory) in [
            ("cpu", true, false, false),
            ("memory", true, false, true),
            ("ephemeral-storage", true, false, false),
            ("hugepages-2Mi", true, false, true),
            ("hugepages-", true, false, true),
            ("HugePages-2Mi", true, false, false),
            ("kubernetes.io/x", true, false, false),
            ("a.kubernetes.io/x", true, false, false),
            ("notkubernetes.io/x", true, false, false),
            ("vendor.com/gpu", false, true, false),
            ("vendor.com/hugepages-2Mi", false, true, false),
            ("requests.vendor.com/gpu", false, false, false),
            // These are no qualified names.
            ("Vendor.com/gpu", false, false, false),
            ("vendor.com/a/b", false, false, false),
            ("vendor.com/", false, false, false),
            ("vendor.com/-gpu", false, false, false),
            // `requests.` alone is no domain.
            ("/gpu", false, false, false),
        ] {
            assert_eq!((is_native(name), is_extended(name), is_memory(name)), (native, extended, memory), "{name}");
        }
        // A domain has 253 characters at most, those of `requests.` included.
        let domain = |length: usize| format!("{}/gpu", "a".repeat(length));
        assert!(is_extended(&domain(253 - "requests.".len())) && !is_extended(&domain(254 - "requests.".len())));
    }

    #[test]
    fn sizes_of_huge_pages() {
        let sizes =
            ["hugepages-2Mi", "hugepages-1Gi", "hugepages-x", "hugepages-", "memory", "2Mi"].map(huge_page_size);
        let mebibytes = |count: i64| Some(Quantity::from_bytes(count << 20));
        assert_eq!(sizes, [mebibytes(2), mebibytes(1024), None, None, None, None]);
    }

    #[test]
    fn qualified_names() {
        let longest = "x".repeat(63);
        for good in ["a", "A_b.c-1", "example.com/Name", "a/b", &longest, &format!("example.com/{longest}")] {
            assert!(is_qualified_name(good), "{good}");
        }
        let longer = "x".repeat(64);
        for bad in ["", "-a", "a-", "a b", "ä", "/a", "a/", "a/b/c", "UPPER.com/a", "a..b/c", &longer] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
    }
}
