//! The statement of the fast path by itself, for `benches`.

use std::sync::Arc;

use super::super::encode::Encoder;
use super::capacity::Capacity;
use super::fast::{append, job_of};
use crate::model::BucketWrite;

pub(in super::super) fn append_one(statement: &mut Encoder, at: usize, write: &Arc<BucketWrite>) {
    let job = job_of(at, write).expect("it has readings");
    append(statement, &job, Capacity::new(3_600, 8 << 20));
}
