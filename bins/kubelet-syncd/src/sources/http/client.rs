//! One GET with a time limit, a size limit and redirects, over http or https (rustls with the system's CA bundle).

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bulkhead_apiclient::system_roots;
use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, REFERER, USER_AGENT};
use http::{StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::percent_decode_str;

use kubelet_model::decode::MANIFEST_MAX_BYTES;

/// For the whole exchange, redirects and body included.
const TIMEOUT: Duration = Duration::from_secs(10);
const REDIRECTS_MAX: usize = 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("failed to parse the URL {url:?}")]
    Url {
        url: String,
        #[source]
        source: http::Error,
    },
    #[error("URL {0:?} has no http or https scheme and host")]
    NotHttp(String),
    #[error("Get {url:?}")]
    Request {
        url: String,
        #[source]
        source: hyper_util::client::legacy::Error,
    },
    #[error("Get {url:?}: reading the body")]
    Body {
        url: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("Get {url:?}: context deadline exceeded (no complete answer within {} s)", TIMEOUT.as_secs())]
    Timeout { url: String },
    #[error("Get {url:?}: stopped after {REDIRECTS_MAX} redirects")]
    TooManyRedirects { url: String },
    #[error("Get {url:?}: {status} response missing Location header")]
    NoLocation { url: String, status: StatusCode },
    #[error("header {0:?} cannot be sent")]
    Header(String),
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
}

/// A complete answer.
#[derive(Debug)]
pub struct Fetched {
    pub status: StatusCode,
    pub body: Vec<u8>,
}

/// Sends the configured headers with each request.
#[derive(Debug)]
pub struct Client {
    headers: Result<HeaderMap, String>,
}

type HyperClient = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

impl Client {
    pub fn new(headers: &[(String, String)]) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let (Ok(header), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) else {
                return Client { headers: Err(name.clone()) };
            };
            // Go's client takes the host from the URL, whatever the headers say.
            if header != HOST {
                map.append(header, value);
            }
        }
        // A header that is set to nothing suppresses Go's default too.
        if !map.contains_key(USER_AGENT) {
            map.insert(USER_AGENT, HeaderValue::from_static("Go-http-client/1.1"));
        }
        Client { headers: Ok(map) }
    }

    /// One poll. The connection is not kept: the next poll is many seconds away.
    pub async fn get(&self, url: &str) -> Result<Fetched, FetchError> {
        let shown = without_password(url);
        tokio::time::timeout(TIMEOUT, self.exchange(url)).await.unwrap_or(Err(FetchError::Timeout { url: shown }))
    }

    async fn exchange(&self, url: &str) -> Result<Fetched, FetchError> {
        let client = hyper_client()?;
        let mut headers = self.headers.clone().map_err(FetchError::Header)?;
        let mut uri = parse(url)?;
        let first_host = uri.host().unwrap_or("").to_owned();
        for _ in 0..REDIRECTS_MAX {
            let shown = without_password(&uri.to_string());
            let request = request(&uri, &headers)?;
            let answer =
                client.request(request).await.map_err(|source| FetchError::Request { url: shown.clone(), source })?;
            let status = answer.status();
            let redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = answer.headers().get(LOCATION).and_then(|l| l.to_str().ok()).unwrap_or("").to_owned();
            if !redirect || (location.is_empty() && matches!(status.as_u16(), 307 | 308)) {
                let body = Limited::new(answer.into_body(), MANIFEST_MAX_BYTES)
                    .collect()
                    .await
                    .map_err(|source| FetchError::Body { url: shown, source })?;
                return Ok(Fetched { status, body: body.to_bytes().to_vec() });
            }
            if location.is_empty() {
                return Err(FetchError::NoLocation { url: shown, status });
            }
            let next = parse(&resolve(&uri, &location))?;
            if !same_site(&first_host, next.host().unwrap_or("")) {
                // Secrets for one host are not given to another.
                headers.remove(AUTHORIZATION);
                headers.remove(COOKIE);
                headers.remove("cookie2");
                headers.remove("www-authenticate");
            }
            headers.remove(REFERER);
            let downgrade = uri.scheme_str() == Some("https") && next.scheme_str() == Some("http");
            if !downgrade && let Ok(referer) = HeaderValue::from_str(&without_user(&uri.to_string())) {
                headers.insert(REFERER, referer);
            }
            uri = next;
        }
        Err(FetchError::TooManyRedirects { url: without_password(url) })
    }
}

fn hyper_client() -> Result<HyperClient, FetchError> {
    // Without a bundle plain http still works.
    let roots = system_roots().unwrap_or_else(rustls::RootCertStore::empty);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(FetchError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector =
        hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    Ok(hyper_util::client::legacy::Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector))
}

fn parse(url: &str) -> Result<Uri, FetchError> {
    // A fragment is never sent.
    let bare = url.split('#').next().unwrap_or("");
    let uri: Uri = bare
        .parse()
        .map_err(|e: http::uri::InvalidUri| FetchError::Url { url: without_password(url), source: e.into() })?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(FetchError::NotHttp(without_password(url)));
    }
    Ok(uri)
}

fn request(uri: &Uri, headers: &HeaderMap) -> Result<http::Request<Empty<Bytes>>, FetchError> {
    let url_error = |source| FetchError::Url { url: without_password(&uri.to_string()), source };
    let authority = uri.authority().map_or("", |a| a.as_str());
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let bare = Uri::builder()
        .scheme(uri.scheme_str().unwrap_or("http"))
        .authority(host)
        .path_and_query(uri.path_and_query().map_or("/", |p| p.as_str()))
        .build()
        .map_err(url_error)?;
    let mut request = http::Request::get(bare).body(Empty::new()).map_err(url_error)?;
    *request.headers_mut() = headers.clone();
    if let Some(user) = user
        && !headers.contains_key(AUTHORIZATION)
    {
        let user = if user.contains(':') { user.to_owned() } else { format!("{user}:") };
        let credentials: Vec<u8> = percent_decode_str(&user).collect();
        let value = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(credentials));
        let mut value = HeaderValue::from_str(&value).map_err(|e| url_error(e.into()))?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    Ok(request)
}

/// The host itself, or one below it.
fn same_site(first: &str, next: &str) -> bool {
    next.eq_ignore_ascii_case(first)
        || next.to_ascii_lowercase().strip_suffix(&first.to_ascii_lowercase()).is_some_and(|rest| rest.ends_with('.'))
}

/// A Location relative to the URL that gave it (RFC 3986, without dot segments in the middle of a path).
fn resolve(base: &Uri, location: &str) -> String {
    let scheme = base.scheme_str().unwrap_or("http");
    let authority = base.authority().map_or("", |a| a.as_str());
    if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", base.path())
    } else {
        let mut folder: Vec<&str> = base.path().split('/').collect();
        folder.pop();
        let mut rest = location;
        loop {
            if let Some(after) = rest.strip_prefix("./") {
                rest = after;
            } else if let Some(after) = rest.strip_prefix("../") {
                rest = after;
                if folder.len() > 1 {
                    folder.pop();
                }
            } else {
                break;
            }
        }
        format!("{scheme}://{authority}{}/{rest}", folder.join("/"))
    }
}

/// The URL with its password replaced, for messages.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:xxxxx"));
            format!("{scheme}://{user}@{host}{}", &rest[end..])
        }
        None => url.to_owned(),
    }
}

fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end].rsplit_once('@').map_or(&rest[..end], |(_, host)| host);
    format!("{scheme}://{host}{}", &rest[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        let base: Uri = "https://a.example:8443/x/y?z".parse().unwrap();
        for (location, expected) in [
            ("http://b/", "http://b/"),
            ("//c/d", "https://c/d"),
            ("/p?q", "https://a.example:8443/p?q"),
            ("w", "https://a.example:8443/x/w"),
            ("./w", "https://a.example:8443/x/w"),
            ("../w", "https://a.example:8443/w"),
            ("?n", "https://a.example:8443/x/y?n"),
        ] {
            assert_eq!(resolve(&base, location), expected, "{location}");
        }
        assert_eq!(without_password("http://u:p@h:1/x@y"), "http://u:xxxxx@h:1/x@y");
        assert_eq!(without_user("http://u:p@h:1/x"), "http://h:1/x");
        assert!(same_site("a.b", "A.b") && same_site("b", "a.b") && !same_site("a.b", "b") && !same_site("b", "ab"));
        let decoded: Vec<u8> = percent_decode_str("a%3Ab%").collect();
        assert_eq!(decoded, b"a:b%");
    }

    #[test]
    fn debug_hides_secrets() {
        let config = crate::sources::http::HttpConfig {
            url: "http://u:geheim@h/".to_owned(),
            headers: vec![("Authorization".to_owned(), "geheim".to_owned())],
            check_every: Duration::from_secs(1),
        };
        assert!(!format!("{config:?}").contains("geheim"));
    }
}
