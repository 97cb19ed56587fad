//! Rules of the maintainers' documents that a machine can check: the files, types, functions and constants that they name exist,
//! and so do the rules that comments cite.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::tidy::rust_files;

/// Documents that name parts of the code, in code spans: `hub/live.rs`, `Live::advance`, `LiveLoop`.
const MAPS: &[&str] = &["docs/architecture.md", GLOSSARY];

/// Rows of `| **word** | what carries it in the code | meaning |`.
const GLOSSARY: &str = "docs/glossary.md";

/// Rooms whose public types must be in the glossary.
const VOCABULARY: &[&str] = &["cache", "hub", "reflect", "encode"];

/// Types that need no entry: each room has one.
const PLAIN_TYPES: &[&str] = &["Config"];

/// Words that have a meaning of their own here, beyond being the name of a type.
const HOUSE_WORDS: &[&str] = &[
    "bookmark",
    "cache",
    "catch-up",
    "change",
    "cursor",
    "delta",
    "event",
    "frame",
    "gap",
    "generation",
    "history",
    "hub",
    "index",
    "informer",
    "journal",
    "lane",
    "pass",
    "position",
    "projection",
    "reflector",
    "relist",
    "resource",
    "resourceVersion",
    "revision",
    "room",
    "round",
    "scope",
    "selection",
    "selector",
    "setting",
    "snapshot",
    "store",
    "subscriber",
    "subscription",
    "token",
    "tombstone",
    "turn",
    "view",
];

/// Documents whose headings define rules: `### U9 A server …`.
const RULES: &[&str] = &["docs/architecture.md", "docs/semantics.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// The Rust files below some folders: path from the root, and text.
fn rust(folders: &[&str]) -> Vec<(String, String)> {
    let mut files = Vec::new();
    folders.iter().for_each(|folder| rust_files(&root().join(folder), &mut files));
    assert!(!files.is_empty(), "no Rust files below {folders:?}");
    let named = files.into_iter().map(|path| {
        let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
        (name, std::fs::read_to_string(&path).expect("readable"))
    });
    named.collect()
}

/// The texts between backticks in a line; blocks of code are left out.
fn code_spans(text: &str) -> Vec<&str> {
    let mut spans = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            spans.extend(line.split('`').skip(1).step_by(2));
        }
    }
    spans
}

fn is_word(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_part)
}

fn is_type(word: &str) -> bool {
    is_word(word)
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.contains(|c: char| c.is_ascii_lowercase())
}

fn is_constant(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    word.len() > 2 && word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(is_part)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The declarations of the code: types, functions, constants, macros and modules, each as `struct Live` or `fn
/// advance`.
struct Declared(BTreeSet<String>);

impl Declared {
    fn of(sources: &[(String, String)]) -> Self {
        let mut names = BTreeSet::new();
        for (_, text) in sources {
            let words: Vec<_> = words(text).collect();
            for pair in words.windows(2) {
                if let [
                    "struct" | "enum" | "trait" | "type" | "fn" | "const" | "static" | "mod" | "macro_rules",
                    _,
                ] = pair
                {
                    names.insert(format!("{} {}", pair[0], pair[1]));
                }
            }
        }
        Self(names)
    }

    fn has(&self, kinds: &[&str], name: &str) -> bool {
        kinds.iter().any(|kind| self.0.contains(&format!("{kind} {name}")))
    }
}

/// Why a code span that names a part of the code is wrong; `None` if it is right or names something else.
fn wrong_name(span: &str, sources: &[(String, String)], declared: &Declared) -> Option<String> {
    const TYPES: &[&str] = &["struct", "enum", "trait", "type"];
    if span.ends_with(".rs") || span.ends_with('/') && !span.contains(' ') && !span.starts_with('/') {
        let is_there = root().join(span).exists() || root().join("src").join(span).exists();
        return (!is_there).then(|| format!("{span}: no such file"));
    }
    if let Some(name) = span.strip_suffix('!').filter(|name| is_word(name)) {
        return (!declared.has(&["macro_rules"], name)).then(|| format!("{span}: no such macro"));
    }
    let name = span.strip_suffix("()").unwrap_or(span);
    if let Some((parent, item)) = name.rsplit_once("::") {
        let parent = parent.rsplit("::").next().unwrap_or(parent);
        if !is_word(parent) || !is_word(item) {
            return None;
        }
        let is_parent = declared.has(TYPES, parent) || declared.has(&["mod"], parent);
        // A method or a variant, in a file that names its type.
        let is_item = |(_, text): &&(String, String)| {
            let mut words = words(text).collect::<Vec<_>>().into_iter().peekable();
            words.by_ref().any(|word| word == parent) && text.contains(item)
        };
        let is_there = if is_type(item) {
            sources.iter().any(|source| is_item(&source))
        } else {
            declared.has(&["fn", "const"], item)
        };
        return (!is_parent || !is_there).then(|| format!("{span}: no such item"));
    }
    if span.ends_with("()") && is_word(name) {
        return (!declared.has(&["fn"], name)).then(|| format!("{span}: no such function"));
    }
    if is_constant(name) {
        // Texts of protocols are in capitals, too: `RESET`, `GET`, `KUBEBUILDER_ASSETS`.
        let is_text = |text: &str| text.split('"').any(|part| words(part).eq([name]));
        let is_there =
            declared.has(&["const", "static"], name) || sources.iter().any(|(_, text)| is_text(text));
        return (!is_there).then(|| format!("{span}: no such constant"));
    }
    (is_type(name) && !declared.has(TYPES, name)).then(|| format!("{span}: no such type"))
}

#[test]
fn names_in_the_maintainers_documents_exist() {
    let sources = rust(&["src", "tests", "benches"]);
    let declared = Declared::of(&sources);
    let mut wrong = Vec::new();
    for map in MAPS {
        for span in code_spans(&read(map)) {
            wrong.extend(wrong_name(span, &sources, &declared).map(|why| format!("{map}: {why}")));
        }
    }
    assert!(wrong.is_empty(), "rename it there, too: {wrong:#?}");
}

/// Whether a word is the number of a rule: U for rules of the API server, D for rules of its clients, P for
/// informerd's promises.
fn is_rule(word: &str) -> bool {
    let number = word.strip_prefix(['U', 'D', 'P']).unwrap_or_default();
    (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The rule that a line defines, if it is such a heading.
fn defined_in(line: &str) -> Option<&str> {
    let heading = line.strip_prefix("### ")?;
    words(heading).next().filter(|word| is_rule(word))
}

/// Markdown files of the root and of `docs/`.
fn documents() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in ["", "docs/"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
            let name = entry.expect("readable").file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                let path = format!("{folder}{name}");
                let text = read(&path);
                found.push((path, text));
            }
        }
    }
    found
}

#[test]
fn every_cited_rule_is_defined_and_every_rule_is_cited() {
    let mut defined = BTreeMap::new();
    for document in RULES {
        for rule in read(document).lines().filter_map(defined_in) {
            let twice = defined.insert(rule.to_owned(), *document);
            assert!(twice.is_none(), "{rule} is defined twice");
        }
    }
    let (sources, documents) = (rust(&["src", "tests", "benches"]), documents());
    let mut cited = BTreeSet::new();
    let mut unknown = Vec::new();
    for (path, text) in sources.iter().chain(&documents) {
        // A rule must be cited by code or a test.
        let counts = path.ends_with(".rs") && !path.ends_with("tidy_docs.rs");
        for rule in words(text).filter(|word| is_rule(word)) {
            match defined.contains_key(rule) {
                true if counts => drop(cited.insert(rule)),
                true => {}
                false => unknown.push(format!("{path} cites {rule}")),
            }
        }
    }
    assert!(unknown.is_empty(), "define it in one of {RULES:?}: {unknown:#?}");
    let unused: Vec<_> = defined.iter().filter(|(rule, _)| !cited.contains(&***rule)).collect();
    assert!(unused.is_empty(), "no code or test cites these rules any more: {unused:?}");
}

/// The words that the glossary defines.
fn glossary_words() -> Vec<String> {
    let text = read(GLOSSARY);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| **")?.split_once("**"));
    rows.map(|(word, _)| word.to_owned()).collect()
}

/// The types that a room exports: `pub use` and `pub struct` in its `mod.rs`.
fn types_at_the_door(room: &str) -> BTreeSet<String> {
    let door = read(&format!("src/{room}/mod.rs"));
    let mut types = BTreeSet::new();
    for (at, start) in door.match_indices("\npub ") {
        let item = &door[at + start.len()..];
        let end = if item.starts_with("use ") { item.find(';') } else { item.find(['{', ';', '=']) };
        let item = &item[..end.unwrap_or(item.len())];
        if ["use ", "struct ", "enum ", "trait ", "type "].iter().any(|kind| item.starts_with(kind)) {
            types.extend(words(item).filter(|word| is_type(word)).map(str::to_owned));
        }
    }
    types
}

#[test]
fn glossary_words_are_defined_once_used_and_have_code_names() {
    let words = glossary_words();
    let mut used = rust(&["src"]).into_iter().map(|(_, text)| text).collect::<String>();
    used.extend(documents().into_iter().filter(|(path, _)| path != GLOSSARY).map(|(_, text)| text));
    let used = used.to_lowercase();
    let mut seen = BTreeSet::new();
    for word in &words {
        assert!(seen.insert(word.to_lowercase()), "{word:?} is defined twice");
        assert!(used.contains(&word.to_lowercase()), "{word:?} is used nowhere: remove it from {GLOSSARY}");
    }
    for line in read(GLOSSARY).lines().filter(|line| line.starts_with("| **")) {
        let carriers = line.split(" | ").nth(1).unwrap_or_default();
        assert!(carriers.contains('`'), "nothing carries the word of {line:?}");
    }
}

#[test]
fn house_words_and_public_types_are_in_the_glossary() {
    let words = glossary_words();
    for word in HOUSE_WORDS {
        assert!(words.iter().any(|defined| defined == word), "{word:?} is not defined in {GLOSSARY}");
    }
    let maps: String = MAPS.iter().map(|map| read(map)).collect();
    let spans: BTreeSet<_> = code_spans(&maps).into_iter().flat_map(|span| span.split("::")).collect();
    let mut undefined = Vec::new();
    for room in VOCABULARY {
        let types = types_at_the_door(room);
        assert!(types.len() > 10, "the types of {room} were not found");
        let missing =
            types.iter().filter(|name| !spans.contains(&***name) && !PLAIN_TYPES.contains(&&***name));
        undefined.extend(missing.map(|name| format!("{room}::{name}")));
    }
    assert!(undefined.is_empty(), "say in {GLOSSARY} what these types are: {undefined:#?}");
}
