//! `Debug` for the messages that carry secrets: it says that there is something, never what.

use std::fmt;

/// The one-time URL holds the token that opens the stream.
impl fmt::Debug for crate::syncd::StreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamUrl").field("url", &if self.url.is_empty() { "" } else { "<redacted>" }).finish()
    }
}

/// Who somebody is may be told; by what that is known may not.
impl fmt::Debug for crate::common::IscsiChap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IscsiChap").finish_non_exhaustive()
    }
}

/// How much there is may be told.
impl fmt::Debug for crate::common::FlexSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlexSecret").field("entries", &self.data.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_token_is_not_printed() {
        let url = crate::syncd::StreamUrl { url: "http://127.0.0.1:1/exec/SECRET".into() };
        let text = format!("{url:?} {url:#?} {:?}", tonic::Response::new(url.clone()));
        assert!(!text.contains("SECRET") && text.contains("redacted"), "{text}");
        let chap = crate::common::IscsiChap { password: "SECRET".into(), ..Default::default() };
        let disk = crate::common::IscsiDisk { chap: Some(chap), ..Default::default() };
        assert!(!format!("{disk:?}").contains("SECRET"));
        let secret = crate::common::FlexSecret { data: [("SECRET".into(), b"SECRET".to_vec())].into() };
        let volume = crate::common::FlexVolume { secret: Some(secret), ..Default::default() };
        assert!(!format!("{volume:?}").contains("SECRET"));
    }
}
