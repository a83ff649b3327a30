//! Walks through a payload along the tree of paths, and passes on the readings that it finds.

use std::borrow::Cow;

use super::super::json::{
    self, SyntaxError,
    lexer::{Kind, Lexer},
    problem::duplicate_key,
};
use super::super::problem::{Parsed, quoted, rejection, repeated};
use super::found::{Found, Value};
use super::tree::{Node, Role};
use super::{Address, Hook, json_string};
use crate::common::work;
use crate::model::{DEVICE_ID_MAX_BYTES, METRIC_MAX_BYTES, series};
use crate::wire::{Code, Ignored, Incoming, Limits, Sink};

/// The state of the walk through one payload.
#[derive(Debug)]
pub(super) struct Walk<'b> {
    hook: &'b Hook,
    address: &'b Address<'b>,
    limits: Limits,
    /// The values of the current element of the array, or of the payload itself.
    found: Found<'b>,
    /// The keys of the enclosing objects below `*`, each with a dot behind it.
    prefix: String,
    /// The keys so far of the enclosing objects, to find a key that occurs twice.
    ///
    /// It leaves out keys inside skipped values.
    keys: Vec<Cow<'b, str>>,
    /// A lexer at the array behind `[*]`, and the node of its elements.
    ///
    /// The array is known to be valid JSON.
    elements: Option<(Lexer<'b>, &'b Node)>,
    /// Whether the array behind `[*]` occurs twice.
    has_more_elements: bool,
}

/// The `*` that names the values here.
#[derive(Debug, Clone, Copy)]
struct Any {
    /// The number of the path that has the `*`.
    number: usize,
    /// The index in `prefix` where the names of its values begin.
    start: usize,
}

/// The values that all elements of the array behind `[*]` share.
struct Shared<'b> {
    found: Found<'b>,
    /// The metadata, if the elements share it.
    metadata: Parsed<Option<String>>,
}

impl<'b> Walk<'b> {
    pub(super) fn new(hook: &'b Hook, address: &'b Address<'b>, limits: Limits) -> Self {
        let (prefix, keys, elements) = (String::new(), Vec::new(), None);
        Self { hook, address, limits, found: Found::new(hook), prefix, keys, elements, has_more_elements: false }
    }

    /// Reads the whole payload, except for what is behind `[*]`.
    pub(super) fn root(&mut self, lexer: &mut Lexer<'b>) -> Result<(), SyntaxError> {
        self.value(lexer, Some(self.hook.tree.node(0)), None, None)
    }

    /// Reads a value at a node of the tree, below a `*`, or both.
    fn value(
        &mut self,
        lexer: &mut Lexer<'b>,
        node: Option<&'b Node>,
        any: Option<Any>,
        key: Option<Cow<'b, str>>,
    ) -> Result<(), SyntaxError> {
        let kind = lexer.kind()?;
        let start = lexer.offset();
        let any = any.filter(|_| node.is_none_or(|node| !node.is_taken()));
        if let Some(each) = node.and_then(|node| node.each)
            && kind != Kind::Null
        {
            self.has_more_elements |= self.elements.is_some();
            self.elements = Some((lexer.clone(), self.hook.tree.node(each)));
        }
        let value = match kind {
            Kind::String => Value::Text(lexer.string()?),
            Kind::Number => Value::Number(lexer.number()?),
            Kind::True | Kind::False | Kind::Null => {
                lexer.skip()?;
                if kind == Kind::Null { Value::Null } else { Value::Boolean(kind == Kind::True) }
            }
            Kind::NonFinite => {
                lexer.skip()?;
                Value::Container(kind)
            }
            Kind::Object => {
                self.object(lexer, node, any, key.as_deref())?;
                Value::Container(kind)
            }
            Kind::Array => {
                self.array(lexer, node)?;
                Value::Container(kind)
            }
        };
        for role in node.map_or(&[][..], |node| &node.roles) {
            match *role {
                Role::Metadata(path) => self.found.metadata(path, lexer.text_from(start), self.hook),
                role => self.found.take(role, &value, self.hook, &self.limits),
            }
        }
        if let (Some(any), Some(key)) = (any, key) {
            self.value_of_any(any, key, &value);
        }
        Ok(())
    }

    fn object(
        &mut self,
        lexer: &mut Lexer<'b>,
        node: Option<&'b Node>,
        outer: Option<Any>,
        key: Option<&str>,
    ) -> Result<(), SyntaxError> {
        let before = self.prefix.len();
        if let (Some(_), Some(key)) = (outer, key) {
            work::count(key.len() + 1);
            self.prefix.push_str(key);
            self.prefix.push('.');
        }
        let any = match node.and_then(|node| node.any) {
            Some(number) if outer.is_none_or(|outer| number < outer.number) => {
                Some(Any { number, start: self.prefix.len() })
            }
            _ => outer,
        };
        lexer.open()?;
        let first = self.keys.len();
        while let Some(key) = lexer.key()? {
            let child = node.and_then(|node| node.key(&key)).map(|place| self.hook.tree.node(place));
            let any = any.filter(|_| !self.hook.ignored_keys.iter().any(|ignored| **ignored == *key));
            if child.is_none() && any.is_none() {
                lexer.skip()?;
            } else {
                self.keys.push(key.clone());
                self.value(lexer, child, any, Some(key))?;
            }
        }
        if let Some(key) = repeated(self.keys[first..].iter().map(|key| &**key)) {
            self.found.repeated_key.get_or_insert_with(|| duplicate_key(key));
        }
        self.keys.truncate(first);
        self.prefix.truncate(before);
        Ok(())
    }

    fn array(&mut self, lexer: &mut Lexer<'b>, node: Option<&'b Node>) -> Result<(), SyntaxError> {
        let Some(node) = node.filter(|node| node.has_indexes()) else {
            lexer.skip()?;
            return Ok(());
        };
        lexer.open()?;
        let mut index = 0;
        while lexer.element()? {
            match node.index(index) {
                Some(place) => self.value(lexer, Some(self.hook.tree.node(place)), None, None)?,
                None => drop(lexer.skip()?),
            }
            index += 1;
        }
        Ok(())
    }

    /// Takes a value below a `*`.
    fn value_of_any(&mut self, any: Any, key: Cow<'b, str>, value: &Value<'b>) {
        let Some(number) = value.number() else {
            match value {
                Value::Text(_) => self.found.ignored.push((Ignored::String, key)),
                Value::Container(Kind::Array) => self.found.ignored.push((Ignored::Array, key)),
                Value::Container(Kind::NonFinite) => self.found.reject_value(&self.limits, || {
                    let detail = format!("the value of {} must be a number, found NaN or an infinity", quoted(&key));
                    rejection(Code::InvalidValue, detail)
                }),
                _ => {}
            }
            return;
        };
        let prefix = &self.prefix[any.start..];
        let bytes = prefix.len() + key.len();
        if bytes > METRIC_MAX_BYTES {
            self.found.reject_value(&self.limits, || {
                let start = prefix.chars().chain(key.chars()).take(65).collect::<String>();
                let detail =
                    format!("a metric name has at most {METRIC_MAX_BYTES} bytes, {} has {bytes}", quoted(&start));
                rejection(Code::InvalidMetricName, detail)
            });
        } else if prefix.is_empty() {
            self.found.value(key, number, &self.limits);
        } else {
            work::count(bytes);
            self.found.value(Cow::Owned([prefix, &*key].concat()), number, &self.limits);
        }
    }

    /// Passes on the readings of the payload.
    pub(super) fn emit(mut self, sink: &mut impl Sink) -> Result<(), SyntaxError> {
        if !self.hook.tree.has_each() {
            self.emit_reading(None, sink);
            return Ok(());
        }
        let found = std::mem::replace(&mut self.found, Found::new(self.hook));
        let has_each_condition = self.hook.conditions.iter().any(|condition| condition.path.before_each().is_some());
        if !(self.hook.conditions.is_empty() || found.is_meant || has_each_condition) {
            sink.ignore(Ignored::Event, "event");
            return Ok(());
        }
        let Some((mut lexer, node)) = self.elements.take() else {
            sink.reject(rejection(Code::MissingValues, format!("there is no {}", self.hook.metric_place)));
            return Ok(());
        };
        if self.has_more_elements {
            sink.reject(rejection(Code::DuplicateKey, format!("{} is duplicated", self.hook.metric_place)));
            return Ok(());
        }
        let metadata = if self.hook.is_owner_shared { self.metadata(&found, None) } else { Ok(None) };
        let shared = Shared { found, metadata };
        if lexer.kind()? != Kind::Array {
            self.value(&mut lexer, Some(node), None, None)?;
            self.emit_reading(Some(&shared), sink);
            return Ok(());
        }
        lexer.open()?;
        let mut is_empty = true;
        while !sink.is_over() && lexer.element()? {
            is_empty = false;
            self.found.clear(self.hook);
            self.value(&mut lexer, Some(node), None, None)?;
            self.emit_reading(Some(&shared), sink);
        }
        if is_empty && !sink.is_over() {
            sink.ignore(Ignored::Event, "event");
        }
        Ok(())
    }

    /// Passes on the reading found last.
    fn emit_reading(&mut self, shared: Option<&Shared<'b>>, sink: &mut impl Sink) {
        let is_meant = self.found.is_meant || shared.is_some_and(|shared| shared.found.is_meant);
        if !(self.hook.conditions.is_empty() || is_meant) {
            sink.ignore(Ignored::Event, "event");
            return;
        }
        let mut values = std::mem::take(&mut self.found.values);
        self.emit_values(&mut values, shared, sink);
        self.found.values = values;
    }

    fn emit_values(&self, values: &mut [(Cow<'b, str>, f64)], shared: Option<&Shared<'b>>, sink: &mut impl Sink) {
        let device = match self.device(shared) {
            Ok(device) => device,
            Err(rejection) => return sink.reject(rejection),
        };
        let of_shared = shared.filter(|_| self.hook.is_owner_shared);
        let own_metadata;
        let metadata = if let Some(shared) = of_shared {
            &shared.metadata
        } else {
            own_metadata = self.metadata(&self.found, shared.map(|shared| &shared.found));
            &own_metadata
        };
        let complete = || {
            let metadata = metadata.as_ref().map_err(Clone::clone)?.as_deref();
            let ts_ms = self.found.ts_ms.as_ref().or(shared.and_then(|shared| shared.found.ts_ms.as_ref()));
            let ts_ms = ts_ms.cloned().transpose()?;
            self.check_values(values)?;
            let labels = self.labels(shared)?;
            let repeated = self.found.repeated_key.as_ref().or(shared.and_then(|of| of.found.repeated_key.as_ref()));
            repeated.map_or(Ok((metadata, ts_ms, labels)), |rejection| Err(rejection.clone()))
        };
        let (metadata, ts_ms, labels) = match complete() {
            Ok(complete) => complete,
            Err(rejection) => return sink.reject(rejection),
        };
        if let Some(metric) = self.address.metric {
            for (name, _) in values.iter_mut() {
                *name = named_by_address(metric, name);
            }
        }
        if !labels.is_empty() {
            for (name, _) in values.iter_mut() {
                work::count(name.len() + labels.len());
                *name = Cow::Owned([name, labels.as_str()].concat());
            }
        }
        for rejection in &self.found.rejected_values {
            sink.reject_value(rejection.clone());
        }
        for (what, name) in &self.found.ignored {
            sink.ignore(*what, name);
        }
        let owner = of_shared.map(|_| 0);
        sink.reading(Incoming { device: &device, metadata, owner, ts_ms, values, measurement_bytes: 0 });
    }

    fn device<'d>(&'d self, shared: Option<&'d Shared<'b>>) -> Parsed<Cow<'d, str>> {
        let in_payload = self.found.device.as_ref().or(shared.and_then(|shared| shared.found.device.as_ref()));
        let device =
            match in_payload {
                Some(found) => found.as_ref().map_err(Clone::clone)?,
                None => self.address.device.filter(|device| !device.is_empty()).ok_or_else(|| {
                    rejection(Code::MissingDeviceId, format!("there is no {}", self.hook.device_place))
                })?,
            };
        if device.len() <= DEVICE_ID_MAX_BYTES
            && let Some(own) = self.hook.device_ids.get(device)
        {
            return Ok(Cow::Borrowed(own));
        }
        let prefix = &self.hook.device_prefix;
        // A device ID that is too long is not copied: admission rejects it as it is.
        if prefix.is_empty() || device.len() > DEVICE_ID_MAX_BYTES {
            return Ok(Cow::Borrowed(device));
        }
        work::count(prefix.len() + device.len());
        Ok(Cow::Owned([prefix.as_str(), device].concat()))
    }

    /// The text of the metadata; `None` if it has no keys.
    fn metadata(&self, found: &Found<'b>, shared: Option<&Found<'b>>) -> Parsed<Option<String>> {
        let constants = &self.hook.constants;
        let mut members: Vec<(Cow<'_, str>, Cow<'_, str>)> =
            constants.iter().map(|(key, value)| (Cow::Borrowed(&**key), Cow::Borrowed(&**value))).collect();
        let is_free = |key: &str| constants.iter().all(|(constant, _)| constant != key);
        for (path, key) in self.hook.metadata_keys.iter().enumerate().filter(|(_, key)| is_free(key)) {
            let text = found.metadata[path].as_ref().or(shared.and_then(|shared| shared.metadata[path].as_ref()));
            if let Some(text) = text {
                members.push((Cow::Borrowed(key), Cow::Borrowed(*text.as_ref().map_err(Clone::clone)?)));
            }
        }
        for (key, text) in self.address.metadata {
            let key = json_string(key);
            if members.iter().all(|(known, _)| *known != key) {
                members.push((Cow::Owned(key), Cow::Owned(json_string(text))));
            }
        }
        if members.is_empty() {
            return Ok(None);
        }
        let bytes = members.iter().map(|(key, text)| key.len() + text.len() + 2).sum::<usize>() + 1;
        self.limits.check_metadata(bytes)?;
        work::count(bytes);
        let members: Vec<_> = members.into_iter().map(|(key, text)| format!("{key}:{text}")).collect();
        let text = format!("{{{}}}", members.join(","));
        let internal = |error: SyntaxError| rejection(Code::InvalidMetadata, error.to_string());
        let mut lexer = Lexer::new(text.as_bytes()).map_err(internal)?;
        json::metadata::check(&mut lexer, &mut Vec::new(), &self.limits, 1).map_err(internal)??;
        Ok(Some(text))
    }

    /// The labels as the text of a series has them; empty if there are none.
    fn labels(&self, shared: Option<&Shared<'b>>) -> Parsed<String> {
        let mut labels = Vec::with_capacity(self.hook.label_names.len());
        for (path, name) in self.hook.label_names.iter().enumerate() {
            let value = self.found.labels[path].as_ref();
            let value = value.or(shared.and_then(|shared| shared.found.labels[path].as_ref()));
            if let Some(value) = value {
                let value = value.as_ref().map_err(Clone::clone)?;
                work::count(value.len());
                labels.push((name.as_str(), &**value));
            }
        }
        for (name, value) in self.address.labels {
            work::count(value.len());
            labels.push((name, value));
        }
        let mut text = String::new();
        series::append_labels(&mut text, &mut labels)?;
        Ok(text)
    }

    /// Checks the values: at least one, and each metric once.
    fn check_values(&self, values: &[(Cow<'b, str>, f64)]) -> Parsed<()> {
        let Found { rejected_values, surplus, .. } = &self.found;
        self.limits.check_metrics(values.len() + rejected_values.len() + surplus)?;
        if values.is_empty() {
            return Err(rejected_values.first().cloned().unwrap_or_else(|| {
                rejection(
                    Code::MissingValues,
                    format!("there is no number and no boolean at {}", self.hook.metric_place),
                )
            }));
        }
        match repeated(values.iter().map(|(metric, _)| &**metric)) {
            Some(metric) => Err(rejection(Code::DuplicateKey, format!("the metric {} is duplicated", quoted(metric)))),
            None => Ok(()),
        }
    }
}

/// The name of a value where the address names the metric.
fn named_by_address<'n>(metric: &'n str, name: &str) -> Cow<'n, str> {
    if name == "value" {
        return Cow::Borrowed(metric);
    }
    work::count(metric.len() + name.len());
    Cow::Owned([metric, ".", name].concat())
}
