//! What daemons say to their supervisor (sd_notify(3)): READY, WATCHDOG, STATUS.

/// What one datagram says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Notification {
    pub ready: bool,
    pub watchdog: bool,
    pub stopping: bool,
    pub status: Option<String>,
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
        assert_eq!(parse(b"\xff\xfe\nREADY=0"), Notification::default());
    }
}
