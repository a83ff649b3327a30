//! Set-ups without warnings.

use crate::check::{check, small, with_readings};
use crate::harness::{Database, Finished, Setup, in_stores, run};

/// Checks beside the running service, and again after it has stopped.
async fn has_no_warnings(setup: Setup, questions: Option<&str>) {
    let setup = small(setup);
    let mut server = with_readings(&setup).await;
    let beside = check(&setup, &server.data_dir()).await;
    assert_eq!(beside.bad(), [] as [&serde_json::Value; 0], "{beside:#?}");
    if let Some(questions) = questions {
        let all = format!("{questions} of {questions} queries and statements use their index");
        assert!(beside.report.to_string().contains(&all), "{beside:#?}");
    }
    assert!(server.terminate().await.success());
    let afterwards = check(&setup, &server.data_dir()).await;
    assert_eq!(afterwards.bad(), [] as [&serde_json::Value; 0], "{afterwards:#?}");
}

in_stores!(has_no_warnings, [sqlite(None), mongodb(Some("30")), packed(Some("30")), timeseries(Some("27"))]);

#[tokio::test]
async fn before_the_first_start_only_the_data_folder_is_missing_and_nothing_is_created() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    let database = Database::new();
    for setup in [Setup::sqlite(), Setup::mongodb(&database)] {
        let checked = check(&small(setup), &data).await;
        let mend = checked.has("warning", "configuration", "there is no data folder ");
        assert!(checked.bad().len() == 1 && mend.contains("--data-dir"), "{checked:#?}");
    }
    assert!(!data.exists());
    let names = database.handle().await.list_collection_names().await.expect("the names");
    assert_eq!(names, [] as [&str; 0]);
}

#[tokio::test]
async fn the_text_has_a_line_for_each_finding_and_the_flags_belong_to_full() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().to_str().expect("UTF-8");
    let Finished { code, stdout, .. } = run(&["check", "--full", "--data-dir", data]).await;
    assert!(matches!(code, Some(0 | 2)), "{stdout}"); // the disk of this machine may be small
    assert!(stdout.starts_with("ok       configuration           the configuration is valid"), "{stdout}");
    assert!(stdout.contains("note     sqlite-file             there is no file "), "{stdout}");
    for flags in [&["--json"][..], &["--deep"], &["--full", "--log"], &["--full", "--ready"]] {
        let refused = run(&[&["check", "--data-dir", data], flags].concat()).await;
        assert_eq!(refused.code, Some(64), "{flags:?}");
    }
}
