//! Passes the commit of the sources to the program.

use std::path::Path;
use std::process::Command;

fn main() {
    let variable = |name| std::env::var(name).ok();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BUILD_REVISION");
    let folder = variable("CARGO_MANIFEST_DIR").unwrap_or_default();
    let is_release = variable("PROFILE").as_deref() == Some("release");
    let (revision, watched) = revision(Path::new(&folder), is_release, variable("BUILD_REVISION"));
    if let Some(file) = watched {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rustc-env=BUILD_REVISION={revision}");
}

/// The commit of the sources in `folder`, and the file that changes with it.
///
/// A packager may give the commit; otherwise a release build gets it from git. A test build does not, because
/// each commit would then recompile everything. Sources without a checkout of their own, such as a tarball,
/// have no commit, so that their build does not depend on the folder that contains them.
pub(crate) fn revision(folder: &Path, is_release: bool, given: Option<String>) -> (String, Option<String>) {
    let unknown = ("unknown".to_owned(), None);
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return (given, None);
    }
    let git = |args: &[&str]| {
        // A git hook sets `GIT_DIR`, perhaps to another repository.
        let output = Command::new("git").env_remove("GIT_DIR").arg("-C").arg(folder).args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let is_checkout = || {
        let top = Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
        (top == folder.canonicalize().ok()?).then_some(())
    };
    if !is_release || is_checkout().is_none() {
        return unknown;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return unknown };
    // The log of HEAD grows with each commit and each checkout.
    let watched = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    (commit, watched.filter(|file| Path::new(file).exists()))
}
