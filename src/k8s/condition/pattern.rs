//! Regular expressions of conditions: Kubernetes' (RE2), in the syntax of the crate `regex`.

use regex::{Regex, RegexBuilder};
use regex_automata::dfa::{StartKind, dense};
use regex_automata::nfa::thompson;

/// Size of a compiled expression, in bytes.
const BYTES_MAX: usize = 64 << 10;
/// Memory of what searches remember of an expression, in bytes, for each direction and thread.
const CACHE_BYTES_MAX: usize = 256 << 10;
/// Size of an automaton, in bytes, that is at most built to find out whether searches are cheap. It is a part of the memory of searches,
/// so that they never have to forget.
const AUTOMATON_BYTES_MAX: usize = CACHE_BYTES_MAX / 4;
/// Bytes of text that a cheap search reads in the time of one unit of work.
const CHEAP_AT_ONCE: usize = 8;
/// Units of work for a byte of text and each KiB of an expression where a search may follow all its alternatives at once. The worst
/// searches take five times as long.
const COSTLY_EACH: usize = 4;

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    price: Price,
}

/// What a search costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Price {
    /// Each byte of the text is one step.
    Cheap,
    /// Each byte may take as many steps as the expression has states. Its size is in KiB.
    Costly(usize),
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, regex::Error> {
        let text = with_ascii_classes(text);
        let build = |limit: usize| {
            let mut builder = RegexBuilder::new(&text);
            builder.size_limit(limit).dfa_size_limit(CACHE_BYTES_MAX).build()
        };
        let regex = build(BYTES_MAX)?;
        let is_cheap = has_small_automaton(&text, false) && has_small_automaton(&text, true);
        let price = if is_cheap {
            Price::Cheap
        } else {
            let sizes = (0..).map(|power| 1 << power).take_while(|kib| *kib << 10 < BYTES_MAX);
            let fits = |kib: &usize| build(*kib << 10).is_ok();
            Price::Costly(sizes.clone().find(fits).unwrap_or(BYTES_MAX >> 10))
        };
        Ok(Self { regex, price })
    }

    /// Units of work of a search in so many bytes of text.
    pub(super) fn work(&self, bytes: usize) -> usize {
        match self.price {
            Price::Cheap => 1 + bytes / CHEAP_AT_ONCE,
            Price::Costly(kib) => 1 + bytes.saturating_mul(COSTLY_EACH * kib),
        }
    }

    /// The compiled expression. Its caller has counted the work.
    pub(super) fn regex(&self) -> &Regex {
        &self.regex
    }
}

/// Whether an expression has an automaton that takes each byte in one step, and that fits into memory.
fn has_small_automaton(text: &str, reversed: bool) -> bool {
    let start = if reversed { StartKind::Anchored } else { StartKind::Unanchored };
    let limit = Some(AUTOMATON_BYTES_MAX);
    let config = dense::Config::new().start_kind(start).accelerate(false);
    let config = config.dfa_size_limit(limit).determinize_size_limit(limit);
    let states = thompson::Config::new().reverse(reversed).nfa_size_limit(Some(BYTES_MAX));
    dense::Builder::new().configure(config).thompson(states).build(text).is_ok()
}

/// An expression whose classes `\d`, `\w`, `\s` and `\b` are those of ASCII, as in RE2. In the crate `regex` they are those of Unicode,
/// which compile to many kilobytes.
fn with_ascii_classes(text: &str) -> String {
    let (mut all, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        all.push_str(&rest[..at]);
        let escaped = rest[at..].chars().nth(1);
        let len = 1 + escaped.map_or(0, char::len_utf8);
        all.push_str(match escaped {
            Some('d') => "[0-9]",
            Some('D') => "[^0-9]",
            Some('w') => "[0-9A-Za-z_]",
            Some('W') => "[^0-9A-Za-z_]",
            Some('s') => r"[\t\n\f\r\x20]",
            Some('S') => r"[^\t\n\f\r\x20]",
            Some('b') => r"(?-u:\b)",
            Some('B') => r"(?-u:\B)",
            Some(_) | None => &rest[at..at + len],
        });
        rest = &rest[at + len..];
    }
    all.push_str(rest);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_ascii() {
        for (pattern, text, expected) in [
            (r"^\d+$", "42", true),
            (r"^\d+$", "٣", false),
            (r"^\w+@[\w.]+$", "a_1@b.c", true),
            (r"^\w+$", "ñ", false),
            (r"^[^\d\s]+$", "a-b", true),
            (r"^[^\d\s]+$", "a b", false),
            (r"^\S\s\D\W$", "a\tb!", true),
            (r"\bweb\b", "a-web.b", true),
            (r"\bweb\b", "a-webs", false),
            (r"a\Bb", "ab", true),
            (r"^\\d$", r"\d", true),
            (r"^\\\d$", r"\7", true),
            (r"^ñ\.\d$", "ñ.1", true),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().regex().is_match(text), expected, "{pattern} {text}");
        }
        assert!(Pattern::parse("a\\").is_err() && Pattern::parse(r"\ñ").is_err());
    }

    #[test]
    fn what_people_search_for_is_cheap() {
        for pattern in [
            "",
            "a",
            "^web-[a-z0-9]+$",
            r"^\w+@\w+\.example\.com$",
            r"^\d{1,3}(\.\d{1,3}){3}$",
            "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            "(?i)error|warning|panic",
            "^registry\\.example\\.com/.*:v[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.]+)?$",
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().price, Price::Cheap, "{pattern}");
        }
    }

    #[test]
    fn a_search_that_may_follow_many_alternatives_is_costly() {
        // After each letter up to m it has to count to 500 anew.
        for pattern in [r"[a-m][\t-~]{500}[^\t-~]", r"(a|b)*a(a|b){20}c"] {
            let pattern = Pattern::parse(pattern).unwrap();
            assert!(matches!(pattern.price, Price::Costly(_)), "{pattern:?}");
            assert!(pattern.work(1 << 20) > 4 << 20, "{pattern:?}");
        }
    }
}
