//! The progress of building the index from what is stored.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use bson::{Document, doc};

use super::super::encode::Encoder;
use super::super::statements::{Outcome, Verb};
use super::DeviceIndex;
use crate::store::{DeviceSummary, StoreError};

/// The shard key of the document with the progress. No device has this ID.
const DEVICE_OF_PROGRESS: &str = "(build)";

/// How far the index is built.
#[derive(Debug, PartialEq)]
pub(in super::super) enum Progress {
    /// It has all devices.
    Complete,
    /// It has the devices up to this one; `None`: none yet.
    After(Option<String>),
}

impl DeviceIndex {
    /// Reads the progress, by any instance.
    pub(in super::super) async fn progress(&self) -> Result<Progress, StoreError> {
        let mut progress = Progress::After(None);
        self.commands
            .each_document(self.documents.find(of_progress()), |document| {
                progress = match document.get_bool("isComplete") {
                    Ok(true) => Progress::Complete,
                    _ => Progress::After(document.get_str("after").ok().map(str::to_owned)),
                };
                Ok(ControlFlow::Break(()))
            })
            .await?;
        if progress == Progress::Complete {
            self.is_complete.store(true, Ordering::SeqCst);
        }
        Ok(progress)
    }

    /// Adds the next devices, up to and including `last`. `is_complete` says that they are the last ones.
    pub(in super::super) async fn advance(
        &self,
        devices: &[DeviceSummary],
        last: Option<&str>,
        is_complete: bool,
    ) -> Result<(), StoreError> {
        self.add(devices).await?;
        let encode = |statement: &mut Encoder, (): &()| {
            statement.document("q", |filter| {
                filter.document("_id", |id| id.int32("build", 1));
                filter.string("deviceId", DEVICE_OF_PROGRESS);
            });
            statement.document("u", |update| {
                update.document("$max", |max| {
                    if let Some(last) = last {
                        max.string("after", last);
                    }
                    max.boolean("isComplete", is_complete);
                });
            });
            statement.boolean("upsert", true);
        };
        let mut outcome = Outcome::Done;
        let settle = |(): &(), settled| outcome = settled;
        self.commands.write_all(Verb::Update, &self.managed.name, &[()], encode, settle).await.map_err(to_error)?;
        match outcome {
            Outcome::Failed(error) => Err(to_error(error)),
            Outcome::Done | Outcome::Unmet => Ok(()),
        }
    }
}

fn to_error(error: crate::store::WriteError) -> StoreError {
    StoreError::new(error.cause, error.detail)
}

fn of_progress() -> Document {
    doc! { "_id": { "build": 1 }, "deviceId": DEVICE_OF_PROGRESS }
}
