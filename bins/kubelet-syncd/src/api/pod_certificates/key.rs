//! A pod's key pair and the request that shows that we have it.
//!
//! ring signs with all of them but those on P-521, and makes all but those and RSA's: these are made by crates for that kind alone.

use getrandom::SysRng;
use p521::ecdsa::DerSignature;
use p521::ecdsa::signature::Signer as _;
use p521::elliptic_curve::Generate as _;
use p521::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    PKCS_RSA_SHA256,
};
use rustls::pki_types::PrivatePkcs8KeyDer;

use super::state::Secret;
use kubelet_model::pem;

/// PKCS #8 of version 1 around an Ed25519 seed (RFC 8410): what the library writes is version 2, which many readers refuse.
const ED25519: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// AlgorithmIdentifier of ecdsa-with-SHA512 (RFC 5758), DER.
const ECDSA_SHA512: [u8; 12] = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04];
/// Of a PKCS #10 request (RFC 2986), DER: its version, an empty subject, and after the key no attributes.
const VERSION_AND_SUBJECT: [u8; 5] = [0x02, 0x01, 0x00, 0x30, 0x00];
const ATTRIBUTES: [u8; 2] = [0xa0, 0x00];
const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("while generating keypair: unknown key type {0:?}")]
    Unknown(String),
    #[error("while generating keypair: {0}")]
    Made(#[from] rcgen::Error),
    #[error("while generating keypair: while generating RSA {0} key: {1}")]
    Rsa(usize, rsa::Error),
    #[error("while generating keypair: while generating ECDSA P521 key: {0}")]
    Random(#[from] getrandom::Error),
    #[error("while generating keypair: while generating stub PKCS#10 request: {0}")]
    Signed(#[from] p521::ecdsa::Error),
    #[error("while PEM-encoding private key: while marshaling key to PKCS#8: {0}")]
    Encoded(#[from] p521::pkcs8::Error),
}

/// Whether it takes seconds to make one, rather than milliseconds.
pub fn takes_long(key_type: &str) -> bool {
    key_type.starts_with("RSA")
}

/// A key in PEM (PKCS #8), and a PKCS #10 request for it that says nothing else, DER. With upstream's algorithms, as Go chooses them:
/// RSA is signed with PKCS #1 v1.5 and SHA-256, a curve with the hash of its size.
///
/// # Errors
/// [`KeyError`].
pub fn generate(key_type: &str) -> Result<(Secret, Vec<u8>), KeyError> {
    let (der, request) = match key_type {
        "RSA3072" => rsa(3072)?,
        "RSA4096" => rsa(4096)?,
        "ECDSAP256" => with_ring(&KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)?,
        "ECDSAP384" => with_ring(&KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384)?)?,
        "ECDSAP521" => p521()?,
        "ED25519" => {
            let (der, request) = with_ring(&KeyPair::generate_for(&PKCS_ED25519)?)?;
            let seed = der.get(ED25519.len()..ED25519.len() + 32);
            (seed.map_or(der.clone(), |seed| [ED25519.as_slice(), seed].concat()), request)
        }
        other => return Err(KeyError::Unknown(other.to_owned())),
    };
    Ok((Secret(pem::block("PRIVATE KEY", &der)), request))
}

/// The key and a request, DER.
fn with_ring(pair: &KeyPair) -> Result<(Vec<u8>, Vec<u8>), KeyError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(pair)?.der().to_vec();
    Ok((pair.serialized_der().to_vec(), request))
}

/// As [`with_ring`], which also looks at what was made before it signs with it.
fn rsa(bits: usize) -> Result<(Vec<u8>, Vec<u8>), KeyError> {
    let key = rsa::PrivateKey::new(&mut SysRng, bits).map_err(|error| KeyError::Rsa(bits, error))?;
    let der = key.to_pkcs8_der()?;
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der.as_bytes()), &PKCS_RSA_SHA256)?;
    with_ring(&pair)
}

/// As [`with_ring`], for the curve that ring does not have.
fn p521() -> Result<(Vec<u8>, Vec<u8>), KeyError> {
    let key = p521::SecretKey::try_generate_from_rng(&mut SysRng)?;
    let public = key.public_key().to_public_key_der().map_err(p521::pkcs8::Error::from)?;
    let said = der(SEQUENCE, &[&VERSION_AND_SUBJECT, public.as_bytes(), &ATTRIBUTES]);
    let signature: DerSignature = p521::ecdsa::SigningKey::from(&key).try_sign(&said)?;
    // No bit of the last byte is unused.
    let signature = der(BIT_STRING, &[&[0], signature.as_bytes()]);
    Ok((key.to_pkcs8_der()?.as_bytes().to_vec(), der(SEQUENCE, &[&said, &ECDSA_SHA512, &signature])))
}

/// An element of DER (X.690) of these parts.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let mut element = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => element.push(short),
        _ => {
            // At most eight bytes.
            element.push(0x80 | (length.len() - zeros) as u8);
            element.extend(&length[zeros..]);
        }
    }
    element.extend(content);
    element
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// What openssl says of a file in a folder.
    fn openssl(folder: &Path, arguments: &[&str]) -> String {
        let output = Command::new("openssl").args(arguments).current_dir(folder).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "openssl {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    #[test]
    fn openssl_takes_each_key_and_its_request() {
        let folder = tempfile::tempdir().unwrap();
        for (key_type, kind, signature) in [
            ("RSA3072", "(3072 bit", "sha256WithRSAEncryption"),
            ("RSA4096", "(4096 bit", "sha256WithRSAEncryption"),
            ("ECDSAP256", "NIST CURVE: P-256", "ecdsa-with-SHA256"),
            ("ECDSAP384", "NIST CURVE: P-384", "ecdsa-with-SHA384"),
            ("ECDSAP521", "NIST CURVE: P-521", "ecdsa-with-SHA512"),
            ("ED25519", "ED25519 Private-Key", "ED25519"),
        ] {
            let (secret, request) = generate(key_type).unwrap();
            assert!(secret.0.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key_type}");
            // The sequence begins with its version, 0.
            let der = pem::blocks(&secret.0).remove(0);
            let start = 2 + if der[1] & 0x80 == 0 { 0 } else { usize::from(der[1] & 0x7f) };
            assert_eq!(der[start..start + 3], [2, 1, 0], "{key_type}");
            std::fs::write(folder.path().join("key"), &secret.0).unwrap();
            std::fs::write(folder.path().join("request"), &request).unwrap();
            let key = openssl(folder.path(), &["pkey", "-in", "key", "-noout", "-text", "-check"]);
            assert!(key.contains(kind) && key.contains("Key is valid"), "{key_type}: {key}");
            let words = ["req", "-inform", "DER", "-in", "request", "-noout", "-verify", "-text"];
            let text = openssl(folder.path(), &words);
            assert!(text.contains(&format!("Signature Algorithm: {signature}\n")), "{key_type}: {text}");
            assert!(text.lines().any(|line| line.trim() == "Subject:"), "{key_type}: {text}");
            assert!(text.contains("(none)"), "{key_type}: {text}");
            let asked = openssl(folder.path(), &["req", "-inform", "DER", "-in", "request", "-noout", "-pubkey"]);
            assert_eq!(asked, openssl(folder.path(), &["pkey", "-in", "key", "-pubout"]), "{key_type}");
        }
    }

    #[test]
    fn each_key_is_another_one() {
        for key_type in ["ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072"] {
            assert_ne!(generate(key_type).unwrap().0, generate(key_type).unwrap().0, "{key_type}");
            assert_eq!(takes_long(key_type), key_type == "RSA3072");
        }
        let error = generate("x").unwrap_err().to_string();
        assert_eq!(error, "while generating keypair: unknown key type \"x\"");
    }

    #[test]
    fn lengths_of_elements() {
        for (length, head) in [
            (0, vec![0x30, 0]),
            (127, vec![0x30, 127]),
            (128, vec![0x30, 0x81, 128]),
            (255, vec![0x30, 0x81, 255]),
            (256, vec![0x30, 0x82, 1, 0]),
        ] {
            let content = vec![7; length];
            assert_eq!(der(SEQUENCE, &[&content]), [head, content].concat(), "{length}");
        }
    }
}
