//! A check that the files of a room do not import each other in a circle: a file can be read after those that it imports.
//!
//! It reads `use`s, and paths within the code. What it cannot see is a call of a method whose `impl` is in another file than its
//! type.

use std::collections::{BTreeMap, BTreeSet};

use super::tidy::{code_lines, sources};

/// For each file the files that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// A path in the code of a file, from the root of the crate: `cache::index::Step`.
struct Named {
    path: String,
    /// The name by which the file knows what the path leads to, if a `use` imports it.
    alias: Option<String>,
    /// Whether it only hands out what a file below this one defines: `pub use index::Step` in `cache/mod.rs`.
    is_door: bool,
}

/// The files by the path of their module, which is `cache::index` for `cache/index.rs` and `cache` for `cache/mod.rs`, and
/// the paths that each names.
struct Modules(BTreeMap<String, Vec<Named>>);

impl Modules {
    fn read(files: &[(String, String)]) -> Self {
        let name = |path: &str| path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        let mut modules = Self(files.iter().map(|(path, _)| (name(path), Vec::new())).collect());
        for (path, code) in files {
            let named = modules.named_in(&name(path), code);
            modules.0.insert(name(path), named);
        }
        modules
    }

    fn named_in(&self, module: &str, code: &str) -> Vec<Named> {
        let (imports, rest) = split_imports(code);
        let rest = without_visibilities(&rest);
        let mut found = Vec::new();
        for import in &imports {
            let (is_public, tree) = split_visibility(import);
            for leaf in leaves(tree.trim_start_matches("use ")) {
                let (path, alias) = leaf.split_once(" as ").unwrap_or((&leaf, ""));
                let path = path.trim_end_matches("::self");
                let last = path.rsplit("::").next().unwrap_or(path);
                let alias = Some(if alias.is_empty() { last } else { alias }.to_owned());
                if let Some(path) = self.absolute(module, path) {
                    let is_door = is_public && path.starts_with(&format!("{module}::"));
                    found.push(Named { path, alias, is_door });
                }
            }
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let inline = rest.split(|c| !is_part(c)).filter(|path| path.contains("::"));
        let inline = inline.filter_map(|path| self.absolute(module, path));
        found.extend(inline.map(|path| Named { path, alias: None, is_door: false }));
        found
    }

    /// A path of a module's code from the root of the crate; `None` if it leads to no module of the crate.
    fn absolute(&self, module: &str, path: &str) -> Option<String> {
        let (first, rest) = path.split_once("::").unwrap_or((path, ""));
        let parent = || module.rsplit_once("::").map_or("", |(parent, _)| parent);
        let below = format!("{module}::{first}");
        match first {
            "crate" => Some(rest.to_owned()),
            "super" => self.absolute(parent(), &format!("self::{rest}")),
            "self" if rest.starts_with("super::") => self.absolute(module, rest),
            "self" => Some(format!("{module}::{rest}")),
            _ => self.0.contains_key(&below).then(|| format!("{module}::{path}")),
        }
    }

    /// The module that defines what a path leads to.
    fn defining(&self, path: &str) -> Option<&str> {
        let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]);
        let at = ends.filter(|at| self.0.contains_key(&path[..*at])).last()?;
        let (module, named) = self.0.get_key_value(&path[..at])?;
        let rest = path[at..].trim_start_matches("::");
        let name = rest.split("::").next()?;
        let through = named.iter().find(|one| one.alias.as_deref() == Some(name) && one.path != path);
        through.map_or(Some(module), |through| self.defining(&through.path))
    }

    /// The imports among the files of one room.
    fn imports(&self, room: &str) -> Imports {
        let is_here = |module: &str| module.split("::").next() == Some(room);
        let modules = self.0.iter().filter(|(module, _)| is_here(module));
        let imports = modules.map(|(module, named)| {
            let paths = named.iter().filter(|one| !one.is_door).map(|one| &one.path);
            let files = paths.filter_map(|path| self.defining(path));
            let files = files.filter(|file| is_here(file) && file != module);
            (module.clone(), files.map(str::to_owned).collect())
        });
        imports.collect()
    }
}

/// The code without its `pub(in path)`, as nothing is imported by that.
fn without_visibilities(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default();
    let rest = parts.filter_map(|part| part.split_once(')')).map(|(_, after)| after);
    std::iter::once(first).chain(rest).collect()
}

/// The imports of a file, without their semicolons, and the rest of its code. Comments are left out.
fn split_imports(code: &str) -> (Vec<String>, String) {
    let (mut imports, mut rest, mut import) = (Vec::new(), String::new(), String::new());
    for line in code_lines(code) {
        if import.is_empty() && !split_visibility(line).1.starts_with("use ") {
            rest.push_str(line);
            rest.push('\n');
            continue;
        }
        import.push_str(line);
        if let Some(whole) = import.strip_suffix(';') {
            imports.push(whole.to_owned());
            import.clear();
        }
    }
    (imports, rest)
}

/// Whether a line begins with `pub`, `pub(super)` or the like, and what follows.
fn split_visibility(line: &str) -> (bool, &str) {
    match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => (true, rest.split_once(") ").map_or("", |(_, rest)| rest)),
        Some(rest) if rest.starts_with(' ') => (true, rest.trim_start()),
        Some(_) | None => (false, line),
    }
}

/// The paths of an import: `a::b` and `a::c` of `a::{b, c}`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((start, group)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for character in group.trim_end().strip_suffix('}').expect("the group ends").chars() {
        match character {
            ',' if depth == 0 => parts.push(String::new()),
            _ => {
                depth += i32::from(character == '{') - i32::from(character == '}');
                parts.last_mut().expect("it begins with one").push(character);
            }
        }
    }
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(|part| leaves(&format!("{}{part}", start.trim()))).collect()
}

/// The files of circles, and those between two circles, with their imports among them.
fn circles(mut imports: Imports) -> Imports {
    loop {
        let imported: BTreeSet<String> = imports.values().flatten().cloned().collect();
        let before = imports.len();
        imports.retain(|file, others| !others.is_empty() && imported.contains(file));
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        imports.values_mut().for_each(|others| others.retain(|other| left.contains(other)));
        if imports.len() == before {
            return imports;
        }
    }
}

#[test]
fn files_of_a_room_do_not_import_each_other_in_a_circle() {
    let files: Vec<_> = sources().into_iter().map(|source| (source.path, source.code)).collect();
    let modules = Modules::read(&files);
    let rooms: BTreeSet<_> = modules.0.keys().filter_map(|module| module.split("::").next()).collect();
    for room in rooms {
        let circles = circles(modules.imports(room));
        assert!(circles.is_empty(), "these files import each other in a circle: {circles:#?}");
    }
}

/// The files of circles, and their imports, among files with these imports: `a: b c`.
fn found(imports: &[&str]) -> Vec<String> {
    let split = |line: &&str| {
        let (file, others) = line.split_once(':').expect("a colon");
        (file.to_owned(), others.split_whitespace().map(str::to_owned).collect())
    };
    let left = circles(imports.iter().map(split).collect());
    left.into_iter().map(|(file, others)| format!("{file}:{}", Vec::from_iter(others).join(" "))).collect()
}

#[test]
fn circles_are_found_without_the_files_around_them() {
    assert_eq!(found(&["top: middle low", "middle: low", "low:"]), Vec::<String>::new());
    assert_eq!(found(&["top: a", "a: b low", "b: c", "c: a", "low:"]), ["a:b", "b:c", "c:a"]);
}

#[test]
fn imports_are_read_wherever_a_name_comes_from() {
    let files = [
        ("room/mod.rs", "mod low;\npub use low::{Thing, other as renamed};\npub struct Config;"),
        (
            "room/low.rs",
            "use std::fmt;\nuse super::Config;\npub(in crate::other) fn f() { super::high::sub::g() }",
        ),
        (
            "room/high/mod.rs",
            "pub(super) use sub::g;\n// use super::low;\nuse crate::{room::{renamed, Config}, b};",
        ),
        ("room/high/sub.rs", "use crate::other::Thing;\nfn g() -> super::super::Thing { todo() }"),
        ("room/seen.rs", "pub(in crate::room) struct Seen;"),
        ("other.rs", "use crate::room::Thing;"),
    ];
    let files = files.map(|(path, code)| (path.to_owned(), code.to_owned()));
    let imports = Modules::read(&files).imports("room");
    let of = |file: &str| imports[file].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of("room"), Vec::<&str>::new());
    assert_eq!(of("room::low"), ["room", "room::high::sub"]);
    assert_eq!(of("room::high"), ["room", "room::low"]);
    assert_eq!(of("room::high::sub"), ["room::low"]);
    assert_eq!(of("room::seen"), Vec::<&str>::new());
    assert!(circles(imports).contains_key("room::low"));
}
