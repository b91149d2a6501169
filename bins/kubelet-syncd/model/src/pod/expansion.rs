//! Variables in a container's command, arguments, environment and subPaths.

/// `$(NAME)` becomes its value, or stays when there is none; `$$` is one `$`
/// (upstream `third_party/forked/golang/expansion`).
pub fn expand<'a>(text: &str, mut value_of: impl FnMut(&str) -> Option<&'a [u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push(b'$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match value_of(name) {
                Some(value) => out.extend_from_slice(value),
                None => {
                    out.extend_from_slice(b"$(");
                    out.extend_from_slice(name.as_bytes());
                    out.push(b')');
                }
            }
            rest = after;
        } else {
            out.push(b'$');
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}
