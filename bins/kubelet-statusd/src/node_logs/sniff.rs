//! The content type of a file: by its name, else by its first bytes (Go's `mime.TypeByExtension` without the host's tables,
//! then `http.DetectContentType`). Pure.

/// Bytes that are looked at.
pub const SNIFFED_BYTES: usize = 512;

/// Go's built-in table.
const BY_EXTENSION: [(&str, &str); 16] = [
    (".avif", "image/avif"),
    (".css", "text/css; charset=utf-8"),
    (".gif", "image/gif"),
    (".htm", "text/html; charset=utf-8"),
    (".html", "text/html; charset=utf-8"),
    (".jpeg", "image/jpeg"),
    (".jpg", "image/jpeg"),
    (".js", "text/javascript; charset=utf-8"),
    (".json", "application/json"),
    (".mjs", "text/javascript; charset=utf-8"),
    (".pdf", "application/pdf"),
    (".png", "image/png"),
    (".svg", "image/svg+xml"),
    (".wasm", "application/wasm"),
    (".webp", "image/webp"),
    (".xml", "text/xml; charset=utf-8"),
];

/// By the name's extension.
pub fn by_name(name: &str) -> Option<&'static str> {
    let extension = &name[name.rfind('.')?..];
    BY_EXTENSION.iter().find(|(known, _)| extension.eq_ignore_ascii_case(known)).map(|(_, kind)| *kind)
}

/// Tags at the beginning of a document, after blanks; another blank or `>` must follow.
const TAGS: [&str; 17] = [
    "<!DOCTYPE HTML",
    "<HTML",
    "<HEAD",
    "<SCRIPT",
    "<IFRAME",
    "<H1",
    "<DIV",
    "<FONT",
    "<TABLE",
    "<A",
    "<STYLE",
    "<TITLE",
    "<B",
    "<BODY",
    "<BR",
    "<P",
    "<!--",
];

/// What other documents begin with.
const MAGIC: [(&[u8], &str); 17] = [
    (b"%PDF-", "application/pdf"),
    (b"%!PS-Adobe-", "application/postscript"),
    (b"\xFE\xFF", "text/plain; charset=utf-16be"),
    (b"\xFF\xFE", "text/plain; charset=utf-16le"),
    (b"\xEF\xBB\xBF", "text/plain; charset=utf-8"),
    (b"\x00\x00\x01\x00", "image/x-icon"),
    (b"BM", "image/bmp"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"\x89PNG\x0D\x0A\x1A\x0A", "image/png"),
    (b"\xFF\xD8\xFF", "image/jpeg"),
    (b"OggS\x00", "application/ogg"),
    (b"\x00asm", "application/wasm"),
    (b"Rar!\x1A\x07\x00", "application/x-rar-compressed"),
    (b"Rar!\x1A\x07\x01\x00", "application/x-rar-compressed"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1F\x8B\x08", "application/x-gzip"),
];

/// By the first bytes, at most [`SNIFFED_BYTES`] of them.
pub fn by_content(bytes: &[u8]) -> &'static str {
    let bytes = &bytes[..bytes.len().min(SNIFFED_BYTES)];
    let trimmed = bytes.trim_ascii_start();
    let tag = TAGS.iter().any(|tag| {
        let Some((begin, rest)) = trimmed.split_at_checked(tag.len()) else { return false };
        begin.eq_ignore_ascii_case(tag.as_bytes()) && matches!(rest.first(), Some(b' ' | b'>'))
    });
    if tag {
        return "text/html; charset=utf-8";
    }
    if trimmed.starts_with(b"<?xml") {
        return "text/xml; charset=utf-8";
    }
    if let Some((_, kind)) = MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return kind;
    }
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0B | 0x0E..=0x1A | 0x1C..=0x1F);
    if bytes.iter().any(binary) { "application/octet-stream" } else { "text/plain; charset=utf-8" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_then_by_content() {
        assert_eq!(by_name("a.JSON"), Some("application/json"));
        assert_eq!((by_name("a.log"), by_name("a.tar.gz")), (None, None));
        assert_eq!(by_name("syslog"), None);
        for (bytes, expected) in [
            (&b""[..], "text/plain; charset=utf-8"),
            (b"Nov 21 00:00:00 node kernel: x\n", "text/plain; charset=utf-8"),
            (b"\x1f\x8b\x08\x00\x00", "application/x-gzip"),
            (b" \n<html><body>", "text/html; charset=utf-8"),
            (b"<a", "text/plain; charset=utf-8"),
            (b"<abbr>", "text/plain; charset=utf-8"),
            (b"<?xml version='1.0'?>", "text/xml; charset=utf-8"),
            (b"wtmp\x00\x01\x02", "application/octet-stream"),
            (b"\x1b[31mcolour\x1b[0m", "text/plain; charset=utf-8"),
        ] {
            assert_eq!(by_content(bytes), expected, "{bytes:?}");
        }
    }
}
