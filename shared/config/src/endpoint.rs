//! CRI endpoints: only Unix sockets make sense on Linux, with or without their scheme.

use std::path::PathBuf;

/// Why an endpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error(
        "invalid value {0:?}: protocol is not supported, must be a Unix socket such as \"unix:///run/containerd/containerd.sock\""
    )]
    Scheme(String),
    #[error("invalid value {0:?}: must name the socket by its absolute path")]
    Relative(String),
}

/// Path of the socket (upstream `pkg/kubelet/util` GetAddressAndDialer; a bare path is taken with a deprecation notice).
pub fn socket_path(endpoint: &str) -> Result<PathBuf, EndpointError> {
    let path = match endpoint.split_once("://") {
        Some(("unix", path)) => path,
        Some(_) => return Err(EndpointError::Scheme(endpoint.to_owned())),
        None => match endpoint.strip_prefix("unix:") {
            Some(path) => path,
            None if endpoint.starts_with('/') => endpoint,
            None => return Err(EndpointError::Scheme(endpoint.to_owned())),
        },
    };
    if path.starts_with('/') { Ok(PathBuf::from(path)) } else { Err(EndpointError::Relative(endpoint.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        for good in ["unix:///run/a.sock", "/run/a.sock", "unix:/run/a.sock"] {
            assert_eq!(socket_path(good), Ok(PathBuf::from("/run/a.sock")), "{good}");
        }
        for bad in ["", "run/a.sock", "unix://run/a.sock", "tcp://127.0.0.1:1", "npipe:////./pipe/x", "unix://"] {
            assert!(socket_path(bad).is_err(), "{bad}");
        }
    }
}
