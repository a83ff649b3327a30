//! Asks the server for its plan of each query: none may read a whole collection.
//!
//! The server chooses the plan and does not execute the query (`queryPlanner`).

use bson::{Bson, Document, doc};

use super::questions::{Access, Question};
use super::{ID_INDEX, Inspector, shell};
use crate::common::finding::{Finding, Part, count};
use crate::store::Cause;

pub(super) const PART: Part = Part::QueryPlan;

/// The stages that read by an index or by the order of the collection.
const BY_INDEX: [&str; 5] = ["IXSCAN", "COUNT_SCAN", "DISTINCT_SCAN", "EXPRESS_IXSCAN", "IDHACK"];
const CLUSTERED: [&str; 2] = ["CLUSTERED_IXSCAN", "EXPRESS_CLUSTERED_IXSCAN"];
const WHOLE: &str = "COLLSCAN";

/// The stages of a plan that read documents, with the name of the index if they have one.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    reads: Vec<(String, Option<String>)>,
}

impl Inspector<'_> {
    pub(super) async fn check_plans(&mut self, questions: &[Question]) {
        let mut good = 0;
        for question in questions {
            let explain = doc! { "explain": question.explained(), "verbosity": "queryPlanner" };
            match self.try_to_ask(None, explain).await {
                Ok(reply) => match verdict(question, &Plan::of(&reply)) {
                    None => good += 1,
                    Some(finding) => self.findings.push(finding),
                },
                Err(error) => {
                    let finding = self.failed(PART, None, &error);
                    self.findings.push(finding);
                    if matches!(error.cause, Cause::Auth | Cause::Forbidden | Cause::Timeout | Cause::Network) {
                        break; // the others would have the same answer
                    }
                }
            }
        }
        self.findings.push(Finding::ok(
            PART,
            format!("{} of {} queries and statements use their index", count(good), count(questions.len() as u64)),
        ));
    }
}

impl Plan {
    fn of(reply: &Document) -> Self {
        let mut plan = Self::default();
        plan.add_winning(reply);
        plan
    }

    /// Looks for the plans that the server has chosen, one for each shard.
    fn add_winning(&mut self, document: &Document) {
        for (field, value) in document {
            match (field.as_str(), value) {
                ("winningPlan", Bson::Document(chosen)) => self.add_stages(chosen),
                ("rejectedPlans" | "command", _) => {}
                (_, Bson::Document(below)) => self.add_winning(below),
                (_, Bson::Array(several)) => {
                    several.iter().filter_map(Bson::as_document).for_each(|below| self.add_winning(below));
                }
                _ => {}
            }
        }
    }

    fn add_stages(&mut self, document: &Document) {
        if let Ok(stage) = document.get_str("stage")
            && (BY_INDEX.contains(&stage) || CLUSTERED.contains(&stage) || stage == WHOLE)
        {
            self.reads.push((stage.to_owned(), document.get_str("indexName").ok().map(str::to_owned)));
        }
        for (_, value) in document.iter().filter(|(field, _)| *field != "rejectedPlans") {
            match value {
                Bson::Document(below) => self.add_stages(below),
                Bson::Array(several) => {
                    several.iter().filter_map(Bson::as_document).for_each(|below| self.add_stages(below));
                }
                _ => {}
            }
        }
    }
}

/// The finding about a plan that does not read by the index of its question.
fn verdict(question: &Question, plan: &Plan) -> Option<Finding> {
    let Question { purpose, collection, access, .. } = question;
    let named = format!("the query for {purpose} on {collection}");
    let mend = match access {
        Access::Index(index) => format!(
            "the index {index} is missing, or another one is in its way: see collection-indexes, and restart \
             tidegauge, which creates its own; {}.getIndexes() in mongosh lists them",
            shell(collection)
        ),
        Access::Ids | Access::Time => format!(
            "see collection-indexes and collection-options; {}.getIndexes() in mongosh lists the indexes",
            shell(collection)
        ),
    };
    if plan.reads.iter().any(|(stage, _)| stage == WHOLE) {
        return Some(Finding::error(PART, format!("{named} reads the whole collection ({WHOLE})"), mend));
    }
    let is_right = |(stage, index): &(String, Option<String>)| {
        let is_clustered = CLUSTERED.contains(&stage.as_str());
        let index = index.as_deref().unwrap_or(ID_INDEX);
        match access {
            Access::Ids => is_clustered || index == ID_INDEX,
            Access::Index(wanted) => !is_clustered && index == *wanted,
            Access::Time => true,
        }
    };
    let (stage, index) = plan.reads.iter().find(|read| !is_right(read))?;
    let index = index.as_deref().unwrap_or("no index");
    Some(Finding::warning(PART, format!("{named} uses {index} ({stage}), which is not the index made for it"), mend))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::finding::Severity;

    #[test]
    fn plans_of_one_server_of_a_time_series_and_of_shards_are_read() {
        let scan = doc! { "stage": "FETCH", "inputStage": { "stage": "IXSCAN", "indexName": "a" } };
        let other = doc! { "stage": "COLLSCAN" };
        let whole = doc! { "queryPlan": { "stage": "COLLSCAN" }, "slotBasedPlan": {} };
        for (reply, expected) in [
            (doc! { "queryPlanner": { "winningPlan": &scan, "rejectedPlans": [&other] } }, vec![("IXSCAN", Some("a"))]),
            (
                doc! { "stages": [{ "$cursor": { "queryPlanner": { "winningPlan": whole } } }] },
                vec![("COLLSCAN", None)],
            ),
            (
                doc! { "queryPlanner": { "winningPlan": { "stage": "SHARD_MERGE", "shards": [
                    { "winningPlan": scan }, { "winningPlan": { "stage": "IDHACK" } },
                ] } } },
                vec![("IXSCAN", Some("a")), ("IDHACK", None)],
            ),
            (doc! { "queryPlanner": { "winningPlan": { "stage": "EOF" } } }, vec![]),
        ] {
            let expected: Vec<(String, Option<String>)> =
                expected.into_iter().map(|(stage, index)| (stage.to_owned(), index.map(str::to_owned))).collect();
            assert_eq!(Plan::of(&reply).reads, expected, "{reply}");
        }
    }

    #[test]
    fn a_whole_collection_is_an_error_and_another_index_a_warning() {
        let severity = |access, stage: &str, index: Option<&str>| {
            let command = doc! { "find": "x" };
            let question = Question { purpose: "x", collection: "x".to_owned(), command, access };
            let plan = Plan { reads: vec![(stage.to_owned(), index.map(str::to_owned))] };
            verdict(&question, &plan).map(|found| found.severity)
        };
        let by_a = Access::Index("a");
        assert_eq!(severity(by_a, "IXSCAN", Some("a")), None);
        assert_eq!(severity(by_a, "IXSCAN", Some("b")), Some(Severity::Warning));
        assert_eq!(severity(by_a, "CLUSTERED_IXSCAN", None), Some(Severity::Warning));
        assert_eq!(severity(by_a, "COLLSCAN", None), Some(Severity::Error));
        for (stage, index) in [("IDHACK", None), ("IXSCAN", Some("_id_")), ("CLUSTERED_IXSCAN", None)] {
            assert_eq!(severity(Access::Ids, stage, index), None);
        }
        assert_eq!(severity(Access::Ids, "IXSCAN", Some("deviceId_hashed")), Some(Severity::Warning));
        assert_eq!(
            (severity(Access::Time, "CLUSTERED_IXSCAN", None), severity(Access::Time, "COLLSCAN", None)),
            (None, Some(Severity::Error))
        );
    }
}
