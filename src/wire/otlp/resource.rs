//! Resources: the device of data points, its metadata, and the labels of its series.

use std::borrow::Cow;
use std::collections::HashSet;

use super::super::grouping::{Grouping, SampleRejection, check_device_length};
use super::super::protobuf::{Fields, Result};
use super::super::{Code, Ignored, Limits, Sink, metadata, problem::rejection};
use super::Options;
use super::attribute::{Attribute, AttributeValue};
use crate::model::series;

/// Attributes as keys and values.
///
/// The text of a value that was a number is owned, and all other texts are borrowed.
pub(super) type Labels<'b> = Vec<(&'b str, Cow<'b, str>)>;

/// The labels of each series of a resource, or why its data points are rejected.
pub(super) type ResourceLabels<'b, 'o> = std::result::Result<Vec<(&'o str, Cow<'b, str>)>, SampleRejection>;

/// Reads one resource after the other, with the same buffers for all.
#[derive(Debug)]
pub(super) struct ResourceReader<'b, 'o> {
    options: &'o Options<'o>,
    max_metadata_bytes: usize,
    /// The attributes that may name the device, in the order of the options.
    named: Vec<Option<Cow<'b, str>>>,
    /// The other attributes that fit into the metadata.
    members: Labels<'b>,
    member_keys: HashSet<&'b str>,
    member_bytes: usize,
    metadata: String,
}

impl<'b, 'o> ResourceReader<'b, 'o> {
    pub(super) fn new(options: &'o Options<'o>, limits: Limits) -> Self {
        Self {
            options,
            max_metadata_bytes: limits.max_metadata_bytes,
            named: Vec::new(),
            members: Vec::new(),
            member_keys: HashSet::new(),
            member_bytes: 0,
            metadata: String::new(),
        }
    }

    /// Reads the resource of a `ResourceMetrics`, and sets the device.
    pub(super) fn read<S: Sink>(
        &mut self,
        resource_metrics: &'b [u8],
        readings: &mut Grouping<'_, S>,
    ) -> Result<ResourceLabels<'b, 'o>> {
        self.named.clear();
        self.named.resize(self.options.device_attributes.len(), None);
        self.members.clear();
        self.member_keys.clear();
        self.member_bytes = "{}".len() - ",".len();
        let mut fields = Fields::of(resource_metrics);
        while let Some(field) = fields.next()? {
            if field.number == 1 {
                self.read_attributes(field.message()?, readings.sink())?;
            }
        }
        Ok(self.identify(readings))
    }

    fn read_attributes(&mut self, mut resource: Fields<'b>, sink: &mut impl Sink) -> Result<()> {
        while let Some(field) = resource.next()? {
            match field.number {
                1 => {
                    let Attribute { key, value } = Attribute::read(field.message()?)?;
                    match value {
                        AttributeValue::Text(value) => self.put(key, value, sink),
                        AttributeValue::Empty => {}
                        AttributeValue::Other => sink.ignore(Ignored::Attribute, key),
                    }
                }
                2 | 3 => {} // the number of attributes that the sender dropped, and references to entities
                _ => sink.ignore(Ignored::UnknownKey, "an unknown field of a resource"),
            }
        }
        Ok(())
    }

    /// Takes an attribute. If a key occurs twice, the first attribute counts.
    fn put(&mut self, key: &'b str, value: Cow<'b, str>, sink: &mut impl Sink) {
        if let Some(at) = self.options.device_attributes.iter().position(|name| name == key) {
            match &mut self.named[at] {
                free @ None => *free = Some(value),
                Some(_) => sink.ignore(Ignored::Attribute, key),
            }
            return;
        }
        // The length is checked first, so that no text that is too long is read.
        let fits = key.len() + value.len() <= self.max_metadata_bytes
            && self.member_bytes + metadata::member_bytes(key, &value) <= self.max_metadata_bytes
            && metadata::is_member(key, &value)
            && self.member_keys.insert(key);
        if fits {
            self.member_bytes += metadata::member_bytes(key, &value);
            self.members.push((key, value));
        } else {
            sink.ignore(Ignored::Attribute, key);
        }
    }

    /// Sets the device. Returns the labels of its series.
    fn identify<S: Sink>(&mut self, readings: &mut Grouping<'_, S>) -> ResourceLabels<'b, 'o> {
        let Some(at) = self.named.iter().position(Option::is_some) else {
            let looked_for = self.options.device_attributes.join(", ");
            let what = format!("no attribute of the resource names the device (looked for {looked_for})");
            return Err(SampleRejection::NoDevice(rejection(Code::MissingDeviceId, what)));
        };
        let device = self.named[at].take().unwrap_or_default();
        check_device_length(&device)?;
        metadata::write(&mut self.metadata, self.members.iter().map(|(key, value)| (*key, &**value)));
        readings.set_device(&device, &self.metadata);
        let named = self.options.device_attributes.iter().zip(&mut self.named);
        let labels: Vec<_> = named.filter_map(|(key, value)| Some((&**key, value.take()?))).collect();
        for (_, value) in &labels {
            series::check_length(value.len()).map_err(|error| SampleRejection::Series(error.into()))?;
        }
        Ok(labels)
    }
}
