//! Rules of the code that a machine can check: imports between rooms, the purity of pure rooms, the length of files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The room on the left may import the rooms on the right, and no others.
const IMPORTS: &[(&str, &[&str])] = &[
    ("k8s", &[]),
    ("cache", &["k8s"]),
    ("hub", &["k8s", "cache"]),
    ("encode", &["k8s", "cache", "hub"]),
    // The queue handles keys and never reads an object.
    ("queue", &["k8s"]),
    ("upstream", &["k8s"]),
    ("reflect", &["k8s", "cache", "upstream"]),
    ("serve", &["k8s", "cache", "hub", "encode", "queue"]),
    // The simulator is an oracle, so it shares no code with what it checks.
    ("sim", &["k8s"]),
    // The Config types of the rooms, and the grammar of selectors.
    ("config", &["k8s", "cache", "upstream", "queue"]),
    ("rbac", &["k8s", "config"]),
    ("telemetry", &["config"]),
    ("cli", &["k8s", "config", "rbac"]),
];

/// Path prefixes of pure code: no async, no clock, no socket. Time is an argument.
const PURE: &[&str] = &[
    "k8s/",
    "cache/",
    "encode/",
    "queue/",
    "reflect/machine/",
    "hub/source/",
    "hub/selection.rs",
    "hub/project.rs",
    "hub/live.rs",
    "hub/routes.rs",
    "hub/pacer.rs",
    "hub/generations.rs",
    "hub/token.rs",
];

/// Maximum lines of code in a file, without tests and documentation.
const CODE_LINES_MAX: usize = 500;

pub(super) struct Source {
    /// Path below `src/`, with slashes.
    pub(super) path: String,
    /// Text without the test module.
    pub(super) code: String,
}

impl Source {
    fn room(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or(&self.path);
        first.trim_end_matches(".rs")
    }
}

pub(super) fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder exists") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

pub(super) fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let mut sources = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
        if path.ends_with("tests.rs") || path.contains("/tests/") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("readable");
        // Not at one that is indented: that is of a method for tests, with code after it.
        let code = text.split("\n#[cfg(test)]").next().unwrap_or(&text).to_owned();
        sources.push(Source { path, code });
    }
    assert!(sources.len() > 50, "the sources were not found");
    sources
}

/// Lines that are neither blank nor comment.
pub(super) fn code_lines(code: &str) -> impl Iterator<Item = &str> {
    code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"))
}

/// The rooms named after `crate::`, also within braces.
fn imported(code: &str) -> BTreeSet<String> {
    let code: Vec<_> = code_lines(code).collect();
    let code = code.join("\n");
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut rooms = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            rooms.insert(word(rest));
            continue;
        };
        let (mut depth, mut start) = (0, true);
        for (index, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                _ if depth == 0 && start && !character.is_whitespace() => {
                    rooms.insert(word(&group[index..]));
                    start = false;
                }
                _ => {}
            }
        }
    }
    rooms
}

#[test]
fn room_imports_follow_the_import_table() {
    let mut wrong = Vec::new();
    for source in sources() {
        // These see all rooms: the program itself, and the exports for tests.
        if matches!(source.room(), "app" | "main" | "lib" | "program" | "testing") {
            continue;
        }
        let row = IMPORTS.iter().find(|(room, _)| *room == source.room());
        let (room, allowed) = row.unwrap_or_else(|| panic!("{} is in no room of the table", source.path));
        for other in imported(&source.code) {
            if other != *room && !allowed.contains(&&*other) {
                wrong.push(format!("{} imports {other}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "against the import table of lib.rs: {wrong:#?}");
}

#[test]
fn the_import_table_has_no_cycle() {
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    while placed.len() < IMPORTS.len() {
        let next = IMPORTS.iter().find(|(room, imports)| {
            !placed.contains(room) && imports.iter().all(|other| placed.contains(other))
        });
        placed.insert(next.expect("a cycle among the rest").0);
    }
}

#[test]
fn pure_rooms_have_no_async_no_clock_and_no_socket() {
    let mut wrong = Vec::new();
    for source in sources() {
        if !PURE.iter().any(|prefix| source.path.starts_with(prefix)) {
            continue;
        }
        for line in code_lines(&source.code) {
            for banned in [
                "async fn",
                "async move",
                ".await",
                "Instant::now",
                "SystemTime",
                "std::net",
                "tokio::net",
                "tokio::spawn",
            ] {
                if line.contains(banned) {
                    wrong.push(format!("{}: {banned}: hand it in from the room outside", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_stay_short_enough_to_be_read() {
    let long = |source: &Source| code_lines(&source.code).count() > CODE_LINES_MAX;
    let wrong: Vec<_> = sources().into_iter().filter(long).map(|source| source.path).collect();
    assert!(wrong.is_empty(), "more than {CODE_LINES_MAX} lines of code: {wrong:?}");
}

#[test]
fn testing_rs_exports_only_used_items() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["tests", "benches"].iter().for_each(|folder| rust_files(&root.join(folder), &mut files));
    let texts: String = files.iter().map(|file| std::fs::read_to_string(file).expect("readable")).collect();
    let used: BTreeSet<_> = words(&texts).collect();
    let door = std::fs::read_to_string(root.join("src/testing.rs")).expect("readable");
    let wrong: BTreeSet<_> = words(door.split_once("pub mod").expect("modules").1)
        .filter(|word| word.starts_with(char::is_uppercase) && !used.contains(word))
        .collect();
    assert!(wrong.is_empty(), "not used by tests and benchmarks: {wrong:?}");
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric() && character != '_')
}

#[test]
fn every_file_is_compiled() {
    let sources = sources();
    let all: String = sources.iter().map(|source| source.code.as_str()).collect();
    for source in &sources {
        let stem = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let name = stem.rsplit('/').next().unwrap_or(stem);
        let declared = all.contains(&format!("mod {name};")) || matches!(name, "lib" | "main");
        assert!(declared, "no module declares {}", source.path);
    }
}

#[test]
fn no_unfinished_code_is_left() {
    for source in sources() {
        for line in code_lines(&source.code) {
            for banned in ["todo!(", "unimplemented!(", "dbg!(", "unbounded_channel", "allow(dead_code)"] {
                assert!(!line.contains(banned), "{}: {banned}", source.path);
            }
        }
    }
}
