//! Which kind of source names a pod.

/// Where desired pods come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceKind {
    File,
    Http,
    Api,
}

impl SourceKind {
    /// Value of the annotation [`CONFIG_SOURCE`](crate::annotations::CONFIG_SOURCE).
    pub const fn as_str(self) -> &'static str {
        match self {
            SourceKind::File => "file",
            SourceKind::Http => "http",
            SourceKind::Api => "api",
        }
    }

    /// None: no source of ours says so.
    pub fn parse(text: &str) -> Option<Self> {
        [SourceKind::File, SourceKind::Http, SourceKind::Api].into_iter().find(|kind| kind.as_str() == text)
    }

    /// Its pods are static: the API server has mirrors of them.
    pub const fn is_static(self) -> bool {
        matches!(self, SourceKind::File | SourceKind::Http)
    }
}

impl std::fmt::Display for SourceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_annotation_has_them() {
        for (text, kind, is_static) in
            [("file", SourceKind::File, true), ("http", SourceKind::Http, true), ("api", SourceKind::Api, false)]
        {
            assert_eq!((SourceKind::parse(text), kind.is_static()), (Some(kind), is_static));
            assert_eq!(kind.to_string(), text);
        }
        assert_eq!(SourceKind::parse(""), None);
    }
}
