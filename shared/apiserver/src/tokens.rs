//! Tokens of service accounts: issued on request, bound to an object, recognised when shown
//! (`pkg/registry/core/serviceaccount/storage/token.go`, `pkg/serviceaccount`).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use super::clock::{later, stamp};
use super::identity::User;
use super::resources::named;
use super::status::{ApiError, FieldError};
use super::storage::Store;

/// The issuer in the tokens, and the audience of those that name none.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// By this lifetime the server knows tokens of the default volume, which it lets live longer.
const EXTENDED: i64 = 3607;
const GROUP: &str = "authentication.k8s.io";

/// Issues and recognises tokens.
pub struct Tokens {
    key: KeyPair,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    /// With a new key.
    ///
    /// # Errors
    /// No randomness.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { key: KeyPair::generate()? })
    }

    /// Answers a TokenRequest for the service account `name`.
    ///
    /// # Errors
    /// 400, 404, 409, 422 as the real server.
    pub fn issue(
        &self,
        store: &Store,
        namespace: &str,
        name: &str,
        mut request: Value,
        now: Timestamp,
    ) -> Result<Value, ApiError> {
        let account = store
            .get(named("serviceaccounts"), namespace, name)
            .ok_or_else(|| ApiError::not_found(named("serviceaccounts"), name))?;
        let audiences = request["spec"]["audiences"].as_array().filter(|list| !list.is_empty()).cloned();
        let audiences = audiences.unwrap_or_else(|| vec![json!(ISSUER)]);
        request["spec"]["audiences"] = json!(audiences);
        let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
        request["spec"]["expirationSeconds"] = json!(seconds);
        let field = "spec.expirationSeconds";
        let complaint = if seconds < 600 {
            Some(FieldError::invalid(field, &json!(seconds), "may not specify a duration less than 10 minutes"))
        } else if seconds > 1 << 32 {
            Some(FieldError::invalid(field, &json!(seconds), "may not specify a duration larger than 2^32 seconds"))
        } else {
            None
        };
        if let Some(complaint) = complaint {
            return Err(ApiError::invalid(GROUP, "TokenRequest", "", &[complaint]));
        }
        let mut claims = json!({"namespace": namespace, "serviceaccount": reference(&account.value)});
        let mut lifetime = seconds;
        let bound = request["spec"]["boundObjectRef"].clone();
        if bound.is_object() {
            let object = bound_object(store, namespace, name, &bound)?;
            let kind = bound["kind"].as_str().unwrap_or_default().to_lowercase();
            claims[&kind] = reference(&object);
            if kind == "pod" {
                let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
                if !node.is_empty() {
                    let known = store.get(named("nodes"), "", node);
                    claims["node"] = known.map_or(json!({"name": node}), |node| reference(&node.value));
                }
                if seconds == EXTENDED && audiences == [json!(ISSUER)] {
                    claims["warnafter"] = json!(now.as_second() + seconds);
                    lifetime = 365 * 24 * 3600;
                }
            }
        }
        let payload = json!({
            "aud": audiences,
            "exp": now.as_second() + lifetime,
            "iat": now.as_second(),
            "iss": ISSUER,
            "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": claims,
            "nbf": now.as_second(),
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        });
        for (field, value) in
            [("name", json!(name)), ("namespace", json!(namespace)), ("uid", account.value["metadata"]["uid"].clone())]
        {
            request["metadata"][field] = value;
        }
        request["metadata"]["creationTimestamp"] = json!(stamp(now));
        request["status"] = json!({
            "token": self.sign(&payload)?,
            "expirationTimestamp": stamp(later(now, seconds)),
        });
        Ok(request)
    }

    fn sign(&self, payload: &Value) -> Result<String, ApiError> {
        let head = json!({"alg": "ES256", "kid": "bulkhead-testkit"});
        let text =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(head.to_string()), URL_SAFE_NO_PAD.encode(payload.to_string()));
        let der = self.key.sign(text.as_bytes()).map_err(|error| ApiError::internal(&error.to_string()))?;
        let signature = plain_signature(&der).ok_or_else(|| ApiError::internal("failed to generate token"))?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Whose token this is, for one of the audiences (none: the server's own).
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn recognise(
        &self,
        store: &Store,
        token: &str,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<(User, Vec<String>), String> {
        let (text, signature) = token.rsplit_once('.').ok_or("invalid bearer token")?;
        let (head, payload) = text.split_once('.').ok_or("invalid bearer token")?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| "invalid bearer token".to_owned());
        decode(head)?;
        self.check(text, &decode(signature)?)?;
        let payload: Value = serde_json::from_slice(&decode(payload)?).map_err(|_| "invalid bearer token")?;
        if payload["exp"].as_i64().unwrap_or(0) <= now.as_second() {
            return Err("service account token has expired".to_owned());
        }
        let own: Vec<String> =
            payload["aud"].as_array().into_iter().flatten().filter_map(|one| one.as_str().map(str::to_owned)).collect();
        let issuer = [ISSUER.to_owned()];
        let wanted = if audiences.is_empty() { &issuer[..] } else { audiences };
        let accepted: Vec<String> = wanted.iter().filter(|one| own.contains(one)).cloned().collect();
        if accepted.is_empty() {
            return Err(format!(
                "invalid bearer token, token audiences {own:?} is invalid for the target audiences {wanted:?}"
            ));
        }
        let claims = &payload["kubernetes.io"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, account) = (text(&claims["namespace"]), text(&claims["serviceaccount"]["name"]));
        still_there(store, "serviceaccounts", &namespace, &claims["serviceaccount"])?;
        for (kind, plural) in [("pod", "pods"), ("secret", "secrets")] {
            if claims[kind].is_object() {
                still_there(store, plural, &namespace, &claims[kind])?;
            }
        }
        let mut user = User::service_account(&namespace, &account);
        user.uid = text(&claims["serviceaccount"]["uid"]);
        for (kind, keys) in [("pod", ["pod-name", "pod-uid"]), ("node", ["node-name", "node-uid"])] {
            for (key, field) in keys.into_iter().zip(["name", "uid"]) {
                if claims[kind][field].is_string() {
                    user.extra.push((format!("{GROUP}/{key}"), text(&claims[kind][field])));
                }
            }
        }
        Ok((user, accepted))
    }

    fn check(&self, text: &str, signature: &[u8]) -> Result<(), String> {
        use rustls::pki_types::AlgorithmIdentifier;
        let algorithm = rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .all
            .iter()
            .find(|one| one.signature_alg_id() == ECDSA_SHA256 && one.public_key_alg_id() == P256)
            .ok_or("no algorithm")?;
        const ECDSA_SHA256: AlgorithmIdentifier = rustls::pki_types::alg_id::ECDSA_SHA256;
        const P256: AlgorithmIdentifier = rustls::pki_types::alg_id::ECDSA_P256;
        let der = der_signature(signature).ok_or("invalid bearer token")?;
        let key = rcgen::PublicKeyData::der_bytes(&self.key);
        algorithm.verify_signature(key, text.as_bytes(), &der).map_err(|_| "invalid bearer token".to_owned())
    }
}

fn reference(object: &Value) -> Value {
    json!({"name": object["metadata"]["name"], "uid": object["metadata"]["uid"]})
}

fn still_there(store: &Store, plural: &str, namespace: &str, reference: &Value) -> Result<(), String> {
    let name = reference["name"].as_str().unwrap_or_default();
    let found = store.get(named(plural), namespace, name);
    if found.is_some_and(|found| found.value["metadata"]["uid"] == reference["uid"]) {
        return Ok(());
    }
    Err(format!("{} {namespace}/{name} has been deleted", named(plural).singular))
}

fn bound_object(store: &Store, namespace: &str, account: &str, bound: &Value) -> Result<Value, ApiError> {
    let text = |field: &str| bound[field].as_str().unwrap_or_default();
    let (resource, place) = match (text("apiVersion"), text("kind")) {
        ("v1", "Pod") => (named("pods"), namespace),
        ("v1", "Secret") => (named("secrets"), namespace),
        ("v1", "Node") => (named("nodes"), ""),
        (version, kind) => {
            return Err(ApiError::bad_request(format!("cannot bind token to object of type {version}, Kind={kind}")));
        }
    };
    let object = store.get(resource, place, text("name")).ok_or_else(|| ApiError::not_found(resource, text("name")))?;
    if resource.kind == "Pod" && object.value["spec"]["serviceAccountName"] != account {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    if !text("uid").is_empty() && object.value["metadata"]["uid"] != text("uid") {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            text("uid")
        );
        return Err(ApiError::conflict("", resource.kind, text("name"), &why));
    }
    Ok(object.value.clone())
}

/// Two numbers of 32 bytes, as tokens carry an ECDSA signature, from its ASN.1 form.
fn plain_signature(der: &[u8]) -> Option<Vec<u8>> {
    let mut rest = der.strip_prefix(&[0x30])?.get(1..)?;
    let mut plain = Vec::with_capacity(64);
    for _ in 0..2 {
        let (length, tail) = rest.strip_prefix(&[0x02])?.split_first()?;
        let (number, tail) = tail.split_at_checked(usize::from(*length))?;
        let number = number.strip_prefix(&[0]).unwrap_or(number);
        plain.extend(std::iter::repeat_n(0, 32usize.checked_sub(number.len())?));
        plain.extend(number);
        rest = tail;
    }
    Some(plain)
}

/// The other way round.
fn der_signature(plain: &[u8]) -> Option<Vec<u8>> {
    let (one, other) = plain.split_at_checked(32).filter(|(_, other)| other.len() == 32)?;
    let mut content = Vec::new();
    for number in [one, other] {
        let first = number.iter().position(|byte| *byte != 0).unwrap_or(31);
        let number = &number[first..];
        let sign = usize::from(number[0] & 0x80 != 0);
        content.extend([0x02, u8::try_from(number.len() + sign).ok()?]);
        content.extend(std::iter::repeat_n(0, sign));
        content.extend(number);
    }
    let mut der = vec![0x30, u8::try_from(content.len()).ok()?];
    der.extend(content);
    Some(der)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        let mut store = Store::new(10);
        store.put(named("serviceaccounts"), json!({"metadata": {"namespace": "n", "name": "sa", "uid": "su"}}));
        store.put(named("nodes"), json!({"metadata": {"name": "a", "uid": "nu"}}));
        store.put(
            named("pods"),
            json!({"metadata": {"namespace": "n", "name": "p", "uid": "pu"}, "spec": {"serviceAccountName": "sa", "nodeName": "a"}}),
        );
        store
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000).unwrap()
    }

    fn ask(spec: Value) -> Result<Value, ApiError> {
        Tokens::new().unwrap().issue(&store(), "n", "sa", json!({"metadata": {}, "spec": spec}), now())
    }

    #[test]
    fn a_bound_token_is_recognised_until_it_ends_or_its_pod_does() {
        let tokens = Tokens::new().unwrap();
        let mut store = store();
        let request = json!({"metadata": {}, "spec": {
            "expirationSeconds": 600, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pu"},
        }});
        let answer = tokens.issue(&store, "n", "sa", request, now()).unwrap();
        assert_eq!(answer["status"]["expirationTimestamp"], stamp(later(now(), 600)));
        let token = answer["status"]["token"].as_str().unwrap();
        let (user, audiences) = tokens.recognise(&store, token, &[], now()).unwrap();
        assert_eq!(user.name, "system:serviceaccount:n:sa");
        assert_eq!(audiences, [ISSUER]);
        assert!(user.extra.contains(&("authentication.k8s.io/node-name".into(), "a".into())));
        assert!(tokens.recognise(&store, token, &["vault".into()], now()).is_err());
        assert!(tokens.recognise(&store, token, &[], later(now(), 600)).unwrap_err().contains("expired"));
        assert!(Tokens::new().unwrap().recognise(&store, token, &[], now()).is_err(), "another key");
        let forged = token.replace('.', "x.");
        assert!(tokens.recognise(&store, &forged, &[], now()).is_err());
        store.remove(named("pods"), "n", "p");
        assert!(tokens.recognise(&store, token, &[], now()).unwrap_err().contains("deleted"));
    }

    #[test]
    fn refusals() {
        assert_eq!(
            ask(json!({"expirationSeconds": 599})).unwrap_err().message,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not \
             specify a duration less than 10 minutes"
        );
        let bound = |name: &str, uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}});
        assert_eq!(ask(bound("x", "")).unwrap_err().code, 404);
        assert_eq!(ask(bound("p", "x")).unwrap_err().code, 409);
        assert_eq!(ask(json!({})).unwrap()["spec"]["audiences"], json!([ISSUER]));
    }
}
