//! The paths of `InfluxDB` 1, 2 and 3 by which its clients write line protocol, so that they work here
//! unchanged.
//!
//! Each version of the API names the units of times in its own way and has error bodies of its own; what
//! happens in between is the same as for every request with readings. Databases, buckets, organisations and
//! retention policies are accepted and mean nothing here, as do parameters that only `InfluxDB` has a use
//! for.
//!
//! Nothing is asked for in the languages of `InfluxDB`: of `/query`, only the `CREATE DATABASE` with which
//! some clients begin is answered.

mod answer;
mod hello;
mod write;

pub(super) use answer::Version;
pub(super) use hello::{health, ping, query};
pub(super) use write::write;
