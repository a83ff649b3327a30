//! The file of the store: other processes, a full disk, removal, copies.

use std::cell::Cell;

use super::*;

/// Writes once more, and returns the cause of the error.
async fn cause_of_failed_write(store: &SqliteStore) -> Cause {
    store.write(&[write_at("d", Hour(1), [(2, 2.0)])]).await.remove(0).unwrap_err().cause
}

#[tokio::test]
async fn nothing_is_written_while_the_file_is_removed_or_replaced() {
    let (folder, store) = new_store();
    let (path, aside) = (file_in(&folder), folder.path().join("aside"));
    written(&store, write_at("d", Hour(1), [(1, 1.0)])).await;
    for wal in [false, true] {
        let path = if wal { path.with_extension("db-wal") } else { path.clone() };
        std::fs::rename(&path, &aside).unwrap();
        assert_eq!(cause_of_failed_write(&store).await, Cause::FileGone);
        let said = store.ping().await.unwrap_err().to_string();
        assert!(said.contains(path.to_str().unwrap()) && said.contains("was removed"), "{said}");
        assert!(store.last_hour("d").await.is_err(), "reads fail too");
        std::fs::copy(&aside, &path).unwrap();
        assert_eq!(cause_of_failed_write(&store).await, Cause::FileGone);
        assert!(store.ping().await.unwrap_err().to_string().contains("another file is in the place of"));
        std::fs::rename(&aside, &path).unwrap();
        store.ping().await.unwrap();
    }
    assert_eq!(written(&store, write_at("d", Hour(1), [(1, 1.0), (2, 2.0), (3, 3.0)])).await.duplicate, 2);
    assert_eq!(stats(&store, "d").await.count, 3);
}

#[tokio::test]
async fn a_link_leads_to_the_file_and_to_those_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let link = |name: &str, to: &str| std::os::unix::fs::symlink(to, at(name)).unwrap();
    std::fs::create_dir(at("disk")).unwrap();
    link("link", "next");
    link("next", "disk/db"); // which does not exist yet
    assert_eq!(lock_of(&at("link")), at("disk/db-lock"));
    let store = SqliteStore::open(&at("link")).unwrap();
    assert_eq!(lock_of(&at("link")), at("disk/db-lock"));
    written(&store, write_at("d", Hour(1), [(1, 1.0)])).await;
    assert_eq!(stats(&store, "d").await.count, 1);
    let bytes = |name: &str| std::fs::metadata(at(name)).unwrap().len();
    assert_eq!(store.bytes().await.unwrap(), bytes("disk/db") + bytes("disk/db-wal"));
    std::fs::remove_file(at("next")).unwrap();
    assert_eq!(cause_of_failed_write(&store).await, Cause::FileGone);
    drop(SqliteStore::open(&at("disk/other")).unwrap());
    link("next", "disk/other");
    assert_eq!(cause_of_failed_write(&store).await, Cause::FileGone, "it is another file");
    link("circle", "circle");
    assert_eq!(lock_of(&at("circle")), at("circle-lock"));
}

#[tokio::test]
async fn while_another_process_writes_reads_work_and_writes_are_busy() {
    let (folder, store) = new_store();
    written(&store, write_at("d", Hour(1), [(1, 1.0)])).await;
    let visitor = visitor(&folder);
    visitor.execute_batch("BEGIN IMMEDIATE; DELETE FROM rollups").unwrap();
    let write = write_at("d", Hour(1), [(2, 3.0)]);
    let outcomes = store.write(std::slice::from_ref(&write)).await;
    assert!(matches!(&outcomes[..], [Err(StoreError { cause: Cause::Busy, .. })]), "{outcomes:?}");
    assert_eq!(stats(&store, "d").await, Stats::of(Hour(1).instant_ms(1), 1.0));
    visitor.execute_batch("ROLLBACK").unwrap();
    assert_eq!(written(&store, write).await, Written { stored: 1, duplicate: 0 });
    assert_eq!(stats(&store, "d").await.count, 2);
}

#[tokio::test]
async fn two_instances_take_turns_without_errors() {
    let (_folder, store, other) = two_handles().await;
    let writes = async |store: &SqliteStore, from: u32| {
        for at in 0..50 {
            let outcome = store.write(&[write_at("d", Hour(1), [(from + at * 2, 1.0)])]).await.remove(0);
            assert_eq!(outcome.unwrap(), Written { stored: 1, duplicate: 0 });
        }
    };
    tokio::join!(writes(&store, 0), writes(&other, 1));
    assert_eq!(stats(&store, "d").await.count, 100);
}

#[tokio::test]
async fn a_full_disk_stores_whole_transactions_only() {
    let (folder, store) = new_store();
    let noise = |at: u32| (at, f64::from(at).sin());
    let limit_pages = async |pages: i64| {
        store.writer.lock().await.connection.pragma_update(None, "max_page_count", pages).unwrap();
    };
    limit_pages(21).await;
    let writes = ["a", "b", "c"].map(|device| write_at(device, Hour(1), (0..5000).map(noise)));
    let outcomes = store.write(&writes).await;
    let fit = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    assert_eq!((fit, one::<i64>(&visitor(&folder), "SELECT count(*) FROM buckets")), (1, 1));
    for outcome in &outcomes[fit..] {
        assert!(matches!(outcome, Err(StoreError { cause: Cause::DiskFull, .. })), "{outcome:?}");
    }
    limit_pages(1_000_000).await;
    for (outcome, stored) in store.write(&writes).await.into_iter().zip([0, 5000, 5000]) {
        assert_eq!(outcome.unwrap(), Written { stored, duplicate: 5000 - stored });
    }
}

#[tokio::test]
async fn space_is_given_back_by_truncating_the_write_ahead_file() {
    let (folder, store) = new_store();
    let wal = || std::fs::metadata(format!("{}-wal", file_in(&folder).display())).unwrap().len();
    let writes = [write_at("a", Hour(1), (0..5000).map(|at| (at, f64::from(at).sin())))];
    store.write(&writes).await.into_iter().for_each(|outcome| assert!(outcome.is_ok()));
    assert!(wal() > 0);
    store.reclaim().await;
    assert_eq!(wal(), 0);
}

#[tokio::test]
async fn a_large_write_ahead_file_is_truncated_although_queries_overlap() {
    let (folder, store) = new_store();
    let wal = || std::fs::metadata(format!("{}-wal", file_in(&folder).display())).unwrap().len();
    let begin_query = || {
        let query = visitor(&folder);
        query.execute_batch("BEGIN").unwrap();
        one::<i64>(&query, "SELECT count(*) FROM buckets");
        query
    };
    written(&store, write_at("d", Hour(1), [(1, 1.0)])).await;
    let set_wait = async |wait: Duration| {
        let mut writer = store.writer.lock().await;
        (writer.large_wal_bytes, writer.wal_wait) = (0, wait);
    };
    set_wait(Duration::from_secs(60)).await;
    let mut queries = vec![begin_query()];
    let sleeps = || store.lock_sleeps.load(Ordering::Relaxed);
    for at in [2, 3] {
        let is_written = Cell::new(false);
        let write = async {
            written(&store, write_at("d", Hour(1), [(at, 2.0)])).await;
            is_written.set(true);
        };
        let overlap = async {
            while !is_written.get() {
                queries.insert(0, begin_query());
                queries.truncate(1); // the query before ends
                let before = sleeps();
                while !is_written.get() && sleeps() < before + 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        tokio::join!(write, overlap);
        assert_eq!(wal(), 0);
    }
    set_wait(Duration::ZERO).await;
    written(&store, write_at("d", Hour(1), [(4, 2.0)])).await;
    assert!(wal() > 0, "the last query has not ended");
    set_wait(Duration::from_secs(60)).await;
    let before = sleeps();
    written(&store, write_at("d", Hour(1), [(5, 2.0)])).await;
    assert_eq!(sleeps(), before, "after a wait in vain, the next write does not wait");
}

#[tokio::test]
async fn a_closed_store_is_one_file_that_can_be_copied_by_itself() {
    let (folder, store) = new_store();
    written(&store, write_at("d", Hour(1), [(1, 1.0)])).await;
    stats(&store, "d").await; // opens a reading connection
    store.close().await.unwrap();
    let copy = folder.path().join("copy.db");
    std::fs::copy(file_in(&folder), &copy).unwrap();
    assert_eq!(one::<u32>(&Connection::open(copy).unwrap(), "SELECT count(*) FROM rollups"), 1);
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing").join("db");
    let message = SqliteStore::open(&path).err().unwrap().to_string();
    assert!(message.contains(path.to_str().unwrap()), "{message}");
}

#[test]
fn a_file_that_may_only_be_read_is_refused_with_the_mend() {
    let path = Path::new("/sys/devices/system/cpu/possible"); // also for root
    let refused = SqliteStore::open(path).err().unwrap();
    assert_eq!(refused.cause, Cause::ReadOnly, "{refused}");
    let said = refused.to_string();
    assert!(said.contains(path.to_str().unwrap()) && said.contains("has to own the file"), "{said}");
}

#[test]
fn a_damaged_file_is_refused_with_the_mend() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(file_in(&folder), "deviceId,ts,value\n".repeat(100)).unwrap();
    let refused = SqliteStore::open(&file_in(&folder)).err().unwrap();
    assert_eq!(refused.cause, Cause::Corrupt, "{refused}");
    assert!(refused.to_string().contains("`tidegauge check --full` shows"), "{refused}");
}
