//! Semantic versions.
//!
//! Source: `github.com/blang/semver/v4`, with which Kubernetes reads them.

/// A version. What it says of its build is checked when it is read, and has no part in comparisons.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Semver {
    /// Major, minor and patch.
    pub(super) numbers: [u64; 3],
    pre: PreRelease,
    /// Bytes of the identifiers. Versions that are equal have equally many, so that this takes no part in comparisons.
    pre_len: usize,
}

/// The identifiers after the hyphen. A version without any is above all those with some.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PreRelease {
    Some(Vec<Identifier>),
    None,
}

/// A number is below a text.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Text(String),
}

impl Semver {
    /// Reads a version.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("no Major.Minor.Patch elements found");
        };
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) = rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let mut numbers = [0; 3];
        for (number, text) in numbers.iter_mut().zip([major, minor, patch]) {
            *number = self::number(text)?;
        }
        if build.is_some_and(|build| !build.split('.').all(is_identifier)) {
            return Err("invalid build metadata");
        }
        let identifiers = match pre {
            None => PreRelease::None,
            Some(text) => PreRelease::Some(text.split('.').map(identifier).collect::<Result<_, _>>()?),
        };
        Ok(Self { numbers, pre: identifiers, pre_len: pre.map_or(0, str::len) })
    }

    /// Units of work of a comparison. An identifier may have a single byte.
    pub(super) fn comparison_work(&self, other: &Self) -> usize {
        1 + self.pre_len.min(other.pre_len)
    }

    /// Reads a version that may begin with `v`, have zeros before its numbers, or lack its last numbers.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse_tolerantly(text: &str) -> Result<Self, &'static str> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(without_zeros).collect();
        if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return Err("a short version cannot have pre-release or build metadata");
        }
        parts.resize(3, "0".into());
        Self::parse(&parts.join("."))
    }
}

/// Without zeros at the beginning, but with a digit there.
fn without_zeros(part: &str) -> String {
    let rest = part.trim_start_matches('0');
    if part.len() > 1 && !rest.starts_with(|first: char| first.is_ascii_digit()) {
        format!("0{rest}")
    } else if part.len() > 1 {
        rest.to_owned()
    } else {
        part.to_owned()
    }
}

fn number(text: &str) -> Result<u64, &'static str> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err("expected digits in major, minor and patch");
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err("a number must not begin with 0");
    }
    text.parse().map_err(|_| "a number is out of range")
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn identifier(text: &str) -> Result<Identifier, &'static str> {
    if !is_identifier(text) {
        return Err("invalid pre-release");
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { number(text).map(Identifier::Number) } else { Ok(Identifier::Text(text.to_owned())) }
}
