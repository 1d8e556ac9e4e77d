//! Ed25519 keys as TLS has them: raw public keys (RFC 7250) in place of certificates.

use std::fmt;
use std::sync::Arc;

use pagefork_image::{PublicKey, SecretKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

/// What both sides speak, so that a connection that was meant for something else ends at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    /// Whole images.
    Images,
    /// Pages as they are needed.
    Pages,
    /// Programs that run.
    Programs,
}

impl Protocol {
    const ALL: [Self; 3] = [Self::Images, Self::Pages, Self::Programs];

    /// What it is called on the network, without its version.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Images => "pagefork-images",
            Self::Pages => "pagefork-pages",
            Self::Programs => "pagefork-programs",
        }
    }

    /// The version that this build speaks. **Raised whenever a message changes, or one is added**: else an
    /// older peer takes what it does not know for nonsense.
    pub(crate) fn version(self) -> u32 {
        match self {
            // 2: an image without its ancestors. 3: its head before all else. 4: its modules.
            Self::Images => 4,
            // The version that changes is in the first message: it is said there what is wrong.
            Self::Pages => 1,
            // 2: second places, last changes where they lie, reports of moves, what is kept for whom,
            // snapshots. 3: what programs need that move. 4: how far second places are. 5: holders of snapshots.
            // 6: what a source knows for good.
            Self::Programs => 6,
        }
    }

    /// Its name on the network in each version that there was, the newest first. Those that are not spoken
    /// any more are agreed on, too, so that both sides learn what is wrong.
    fn offers(self) -> impl Iterator<Item = Vec<u8>> {
        (1..=self.version()).rev().map(move |version| format!("{}/{version}", self.name()).into())
    }
}

/// What both sides have agreed on, which may be a version that is not spoken any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AgreedProtocol {
    pub(crate) protocol: Protocol,
    pub(crate) version: u32,
}

impl AgreedProtocol {
    /// Of the name on the network. A peer that names none gets through the handshake.
    pub(crate) fn of_name(name: Option<&[u8]>) -> Option<Self> {
        let (name, version) = std::str::from_utf8(name?).ok()?.rsplit_once('/')?;
        let protocol = Protocol::ALL.into_iter().find(|protocol| name == protocol.name())?;
        Some(Self { protocol, version: version.parse().ok()? })
    }

    /// What is to be said to a peer of another version, by a node that speaks its own alone.
    pub(crate) fn complaint(self) -> Option<String> {
        let (name, own) = (self.protocol.name(), self.protocol.version());
        (self.version != own).then(|| {
            format!(
                "it speaks version {own} of {name}, and this side version {}: update what is older",
                self.version
            )
        })
    }
}

/// What stands before an Ed25519 public key (RFC 8410).
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// What stands before an Ed25519 secret key.
const SECRET_PREFIX: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// Who is let in.
pub(crate) type AccessCheck = dyn Fn(&PublicKey) -> bool + Send + Sync;

/// How a memory node takes connections: from those alone whom `access` lets in.
pub(crate) fn server_config(
    key: &SecretKey,
    access: Arc<AccessCheck>,
) -> Result<ServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let own = certified(key, &provider)?;
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(Admitted { access, provider }))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
    config.alpn_protocols = Protocol::ALL.into_iter().flat_map(Protocol::offers).collect();
    // A session that is taken up again would let a key in that is not trusted any more.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// How a node connects to the memory node that has the key `peer`.
pub(crate) fn client_config(
    key: &SecretKey,
    peer: PublicKey,
    protocol: Protocol,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let own = certified(key, &provider)?;
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { peer, provider }))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
    config.alpn_protocols = protocol.offers().collect();
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The key that a peer has authenticated itself with.
pub(crate) fn peer_key(certificates: Option<&[CertificateDer<'_>]>) -> Option<PublicKey> {
    public_key(certificates?.first()?).ok()
}

fn certified(key: &SecretKey, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, Error> {
    let secret = [&SECRET_PREFIX[..], &key.seed()].concat();
    let signing =
        provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(secret).into())?;
    let public = [&PUBLIC_PREFIX[..], key.public().as_bytes()].concat();
    Ok(Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], signing)))
}

fn public_key(raw: &CertificateDer<'_>) -> Result<PublicKey, Error> {
    let key = raw.strip_prefix(&PUBLIC_PREFIX).and_then(|key| key.try_into().ok());
    key.map(PublicKey::from_bytes).ok_or(CertificateError::BadEncoding.into())
}

fn verify(
    message: &[u8],
    raw: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    provider: &CryptoProvider,
) -> Result<HandshakeSignatureValid, Error> {
    let raw = SubjectPublicKeyInfoDer::from(raw.as_ref());
    let algorithms = &provider.signature_verification_algorithms;
    verify_tls13_signature_with_raw_key(message, &raw, signature, algorithms)
}

fn refuse_old_tls() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("only TLS 1.3 is spoken here".to_owned()))
}

fn strange_key() -> Error {
    CertificateError::ApplicationVerificationFailure.into()
}

/// Checks that a memory node is the one that is meant.
#[derive(Debug)]
struct Pinned {
    peer: PublicKey,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        raw: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match public_key(raw)? == self.peer {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(strange_key()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        refuse_old_tls()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        raw: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, raw, signature, &self.provider)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Checks that who connects is let in.
struct Admitted {
    access: Arc<AccessCheck>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").finish_non_exhaustive()
    }
}

impl ClientCertVerifier for Admitted {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        raw: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match (self.access)(&public_key(raw)?) {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(strange_key()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        refuse_old_tls()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        raw: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, raw, signature, &self.provider)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
