//! What daemons say to their supervisor (sd_notify(3)): READY, WATCHDOG, STATUS, and what it is to keep for them.

/// What one datagram says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Notification {
    pub ready: bool,
    pub watchdog: bool,
    pub stopping: bool,
    pub status: Option<String>,
    /// The descriptor that came along is to be kept as `fd_name`.
    pub fd_store: bool,
    /// What is kept as `fd_name` is to be closed.
    pub fd_store_remove: bool,
    pub fd_name: Option<String>,
}

/// Longest datagram that is read; a status line is short.
pub const MAX_BYTES: usize = 4096;

/// Unknown lines are ignored, as the protocol wants it. Pure.
pub fn parse(datagram: &[u8]) -> Notification {
    let mut notification = Notification::default();
    for line in String::from_utf8_lossy(datagram).lines() {
        match line.split_once('=') {
            Some(("READY", "1")) => notification.ready = true,
            Some(("WATCHDOG", "1")) => notification.watchdog = true,
            Some(("STOPPING", "1")) => notification.stopping = true,
            Some(("STATUS", text)) => notification.status = Some(text.to_owned()),
            Some(("FDSTORE", "1")) => notification.fd_store = true,
            Some(("FDSTOREREMOVE", "1")) => notification.fd_store_remove = true,
            Some(("FDNAME", name)) => notification.fd_name = Some(name.to_owned()),
            _ => {}
        }
    }
    notification
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        assert_eq!(
            parse(b"READY=1\nSTATUS=waits for volnetd\nX=y\n"),
            Notification { ready: true, status: Some("waits for volnetd".into()), ..Default::default() }
        );
        assert!(parse(b"WATCHDOG=1").watchdog);
        let kept = parse(b"FDSTORE=1\nFDNAME=tcp-main");
        assert!(kept.fd_store && !kept.fd_store_remove && kept.fd_name.as_deref() == Some("tcp-main"));
        assert!(parse(b"FDSTOREREMOVE=1\nFDNAME=x").fd_store_remove);
        assert_eq!(parse(b"\xff\xfe\nREADY=0"), Notification::default());
    }
}
