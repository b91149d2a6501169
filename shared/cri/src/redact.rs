//! `Debug` for the messages that carry secrets: it says that there is something, never what.

use std::fmt;

use crate::v1;

/// Shows whether a secret is there.
fn mark(secret: &str) -> &'static str {
    if secret.is_empty() { "" } else { "<redacted>" }
}

impl fmt::Debug for v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &mark(&self.username))
            .field("password", &mark(&self.password))
            .field("auth", &mark(&self.auth))
            .field("server_address", &self.server_address)
            .field("identity_token", &mark(&self.identity_token))
            .field("registry_token", &mark(&self.registry_token))
            .finish()
    }
}

impl fmt::Debug for v1::KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue").field("key", &self.key).field("value_len", &self.value.len()).finish()
    }
}

macro_rules! url {
    ($($name:ident),*) => {$(
        impl fmt::Debug for v1::$name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("url", &mark(&self.url)).finish()
            }
        }
    )*};
}
// The one-time URL holds the token that opens the stream.
url!(ExecResponse, AttachResponse, PortForwardResponse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_printed_from_however_deep() {
        let auth = v1::AuthConfig {
            username: "user-SECRET".into(),
            password: "pass-SECRET".into(),
            auth: "auth-SECRET".into(),
            server_address: "registry.example".into(),
            identity_token: "id-SECRET".into(),
            registry_token: "reg-SECRET".into(),
        };
        let pull = v1::PullImageRequest { auth: Some(auth), ..Default::default() };
        let config = v1::ContainerConfig {
            envs: vec![v1::KeyValue { key: "TOKEN".into(), value: b"env-SECRET".to_vec() }],
            ..Default::default()
        };
        let create = v1::CreateContainerRequest { config: Some(config), ..Default::default() };
        let exec = v1::ExecResponse { url: "http://127.0.0.1:1/exec/SECRET".into() };
        let text = format!("{pull:?} {pull:#?} {create:?} {exec:?}");
        assert!(!text.contains("SECRET"), "{text}");
        assert!(!text.contains(&format!("{:?}", b"env-SECRET".to_vec())), "{text}");
        assert!(text.contains("registry.example") && text.contains("TOKEN"), "{text}");
    }
}
