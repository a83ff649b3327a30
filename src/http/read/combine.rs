//! `combine`: folds the rollups of all devices, or of each group of devices.
//!
//! The devices of a group have the same values of some keys of their metadata. One pass over the device index
//! finds both the devices and these values.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use serde_json::Value;

use super::rollups::{Question, Which};
use super::rollups_json;
use super::rollups_table::{self, Subject};
use super::table::respond;
use crate::access::Grant;
use crate::http::App;
use crate::http::answer::format::Format;
use crate::http::problem::Problem;
use crate::http::request::params::Params;
use crate::query::{
    Compared, DeviceGroups, DevicesRequest, MetadataValues, Missing, Queries, QueryError, RollupsRequest,
};

/// The most keys of metadata that `combine=by:` may name.
const MAX_KEYS: usize = 8;

/// The longest key of metadata, in bytes.
const MAX_KEY_BYTES: usize = 256;

/// How many bytes of metadata a table may have for each point that is allowed.
///
/// A device ID may have as many bytes.
const BYTES_OF_VALUES: usize = 128;

/// Whether rollups are combined, and over which devices.
#[derive(Debug, PartialEq)]
pub(super) enum Combine {
    No,
    All,
    /// Over each group of devices with the same values of these metadata keys.
    By(Vec<String>),
}

/// The devices of a combined answer, and their groups.
struct Devices {
    ids: Vec<Arc<str>>,
    /// How many wanted series each of them may have; `None`: that was not looked up.
    known_series: Option<Vec<usize>>,
    groups: DeviceGroups,
    /// `Some`: devices and metadata that were acknowledged within this time may be missing.
    lagging: Option<Duration>,
    /// The part that the answer lacks, if any.
    partial: Option<Missing>,
}

impl Combine {
    /// Reads `combine`: `true`, or `by:floor,hall`.
    pub(super) fn of(params: &mut Params<'_>) -> Result<Self, Problem> {
        match params.one("combine")?.as_deref() {
            None | Some("false" | "0") => Ok(Self::No),
            Some("true" | "1") => Ok(Self::All),
            Some(by) => {
                let mut known = HashSet::new();
                let named = by.strip_prefix("by:").into_iter().flat_map(|keys| keys.split(','));
                let keys: Vec<String> = named.filter(|key| known.insert(*key)).map(str::to_owned).collect();
                let is_key = |key: &String| (1..=MAX_KEY_BYTES).contains(&key.len());
                if (1..=MAX_KEYS).contains(&keys.len()) && keys.iter().all(is_key) {
                    return Ok(Self::By(keys));
                }
                let why = format!(
                    "expected true, false, or by:KEY of the metadata, or up to {MAX_KEYS} keys with commas between, \
                     each of 1 to {MAX_KEY_BYTES} bytes"
                );
                Err(Problem::invalid_parameter("combine", why))
            }
        }
    }

    /// Returns the keys of metadata by which devices are grouped.
    fn keys(&self) -> &[String] {
        if let Self::By(keys) = self { keys } else { &[] }
    }

    /// Answers with the combined rollups of the devices.
    pub(super) async fn answer(
        self,
        app: &App,
        grant: &Grant,
        mut question: Question,
        which: Which,
    ) -> Result<Response, Problem> {
        let (keys, queries) = (self.keys(), app.queries.with_one_deadline());
        let found = Devices::find(app, &queries, grant, which, (&question.request, keys));
        let found = tokio::time::timeout_at(queries.deadline(), found).await;
        let found = found.map_err(|_| QueryError::Timeout(queries.limits().timeout))??;
        let Devices { ids, known_series, groups, lagging, partial } = found;
        let devices = ids.len();
        (question.request.devices, question.request.known_series) = (ids, known_series);
        let Question { request, form } = &question;
        let mut rollups = queries.combined_rollups(&grant.device_scope, request, &groups.group_of).await?;
        (rollups.lagging, rollups.partial) = (rollups.lagging.max(lagging), rollups.partial.max(partial));
        let to_json = |found| match &self {
            Self::By(_) => rollups_json::combined_groups(&found, &groups.groups, keys, form),
            Self::No | Self::All => rollups_json::combined(&found, devices, form),
        };
        let subjects: Vec<Subject<'_>> = match &self {
            Self::By(_) => groups.groups.iter().map(|group| Subject::Group(keys, &group.values)).collect(),
            Self::No | Self::All => vec![Subject::All],
        };
        if form.format != Format::Json {
            check_values(&subjects, &rollups.body.0, app.limits.max_points)?;
        }
        respond(form.format, "rollups", rollups, to_json, |(rollups, local)| {
            let mut table = rollups_table::table(Subject::Group(keys, &[]), form);
            for (subject, rollups) in subjects.into_iter().zip(&rollups) {
                table.append(rollups_table::rows(subject, form, rollups, &local));
            }
            table
        })
        .await
    }
}

/// Refuses a table with too much text, because each row repeats metadata.
fn check_values(subjects: &[Subject<'_>], rollups: &[Compared], max_points: usize) -> Result<(), Problem> {
    let bytes = |(subject, rollups): (&Subject<'_>, &Compared)| {
        let Subject::Group(_, values) = subject else { return 0 };
        rollups.points().saturating_mul(values.iter().map(|value| value.to_string().len()).sum())
    };
    let bytes = subjects.iter().zip(rollups).map(bytes).fold(0, usize::saturating_add);
    if bytes <= max_points.saturating_mul(BYTES_OF_VALUES) {
        return Ok(());
    }
    let why = "the values of the metadata are too long to be in each row; ask for JSON, or for fewer points";
    Err(Problem::invalid_parameter("combine", why))
}

impl Devices {
    /// Finds the devices, counts their series, and groups them by the values of `keys`.
    async fn find(
        app: &App,
        queries: &Queries,
        grant: &Grant,
        which: Which,
        (rollups, keys): (&RollupsRequest, &[String]),
    ) -> Result<Self, Problem> {
        let (named, mut request) = match which {
            Which::Named(ids) if keys.is_empty() => {
                let groups = DeviceGroups::of(ids.iter().map(|_| MetadataValues::new()));
                return Ok(Self { ids, known_series: None, groups, lagging: None, partial: None });
            }
            Which::Named(ids) => {
                let request = DevicesRequest::of_each(Some(ids.clone()), app.clock.now_ms());
                (Some(ids), DevicesRequest { limit: app.limits.max_devices, skips_any: false, ..request })
            }
            Which::Listed(request) => (None, request),
        };
        let (mut found, mut lagging, mut partial) = (Vec::new(), None, None);
        loop {
            let page = queries.device_values(&grant.device_scope, &request, rollups, keys).await?;
            (lagging, partial) = (lagging.max(page.lagging), partial.max(page.partial));
            found.extend(page.body.devices);
            if found.len() > request.limit {
                return Err(too_many(request.limit));
            }
            let Some(next) = page.body.next else {
                return Ok(Self { lagging, partial, ..Self::of(named, found, keys.len()) });
            };
            request.after = Some(next.to_string());
        }
    }

    /// Groups devices by the values that were found.
    ///
    /// Devices that the request names keep its order. The values of a device that was not found are null.
    fn of(named: Option<Vec<Arc<str>>>, found: Vec<(Arc<str>, (usize, MetadataValues))>, keys: usize) -> Self {
        let (ids, (known_series, values)): (Vec<_>, (Vec<_>, Vec<_>)) = match named {
            None => found.into_iter().unzip(),
            Some(ids) => {
                let mut known: HashMap<_, _> = found.into_iter().collect();
                let values = ids.iter().map(|id| known.remove(id).unwrap_or_else(|| (0, vec![Value::Null; keys])));
                let values = values.unzip();
                (ids, values)
            }
        };
        let groups = DeviceGroups::of(values);
        Self { ids, known_series: Some(known_series), groups, lagging: None, partial: None }
    }
}

fn too_many(max: usize) -> Problem {
    let why = format!(
        "more than {max} devices match (query.max_devices); select fewer with `prefix=`, `device=` or `meta.KEY=`"
    );
    Problem::invalid_parameter("combine", why)
}
