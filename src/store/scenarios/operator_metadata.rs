//! Scenarios of what operators set in the metadata of devices.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::model::{Deletion, OperatorKey, OperatorMetadata};

fn set(key: &str, at_ms: i64, value: Option<Value>) -> OperatorMetadata {
    OperatorMetadata { replaced_ms: None, keys: [(key.to_owned(), OperatorKey { at_ms, value })].into() }
}

async fn merge(store: &dyn Store, changes: &[(&str, OperatorMetadata)]) {
    let changes: Vec<_> = changes.iter().map(|(device, change)| (Arc::from(*device), change.clone())).collect();
    store.operator_metadata().merge_metadata(&changes).await.unwrap();
}

async fn of(store: &dyn Store, device: &str) -> Option<OperatorMetadata> {
    let mut found = store.operator_metadata().metadata_of(&[device.into(), "operator-none".into()]).await.unwrap();
    assert!(!found.contains_key("operator-none"));
    found.remove(device)
}

pub(in crate::store) async fn what_operators_set_is_merged_and_listed_by_device(store: &dyn Store) {
    let a = set("name", 5, Some(json!("Press 3")));
    let b = set("$a.b", 7, Some(json!({"c.d": [1, null, 0.1], "e": {"f": 9_007_199_254_740_993_i64}})));
    merge(store, &[("operator/a", a.clone()), ("operator/b", b.clone()), ("operator/a", b.clone())]).await;
    let mut both = a.clone();
    both.merge(b.clone());
    assert_eq!(of(store, "operator/a").await, Some(both));
    // An older value changes nothing; a newer one, a removal and a replacement do.
    merge(store, &[("operator/a", set("name", 4, Some(json!("older"))))]).await;
    assert_eq!(of(store, "operator/a").await.unwrap().object()["name"], json!("Press 3"));
    merge(store, &[("operator/a", set("name", 8, None))]).await;
    merge(store, &[("operator/a", a.clone())]).await;
    assert_eq!(of(store, "operator/a").await.unwrap().keys["name"], OperatorKey { at_ms: 8, value: None });
    let Value::Object(object) = json!({"hall": 2}) else { unreachable!("an object") };
    let replacement = OperatorMetadata::replacement(object, 9);
    merge(store, &[("operator/a", replacement.clone())]).await;
    merge(store, &[("operator/a", b.clone())]).await;
    assert_eq!(of(store, "operator/a").await, Some(replacement.clone()));

    let list =
        async |prefix, after, limit| store.operator_metadata().list_metadata(prefix, after, limit).await.unwrap();
    let (first, second) = (("operator/a".into(), replacement), ("operator/b".into(), b));
    assert_eq!(list("operator/", None, 10).await, [first.clone(), second.clone()]);
    assert_eq!(list("operator/", None, 1).await, [first]);
    assert_eq!(list("operator/", Some("operator/a"), 10).await, std::slice::from_ref(&second));
    assert_eq!(list("operator/b", Some("operator/a"), 10).await, [second]);
    assert_eq!(list("operator/b", Some("operator/b"), 10).await, []);
    assert_eq!(list("operator/a/", None, 10).await, []);
    assert!(store.device("operator/a").await.unwrap().is_none(), "it has sent nothing");
}

pub(in crate::store) async fn changes_of_two_instances_are_all_there(store: &dyn Store, other: &dyn Store) {
    let change_all = async |store: &dyn Store, of: &str| {
        for nth in 0..20 {
            let change = set(&format!("{of}{nth}"), nth, Some(json!(nth)));
            let merge = async || {
                let change = [("operator-both".into(), change.clone())];
                store.operator_metadata().merge_metadata(&change).await
            };
            in_the_end(merge).await;
        }
    };
    tokio::join!(change_all(store, "a"), change_all(other, "b"));
    for store in [store, other] {
        assert_eq!(of(store, "operator-both").await.unwrap().keys.len(), 40);
    }
}

pub(in crate::store) async fn what_operators_set_outlives_the_readings(store: &dyn Store) {
    let name = set("name", 5, Some(json!("Press 3")));
    merge(store, &[("operator-left", name.clone())]).await;
    write(store, &write_of("operator-left", HOUR, &[(7, &[("a", 1.0)])])).await;
    assert!(store.device("operator-left").await.unwrap().is_some());
    let deletions = store.deletions();
    deletions.delete(&Deletion::of_device("operator-left".into()), &BTreeSet::new()).await.unwrap();
    assert!(store.device("operator-left").await.unwrap().is_none());
    assert_eq!(of(store, "operator-left").await, Some(name));
}
