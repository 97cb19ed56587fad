//! Rules of the files that git tracks: only source text, so that no download or build result is committed by accident.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// Extensions of source text.
const EXTENSIONS: &[&str] =
    &["css", "go", "html", "js", "json", "lock", "md", "mjs", "py", "rs", "sh", "svg", "toml", "yaml", "yml"];

/// Files that have no extension.
const NAMES: &[&str] = &[".ci/run", ".dockerignore", ".gitignore", "Dockerfile", "LICENSE"];

/// Inputs of the fuzz targets: any name, any bytes.
const CORPUS: &str = "tests/fuzz/corpus/";

/// Bytes of the largest file. The largest so far is the generated `static/openapi.json`.
const FILE_BYTES_MAX: usize = 256 * 1024;

/// What is wrong with a tracked file, if anything is.
fn fault(path: &str, content: &[u8]) -> Option<&'static str> {
    let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
    let known = NAMES.contains(&path) || extension.is_some_and(|extension| EXTENSIONS.contains(&extension));
    if content.len() > FILE_BYTES_MAX {
        return Some("larger than FILE_BYTES_MAX");
    }
    if path.starts_with(CORPUS) {
        return None;
    }
    if !known {
        return Some("of no kind in EXTENSIONS, and not in NAMES");
    }
    (content.contains(&0) || std::str::from_utf8(content).is_err()).then_some("not text")
}

/// Paths that git tracks in `root`, separated by slashes; `None` in a copy of the sources without a repository, or, with a `skipped:` line,
/// if git is not installed.
fn tracked(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        println!("no repository, so no file is tracked");
        return None;
    }
    // A checkout may belong to another user than the one who runs the tests.
    let git =
        Command::new("git").args(["-c", "safe.directory=*", "ls-files", "-z"]).current_dir(root).output();
    if git.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        println!("skipped: no git; apt-get install git");
        return None;
    }
    let output = git.expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let paths = String::from_utf8(output.stdout).expect("paths are UTF-8");
    Some(paths.split_terminator('\0').map(str::to_owned).collect())
}

#[test]
fn only_source_text_is_tracked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(paths) = tracked(root) else { return };
    assert!(paths.len() > 500, "the tracked files were not found");
    let mut wrong = Vec::new();
    for path in paths {
        // A file that is deleted in the working tree is still listed until its deletion is staged.
        if let Ok(content) = std::fs::read(root.join(&path))
            && let Some(fault) = fault(&path, &content)
        {
            wrong.push(format!("{path}: {fault}"));
        }
    }
    assert!(wrong.is_empty(), "tracked by git: {wrong:#?}");
}

#[test]
fn downloads_and_build_results_are_not_source_text() {
    assert_eq!(fault("src/main.rs", b"fn main() {}"), None);
    assert_eq!(fault("tests/fuzz/corpus/object/nul", b"\0"), None);
    for (path, content) in [
        ("kubernetes-37.0-py3-none-any.whl", &b"PK\x03\x04"[..]),
        ("perf.data", b"text"),
        ("informerd", b"\x7fELF"),
        ("docs/Dockerfile", b"text"),
        ("static/app.js", b"text \0"),
        ("static/app.css", b"\xff\xfe"),
        ("tests/fuzz/corpus/object/large", &vec![b' '; FILE_BYTES_MAX + 1]),
    ] {
        assert!(fault(path, content).is_some(), "{path}");
    }
}
