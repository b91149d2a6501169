//! Service-account tokens for pods: asked of the API server once, kept in memory alone, and renewed well before they
//! expire (upstream `pkg/kubelet/token/token_manager.go`).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bulkhead_apiclient::{ApiClient, Lane, random_fraction};
use bulkhead_types::PodUid;
use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;

use super::server::{Got, object_error};
use kubelet_model::objects::{ObjectError, Token, TokenWanted};

/// A token is renewed when it is this old, however long it is valid.
const AGE_MAX: SignedDuration = SignedDuration::from_hours(24);
/// Renewals are spread over so many seconds.
const JITTER_SECONDS: f64 = 10.0;
/// A hundred years.
const LIFETIME_MAX_SECONDS: i64 = 100 * 366 * 24 * 3600;
/// Expired tokens are dropped in this period.
const GC_PERIOD: Duration = Duration::from_secs(60);

/// A token as the server gave it.
#[derive(Clone)]
pub struct Issued {
    pub token: Token,
    /// What the server granted; it may differ from what was asked for.
    pub lifetime_seconds: i64,
}

impl Issued {
    /// `lifetime_seconds`: what the server granted.
    pub fn new(token: String, expires: Timestamp, lifetime_seconds: i64) -> Self {
        let renew = renewal(expires, lifetime_seconds);
        Issued { token: Token { token, expires, renew }, lifetime_seconds }
    }
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("token", &self.token).field("lifetime_seconds", &self.lifetime_seconds).finish()
    }
}

/// Where tokens come from.
pub trait TokenServer: Send + Sync + 'static {
    fn issue<'a>(&'a self, wanted: &'a TokenWanted) -> BoxFuture<'a, Got<Issued>>;
}

impl TokenServer for ApiClient {
    fn issue<'a>(&'a self, wanted: &'a TokenWanted) -> BoxFuture<'a, Got<Issued>> {
        Box::pin(async move {
            let api: Api<ServiceAccount> = Api::namespaced(self.client(Lane::Main), &wanted.namespace);
            let answer = api
                .create_token_request(&wanted.service_account, &PostParams::default(), &request(wanted))
                .await
                .map_err(|error| object_error(&error))?;
            let granted = answer.spec.and_then(|spec| spec.expiration_seconds);
            let (token, expires) = answer.status.map_or((None, None), |s| (s.token, s.expiration_timestamp));
            let (Some(token), Some(expires)) = (token.filter(|t| !t.is_empty()), expires) else {
                return Err(ObjectError::Away("the API server answered without a token".to_owned()));
            };
            let lifetime_seconds = granted.unwrap_or(wanted.expiration_seconds);
            Ok(Issued::new(token, expires.0, lifetime_seconds))
        })
    }
}

fn request(wanted: &TokenWanted) -> TokenRequest {
    let pod = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(wanted.pod_name.clone()),
        uid: Some(wanted.pod_uid.clone()),
    };
    let spec = TokenRequestSpec {
        audiences: Some(wanted.audiences.clone()).filter(|audiences| !audiences.is_empty()),
        bound_object_ref: Some(pod),
        expiration_seconds: Some(wanted.expiration_seconds),
    };
    // The server refuses another account's than this one (upstream `pkg/credentialprovider/plugin/plugin.go`).
    let metadata = ObjectMeta { uid: wanted.service_account_uid.clone(), ..ObjectMeta::default() };
    TokenRequest { metadata, spec: Some(spec), ..TokenRequest::default() }
}

/// When it is time for a new one: 24 hours after it was issued, or when a fifth of its life is left. Pure.
fn renewal(expires: Timestamp, lifetime_seconds: i64) -> Timestamp {
    // What a server grants is bounded, so that no sum overflows.
    let seconds = lifetime_seconds.clamp(0, LIFETIME_MAX_SECONDS);
    let before = |seconds: i64| expires.saturating_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN);
    let old = before(seconds).saturating_add(AGE_MAX).unwrap_or(Timestamp::MAX);
    old.min(before(seconds * 20 / 100))
}

/// Whether that time has come. `jitter` makes it earlier.
pub fn needs_renewal(issued: &Issued, now: Timestamp, jitter: SignedDuration) -> bool {
    now > issued.token.renew.saturating_sub(jitter).unwrap_or(Timestamp::MIN)
}

type Slot = Arc<tokio::sync::Mutex<Option<Issued>>>;
type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// All tokens of the pods that run here.
pub struct Tokens {
    server: Arc<dyn TokenServer>,
    clock: Clock,
    slots: Mutex<HashMap<TokenWanted, Slot>>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("count", &self.slots.lock().len()).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Must be called within a tokio runtime.
    pub fn start(server: Arc<dyn TokenServer>) -> Arc<Self> {
        let tokens = Self::with_clock(server, Arc::new(Timestamp::now));
        tokio::spawn(drop_expired(Arc::downgrade(&tokens)));
        tokens
    }

    pub(crate) fn with_clock(server: Arc<dyn TokenServer>, clock: Clock) -> Arc<Self> {
        Arc::new(Tokens { server, clock, slots: Mutex::default() })
    }

    /// A token that is valid for a good while. One that could not be renewed goes on counting until it expires.
    pub async fn get(&self, wanted: &TokenWanted) -> Got<Token> {
        let slot = self.slots.lock().entry(wanted.clone()).or_default().clone();
        // Who asks for the same token at the same time waits for one answer.
        let mut slot = slot.lock().await;
        let now = (self.clock)();
        if let Some(known) = &*slot
            && !needs_renewal(known, now, jitter())
        {
            return Ok(known.token.clone());
        }
        match (self.server.issue(wanted).await, &*slot) {
            (Ok(issued), _) => {
                let token = issued.token.clone();
                *slot = Some(issued);
                Ok(token)
            }
            (Err(error), None) => Err(with_text(error, |text| format!("failed to fetch token: {text}"))),
            (Err(error), Some(known)) if now > known.token.expires => {
                let account = format!("{:?}/{:?}", wanted.service_account, wanted.namespace);
                Err(with_text(error, |text| format!("token {account} expired and refresh failed: {text}")))
            }
            (Err(error), Some(known)) => {
                let (account, namespace) = (&wanted.service_account, &wanted.namespace);
                tracing::warn!(%error, account, namespace, pod_uid = wanted.pod_uid, "failed to renew token: trying again");
                Ok(known.token.clone())
            }
        }
    }

    /// The pod is gone.
    pub fn forget_pod(&self, uid: &PodUid) {
        self.slots.lock().retain(|wanted, _| wanted.pod_uid != uid.as_str());
    }

    fn drop_expired(&self) {
        let now = (self.clock)();
        // One that is being asked for at this moment is locked, and stays.
        self.slots.lock().retain(|_, slot| {
            slot.try_lock().map_or(true, |slot| slot.as_ref().is_some_and(|issued| now <= issued.token.expires))
        });
    }
}

fn with_text(error: ObjectError, text: impl Fn(String) -> String) -> ObjectError {
    match error {
        ObjectError::NotFound(inner) => ObjectError::NotFound(text(inner)),
        ObjectError::Refused(inner) => ObjectError::Refused(text(inner)),
        ObjectError::Away(inner) => ObjectError::Away(text(inner)),
        other @ ObjectError::NoApiServer { .. } => other,
    }
}

/// Whole seconds below [`JITTER_SECONDS`].
fn jitter() -> SignedDuration {
    SignedDuration::from_secs((random_fraction() * JITTER_SECONDS) as i64)
}

async fn drop_expired(tokens: Weak<Tokens>) {
    let mut ticks = tokio::time::interval(GC_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(tokens) = tokens.upgrade() else { return };
        tokens.drop_expired();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_workers::requeue;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn issued(lifetime_seconds: i64) -> Issued {
        Issued::new("secret".to_owned(), at(lifetime_seconds), lifetime_seconds)
    }

    #[test]
    fn renewal() {
        let hour = 3600;
        let cases = [
            ("fresh", hour, 0, 0, false),
            ("at four fifths", hour, 2880, 0, false),
            ("after four fifths", hour, 2881, 0, true),
            ("jitter makes it earlier", hour, 2876, 5, true),
            ("not that much", hour, 2875, 5, false),
            ("a day old", 365 * 24 * hour, 24 * hour, 0, false),
            ("more than a day old", 365 * 24 * hour, 24 * hour + 1, 0, true),
            ("expired", 600, 700, 0, true),
        ];
        for (name, lifetime, now, jitter, expected) in cases {
            let got = needs_renewal(&issued(lifetime), at(now), SignedDuration::from_secs(jitter));
            assert_eq!(got, expected, "{name}");
        }
        for lifetime_seconds in [i64::MAX, i64::MIN] {
            let odd = Issued::new("t".to_owned(), Timestamp::MAX, lifetime_seconds);
            assert!(needs_renewal(&odd, Timestamp::MAX, SignedDuration::from_secs(1)), "no overflow");
            assert!(!needs_renewal(&odd, Timestamp::MIN, SignedDuration::MAX), "no overflow");
        }
    }

    #[derive(Default)]
    struct Fake {
        asked: Mutex<Vec<TokenWanted>>,
        now: Mutex<i64>,
        fails: Mutex<Option<ObjectError>>,
    }

    impl TokenServer for Fake {
        fn issue<'a>(&'a self, wanted: &'a TokenWanted) -> BoxFuture<'a, Got<Issued>> {
            Box::pin(async move {
                tokio::task::yield_now().await;
                let mut asked = self.asked.lock();
                asked.push(wanted.clone());
                if let Some(error) = self.fails.lock().clone() {
                    return Err(error);
                }
                let expires = at(*self.now.lock() + wanted.expiration_seconds);
                Ok(Issued::new(format!("t{}", asked.len()), expires, wanted.expiration_seconds))
            })
        }
    }

    fn wanted(pod: &str) -> TokenWanted {
        TokenWanted {
            namespace: "ns".into(),
            service_account: "default".into(),
            service_account_uid: None,
            audiences: vec![],
            expiration_seconds: 3607,
            pod_name: "p".into(),
            pod_uid: pod.into(),
        }
    }

    #[tokio::test]
    async fn asked_once_renewed_in_time_and_kept_through_an_outage() {
        let fake = Arc::new(Fake::default());
        let clock = fake.clone();
        let tokens = Tokens::with_clock(fake.clone(), Arc::new(move || at(*clock.now.lock())));
        let a = wanted("a");
        let (one, two) = tokio::join!(tokens.get(&a), tokens.get(&a));
        assert_eq!((one.unwrap().token, two.unwrap().token), ("t1".to_owned(), "t1".to_owned()));
        assert_eq!(tokens.get(&wanted("b")).await.unwrap().token, "t2", "another pod, another token");
        assert_eq!(request(&a).spec.unwrap().bound_object_ref.unwrap().uid.as_deref(), Some("a"));

        *fake.now.lock() = 3000;
        *fake.fails.lock() = Some(ObjectError::Away("down".into()));
        assert_eq!(tokens.get(&a).await.unwrap().token, "t1", "still valid");
        *fake.now.lock() = 3608;
        let expired = tokens.get(&a).await.unwrap_err();
        assert!(matches!(&expired, ObjectError::Away(text) if text.ends_with("expired and refresh failed: down")));
        *fake.fails.lock() = Some(ObjectError::NotFound("serviceaccounts \"default\" not found".into()));
        let unknown = tokens.get(&wanted("c")).await.unwrap_err();
        let text = "failed to fetch token: serviceaccounts \"default\" not found";
        assert_eq!(unknown, ObjectError::NotFound(text.into()));
        *fake.fails.lock() = None;
        assert_eq!(tokens.get(&a).await.unwrap().token, "t6");

        tokens.drop_expired();
        assert_eq!(tokens.slots.lock().len(), 1, "b's has expired, c never had one");
        tokens.forget_pod(&PodUid::parse("a").unwrap());
        assert!(tokens.slots.lock().is_empty());
    }

    /// A token is of one account: one that was made again under the name of another gets its own.
    #[tokio::test]
    async fn an_account_is_known_over_its_deletion() {
        let fake = Arc::new(Fake::default());
        let tokens = Tokens::with_clock(fake.clone(), Arc::new(|| at(0)));
        let of = |uid: &str| TokenWanted { service_account_uid: Some(uid.into()), ..wanted("a") };
        let mut got = Vec::new();
        for wanted in [wanted("a"), of("old"), of("new"), of("old")] {
            got.push(tokens.get(&wanted).await.unwrap().token);
        }
        assert_eq!(got, ["t1", "t2", "t3", "t2"]);
        assert_eq!(request(&of("new")).metadata.uid.as_deref(), Some("new"));
        assert_eq!(request(&wanted("a")).metadata, ObjectMeta::default());
    }

    /// The pod's own looks are hours apart; those for the token keep what its file shows alive, also when the server is
    /// away for as long as a fifth of a life lasts.
    #[tokio::test(start_paused = true)]
    async fn what_a_file_shows_never_expires_between_two_looks() {
        let fake = Arc::new(Fake::default());
        let start = tokio::time::Instant::now();
        let seconds = move || i64::try_from(start.elapsed().as_secs()).unwrap();
        let tokens = Tokens::with_clock(fake.clone(), Arc::new(move || at(seconds())));
        let short = TokenWanted { expiration_seconds: 600, ..wanted("a") };
        let period = Duration::from_secs(6 * 3600);
        let mut looks = 0;
        while seconds() < 24 * 3600 {
            let now = seconds();
            *fake.now.lock() = now;
            let away = (10_000..10_110).contains(&(now % 20_000));
            *fake.fails.lock() = away.then(|| ObjectError::Away("down".into()));
            let shown = tokens.get(&short).await.unwrap();
            let pause = requeue::until_renewal(shown.renew, at(now)).min(period);
            tokio::time::sleep(pause).await;
            assert!(at(seconds()) < shown.expires, "expired in the file at {now}");
            looks += 1;
        }
        assert!((170..300).contains(&looks), "{looks} looks in a day, {} tokens", fake.asked.lock().len());
    }

    #[test]
    fn nothing_prints_a_token() {
        assert!(!format!("{:?}", issued(1)).contains("secret"));
    }
}
