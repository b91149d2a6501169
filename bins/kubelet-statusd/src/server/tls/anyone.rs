//! A client's certificate is asked for, not demanded, and the handshake never fails for whose it is: who somebody is gets
//! decided for each request, with an answer that says no. That the client has the certificate's key is checked here.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{self, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, SignatureScheme};
use x509_parser::asn1_rs::Sequence;
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};

/// See the module.
#[derive(Debug)]
pub struct Anyone {
    /// Whose certificates are of use: a client with several chooses by them.
    pub hints: Vec<DistinguishedName>,
    pub algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Anyone {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let parsed = parse(certificate)?;
        let key = parsed.public_key();
        let algorithm = algorithm_of(key).ok_or(CertificateError::BadEncoding)?;
        let of_scheme = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signature.scheme);
        let (_, possible) = of_scheme.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        // The scheme of 1.2 leaves the curve open, the key does not.
        let mut of_key = possible.iter().filter(|one| one.public_key_alg_id().as_ref() == algorithm);
        let bits = &key.subject_public_key.data;
        if of_key.any(|one| one.verify_signature(bits, message, signature.signature()).is_ok()) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let parsed = parse(certificate)?;
        let key = SubjectPublicKeyInfoDer::from(parsed.public_key().raw);
        crypto::verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// For its key alone: what else is odd about a certificate (one of X.509 version 1) is no matter of the handshake.
fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    Ok(parsed)
}

/// The key's AlgorithmIdentifier without its outer tag, as rustls writes it.
fn algorithm_of(key: &SubjectPublicKeyInfo<'_>) -> Option<Vec<u8>> {
    let (_, whole) = Sequence::from_der(key.raw).ok()?;
    let (_, algorithm) = Sequence::from_der(&whole.content).ok()?;
    Some(algorithm.content.into_owned())
}
