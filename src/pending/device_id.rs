//! The ID of a device: inside its entry if it is short, as most are.

use std::sync::Arc;

/// The longest ID without memory of its own: a UUID fits.
const INLINE_BYTES: usize = 38;

/// The text of an ID.
///
/// The comparison of a short ID touches no memory outside the entry.
#[derive(Debug)]
pub(super) enum DeviceId {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Boxed(Box<[u8]>),
}

impl DeviceId {
    /// The text as bytes. Their order is that of the texts.
    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Self::Boxed(bytes) => bytes,
        }
    }

    /// The memory outside the entry, in bytes.
    pub(super) const fn allocated_bytes(&self) -> u64 {
        match self {
            Self::Inline { .. } => 0,
            Self::Boxed(bytes) => bytes.len() as u64,
        }
    }

    /// Makes a copy that others can share.
    pub(super) fn to_shared(&self) -> Arc<str> {
        std::str::from_utf8(self.as_bytes()).expect("an ID was made of a text").into()
    }
}

impl From<&str> for DeviceId {
    fn from(id: &str) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        match (u8::try_from(id.len()), bytes.get_mut(..id.len())) {
            (Ok(len), Some(inline)) => {
                inline.copy_from_slice(id.as_bytes());
                Self::Inline { len, bytes }
            }
            _ => Self::Boxed(id.as_bytes().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_length_come_back() {
        for len in 0..=300 {
            let text: String = "aé€".chars().cycle().take(len).collect();
            let id = DeviceId::from(&*text);
            assert_eq!((id.as_bytes(), &*id.to_shared()), (text.as_bytes(), &*text));
            assert_eq!(matches!(id, DeviceId::Inline { .. }), text.len() <= INLINE_BYTES);
        }
    }
}
