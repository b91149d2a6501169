//! The daemons' environment as a file for `EnvironmentFile=` (systemd.exec(5)): what the launcher would pass on from its
//! own, and nothing else. Proxies may hold passwords, so root alone reads it; systemd is root.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::launch::child::ENVIRONMENT;

/// One line a variable, its value in double quotes. Pure, but for what `value` looks up.
pub fn render(value: impl Fn(&str) -> Option<OsString>) -> Vec<u8> {
    let mut text = Vec::new();
    for name in ENVIRONMENT {
        let Some(value) = value(name) else { continue };
        text.extend(name.bytes());
        text.extend(b"=\"");
        for byte in value.as_bytes() {
            // What stays special between double quotes; all others, a line's end too, stand for themselves.
            if matches!(byte, b'"' | b'\\' | b'`' | b'$') {
                text.push(b'\\');
            }
            text.push(*byte);
        }
        text.extend(b"\"\n");
    }
    text
}

/// Replaces the file, mode 0600.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    // One that a crash left behind may have another mode.
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(text)?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_and_others_variables_stay_out() {
        let text = render(|name| match name {
            "PATH" => Some("/usr/bin".into()),
            "HTTPS_PROXY" => Some("http://u:a\"b\\c$d`e f'@proxy:1".into()),
            "TZ" => Some(OsString::new()),
            _ => None,
        });
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "PATH=\"/usr/bin\"\nTZ=\"\"\nHTTPS_PROXY=\"http://u:a\\\"b\\\\c\\$d\\`e f'@proxy:1\"\n");
    }

    #[test]
    fn root_alone_reads_the_file() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("environment");
        std::fs::write(folder.path().join("environment.new"), "left behind").unwrap();
        write(&path, b"A=\"b\"\n").unwrap();
        write(&path, b"A=\"c\"\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"A=\"c\"\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
