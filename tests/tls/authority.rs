//! Certificates for tests.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

/// A certificate authority.
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("authority")
    }

    pub(crate) fn named(name: &str) -> Self {
        let (key, mut params) = (KeyPair::generate().expect("a key"), named(name, &[]));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn pem(&self) -> &[u8] {
        self.pem.as_bytes()
    }

    pub(crate) fn server(&self) -> Issued {
        self.issue(&server_names())
    }

    pub(crate) fn expired_server(&self) -> Issued {
        self.issue(&expired(server_names()))
    }

    /// A client with these common and alternative names.
    pub(crate) fn client(&self, common: &str, alternative: &[SanType]) -> Issued {
        self.issue(&named(common, alternative))
    }

    pub(crate) fn expired_client(&self, common: &str) -> Issued {
        self.issue(&expired(named(common, &[])))
    }

    /// A client whose certificate is valid until the start of this year.
    pub(crate) fn client_until(&self, common: &str, year: i32) -> Issued {
        let mut params = named(common, &[]);
        params.not_after = date_time_ymd(year, 1, 1);
        self.issue(&params)
    }

    /// A client that is known to have this serial number.
    pub(crate) fn numbered_client(&self, common: &str, serial: u64) -> Issued {
        let mut params = named(common, &[]);
        params.serial_number = Some(SerialNumber::from(serial));
        self.issue(&params)
    }

    /// The revocation list, valid until this year.
    pub(crate) fn revoke(&self, serial: u64, until: i32) -> String {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).expect("a list").pem().expect("PEM")
    }

    /// Puts what the harness needs into a folder: the server's certificate and key, and this authority.
    pub(crate) fn write_server(&self, folder: &Path) {
        fs::write(folder.join("ca.pem"), &self.pem).expect("writable");
        self.server().write(folder, "server");
    }

    fn issue(&self, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Issued { certificate, key: key.serialize_pem() }
    }
}

impl Issued {
    /// Writes `name.pem` and `name.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) {
        fs::write(folder.join(format!("{name}.pem")), &self.certificate).expect("writable");
        fs::write(folder.join(format!("{name}.key")), &self.key).expect("writable");
    }

    pub(crate) fn both(&self) -> String {
        format!("{}{}", self.certificate, self.key)
    }
}

pub(crate) fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("ASCII"))
}

pub(crate) fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().expect("ASCII"))
}

fn named(common: &str, alternative: &[SanType]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    params.subject_alt_names = alternative.to_vec();
    params
}

fn server_names() -> CertificateParams {
    named("server", &[dns("localhost"), SanType::IpAddress([127, 0, 0, 1].into())])
}

fn expired(mut params: CertificateParams) -> CertificateParams {
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 1, 1);
    params
}
