//! The commit in the version of a build.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

#[expect(dead_code, reason = "its main is for cargo")]
#[path = "../build.rs"]
mod build;

fn git(folder: &Path, args: &[&str]) -> String {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
    let mut command = Command::new("git");
    command.env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE").arg("-C").arg(folder);
    command.args(identity).args(["-c", "init.defaultBranch=main"]).args(args);
    let output = command.output().expect("git is installed");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

#[test]
fn a_release_build_of_a_checkout_tells_its_commit() {
    let folder = TempDir::new().expect("a temporary folder");
    git(folder.path(), &["init", "-q"]);
    git(folder.path(), &["commit", "-q", "--allow-empty", "-m", "one"]);
    let (revision, watched) = build::revision(folder.path(), true, None);
    let commit = git(folder.path(), &["rev-parse", "HEAD"]);
    assert!(revision.len() == 12 && commit.starts_with(&revision), "{revision} of {commit}");
    assert!(Path::new(&watched.expect("a file that changes with each commit")).is_absolute());
    assert_eq!(build::revision(folder.path(), true, Some("v1-7".to_owned())).0, "v1-7");
    assert_eq!(build::revision(folder.path(), false, None).0, "unknown");
}

/// Git sets `GIT_DIR` for its hooks.
#[test]
fn a_build_in_a_git_hook_tells_the_commit_of_its_sources() {
    let other = TempDir::new().expect("a temporary folder");
    let mut tests = Command::new(std::env::current_exe().expect("this program has a path"));
    tests.args(["--exact", "revision::a_release_build_of_a_checkout_tells_its_commit"]);
    let output = tests.env("GIT_DIR", other.path()).output().expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn sources_that_are_no_checkout_have_no_revision() {
    let folder = TempDir::new().expect("a temporary folder");
    assert_eq!(build::revision(folder.path(), true, None), ("unknown".to_owned(), None));
    // The same for a tarball that was unpacked inside of another checkout.
    git(folder.path(), &["init", "-q"]);
    git(folder.path(), &["commit", "-q", "--allow-empty", "-m", "one"]);
    let unpacked = folder.path().join("tidegauge-0.1.0");
    std::fs::create_dir(&unpacked).expect("the folder is writable");
    assert_eq!(build::revision(&unpacked, true, None).0, "unknown");
}
