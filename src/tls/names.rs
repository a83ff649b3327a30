//! The names in a client certificate.

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::access::Certificate;

/// Reads the names and the expiry of a client certificate that TLS has verified.
///
/// The names are the common names, and the alternative names of the kinds DNS and URI. A certificate that
/// cannot be parsed has no names, and counts as expired.
pub(crate) fn certificate(der: &CertificateDer<'_>) -> Certificate {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Certificate::new([], i64::MIN) };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
        _ => None,
    });
    Certificate::new(common.chain(alternative), not_after_ms(&certificate))
}

/// The instant at which a certificate expires, in Unix milliseconds.
pub(super) fn not_after_ms(certificate: &X509Certificate<'_>) -> i64 {
    certificate.validity().not_after.timestamp().saturating_mul(1_000)
}
