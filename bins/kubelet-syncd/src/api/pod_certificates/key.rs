//! A pod's key pair and the request that shows that we have it.

use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
};

use super::state::Secret;
use kubelet_model::pem;

/// PKCS #8 of version 1 around an Ed25519 seed (RFC 8410): what the library writes is version 2, which many readers refuse.
const ED25519: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("while generating keypair: unknown key type {0:?}")]
    Unknown(String),
    #[error(
        "while generating keypair: this node makes no keys of the type {0:?}, but ECDSAP256, ECDSAP384 and ED25519"
    )]
    NotHere(String),
    #[error("while generating keypair: {0}")]
    Made(#[from] rcgen::Error),
}

/// A key in PEM, and a PKCS #10 request for it that says nothing else, DER.
///
/// # Errors
/// [`KeyError`].
pub fn generate(key_type: &str) -> Result<(Secret, Vec<u8>), KeyError> {
    let algorithm = match key_type {
        "ECDSAP256" => &PKCS_ECDSA_P256_SHA256,
        "ECDSAP384" => &PKCS_ECDSA_P384_SHA384,
        "ED25519" => &PKCS_ED25519,
        "RSA3072" | "RSA4096" | "ECDSAP521" => return Err(KeyError::NotHere(key_type.to_owned())),
        other => return Err(KeyError::Unknown(other.to_owned())),
    };
    let pair = KeyPair::generate_for(algorithm)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&pair)?.der().to_vec();
    let der = pair.serialized_der();
    let seed = der.get(ED25519.len()..ED25519.len() + 32).filter(|_| key_type == "ED25519");
    let der = seed.map_or_else(|| der.to_vec(), |seed| [ED25519.as_slice(), seed].concat());
    Ok((Secret(pem::block("PRIVATE KEY", &der)), request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_keys_are_made() {
        for key_type in ["ECDSAP256", "ECDSAP384", "ED25519"] {
            let (secret, request) = generate(key_type).unwrap();
            let der = pem::blocks(&secret.0).remove(0);
            // The sequence begins with its version, 0.
            let start = usize::from(der[1] & 0x80 != 0) + 2;
            assert_eq!(der[start..start + 3], [2, 1, 0], "{key_type}");
            assert!(KeyPair::try_from(der.as_slice()).is_ok() || key_type == "ED25519");
            assert!(request.len() > 90);
            assert_ne!(generate(key_type).unwrap().0, secret);
        }
        let error = |key_type: &str| generate(key_type).unwrap_err().to_string();
        assert!(error("RSA3072").contains("ECDSAP256"), "{}", error("RSA3072"));
        assert_eq!(error("x"), "while generating keypair: unknown key type \"x\"");
    }
}
