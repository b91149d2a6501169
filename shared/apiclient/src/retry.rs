//! Whether an answer asks to come again, and when (client-go `rest/with_retry.go`).

use std::time::Duration;

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};

/// Tries after the first one.
pub const MAX_RETRIES: u32 = 10;
/// A server that asks for more than this is believed, but not waited for within one call.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How long to wait before the same request is sent again. None: the answer is final. Only "too many requests" and
/// server errors that carry Retry-After in seconds are repeated; the pause is what the server asked for and up to half
/// as much again (`fraction` in 0..1), so that those who were sent away together do not come back together.
pub fn again_after(status: StatusCode, headers: &HeaderMap, retries: u32, fraction: f64) -> Option<Duration> {
    if retries >= MAX_RETRIES || !(status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()) {
        return None;
    }
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    let asked = Duration::from_secs(seconds);
    if asked > LONGEST_WAIT {
        return None;
    }
    let spread = asked.max(Duration::from_millis(100)).mul_f64(fraction.clamp(0.0, 1.0) / 2.0);
    Some(asked + spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_with_retry_after_and_only_so_often() {
        let headers = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(RETRY_AFTER, value.parse().unwrap());
            }
            headers
        };
        let cases = [
            (429, Some("1"), 0, Some(1000)),
            (429, Some("0"), 9, Some(0)),
            (503, Some(" 2 "), 0, Some(2000)),
            (500, Some("1"), 0, Some(1000)),
            (429, Some("1"), 10, None),
            (429, None, 0, None),
            (503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), 0, None),
            (429, Some("-1"), 0, None),
            (429, Some("86400"), 0, None),
            (404, Some("1"), 0, None),
            (200, Some("1"), 0, None),
        ];
        for (status, value, retries, expected) in cases {
            let found = again_after(StatusCode::from_u16(status).unwrap(), &headers(value), retries, 0.0);
            assert_eq!(found, expected.map(Duration::from_millis), "{status} {value:?} {retries}");
        }
        let jittered = again_after(StatusCode::TOO_MANY_REQUESTS, &headers(Some("4")), 0, 0.5);
        assert_eq!(jittered, Some(Duration::from_secs(5)));
    }
}
