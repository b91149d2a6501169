//! The API server's address as a kubeconfig writes it, and requests' addresses on it.

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};

/// Why an address cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    #[error("{0:?} is no URL such as https://10.0.0.1:6443")]
    Invalid(String),
    #[error("{0:?} has a scheme that is not supported; allowed: https, http")]
    Scheme(String),
    #[error("{0:?} has a query, which a server's URL must not have")]
    Query(String),
}

/// Scheme, host, port, and a path that everything lies below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    scheme: Scheme,
    authority: Authority,
    /// Without a slash at its end; mostly empty.
    prefix: String,
}

impl Server {
    /// Without a scheme it is https when `secure` says that the kubeconfig speaks of TLS, else http (client-go `rest`:
    /// DefaultServerURL).
    pub fn parse(text: &str, secure: bool) -> Result<Self, ServerError> {
        let invalid = || ServerError::Invalid(text.to_owned());
        let full = match text.split_once("://") {
            Some(_) => text.to_owned(),
            None => format!("{}://{text}", if secure { "https" } else { "http" }),
        };
        let uri: Uri = full.parse().map_err(|_| invalid())?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else { return Err(invalid()) };
        if scheme != Scheme::HTTPS && scheme != Scheme::HTTP {
            return Err(ServerError::Scheme(text.to_owned()));
        }
        // User and password in the URL are no way to log in here, and would end up in logs.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(ServerError::Invalid(authority.host().to_owned()));
        }
        let path = parts.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if path.query().is_some() {
            return Err(ServerError::Query(text.to_owned()));
        }
        Ok(Server { scheme, authority, prefix: path.path().trim_end_matches('/').to_owned() })
    }

    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Host and port, as in metrics' label `host`.
    pub fn host(&self) -> &str {
        self.authority.as_str()
    }

    /// The whole URL.
    pub fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.prefix)
    }

    /// The address on this server of a request that knows only its path.
    pub fn locate(&self, request: &Uri) -> Result<Uri, http::Error> {
        let path = request.path_and_query().map_or("/", PathAndQuery::as_str);
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path}", self.prefix))
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let server = |text, secure| Server::parse(text, secure).map(|server| server.url());
        for (text, secure, url) in [
            ("https://10.0.0.1:6443", false, "https://10.0.0.1:6443"),
            ("https://[fd00::1]:6443/", true, "https://[fd00::1]:6443"),
            ("http://127.0.0.1:8080", true, "http://127.0.0.1:8080"),
            ("api.example:6443", true, "https://api.example:6443"),
            ("localhost:8080", false, "http://localhost:8080"),
            ("https://x/k8s/clusters/c-1/", true, "https://x/k8s/clusters/c-1"),
        ] {
            assert_eq!(server(text, secure).as_deref(), Ok(url));
        }
        assert!(matches!(server("ftp://x", true), Err(ServerError::Scheme(_))));
        assert!(matches!(server("https://x?a=b", true), Err(ServerError::Query(_))));
        for bad in ["https://", "", "https://a b", "https://u:hunter2@h/", "/path"] {
            let error = server(bad, true).unwrap_err();
            assert!(matches!(error, ServerError::Invalid(_)), "{bad}");
            assert!(!error.to_string().contains("hunter2"));
        }
        let below = Server::parse("https://x/base", true).unwrap();
        let uri = below.locate(&"/api/v1/pods?watch=1".parse().unwrap()).unwrap();
        assert_eq!(uri.to_string(), "https://x/base/api/v1/pods?watch=1");
    }
}
