//! What is held against any datagram.

use metrics::Counter;

use super::datagram;
use super::sequences::Sequences;
use crate::wire::fuzz::Found;

/// The content of a datagram.
pub fn datagram(content: &[u8]) {
    let mut found = Found::default();
    datagram::parse(content, &["device".to_owned()], &Sequences::new(4, Counter::noop()), &mut found);
    found.check(content);
}
