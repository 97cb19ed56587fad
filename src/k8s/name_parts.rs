//! Finds an object's namespace, and the parts of its name, in its other texts. The pod `web-5d78-x7x2c` has the owner `web-5d78` and a
//! container `web`.

use std::ops::Range;

use memchr::memmem;

/// Fewest bytes of a text that is worth a mark of two bytes.
const LEN_MIN: usize = 3;

/// Number of parts of a name, at most.
pub(super) const PARTS_MAX: u8 = 16;

/// Where the parts of a name end, in the order of their numbers. The part with the number 0 is the whole name, and each of the next ones is
/// without one more of the last pieces. Dashes and dots separate pieces.
pub(super) fn ends_of(name: &str) -> impl Iterator<Item = usize> {
    let separators = memchr::memchr2_iter(b'-', b'.', name.as_bytes()).rev();
    std::iter::once(name.len()).chain(separators).take(usize::from(PARTS_MAX))
}

/// Where a text has parts of a name as words of their own, and their numbers. At each place it is the longest part that the text has there.
pub(super) fn parts_in<'a>(name: &'a str, text: &'a [u8]) -> impl Iterator<Item = (Range<usize>, u8)> {
    let ends: Vec<_> = ends_of(name).take_while(|end| is_worth_a_mark(&name[..*end])).collect();
    // Each part begins with the shortest one.
    let starts = ends.last().map(|end| memmem::find_iter(text, &name[..*end]));
    starts.into_iter().flatten().filter_map(move |start| {
        let number = ends.iter().position(|end| is_word_at(start, &name[..*end], text))?;
        Some((start..start + ends[number], number as u8))
    })
}

/// Where a text has this one as a word of its own.
pub(super) fn words_in<'a>(word: &'a str, text: &'a [u8]) -> impl Iterator<Item = Range<usize>> {
    let starts = is_worth_a_mark(word).then(|| memmem::find_iter(text, word));
    let starts = starts.into_iter().flatten().filter(|start| is_word_at(*start, word, text));
    starts.map(|start| start..start + word.len())
}

/// Whether a text is long enough for a mark. One without a letter may be a part of a number, a time or an address, which have forms of their
/// own.
fn is_worth_a_mark(text: &str) -> bool {
    text.len() >= LEN_MIN && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Whether a text has this word at a place, with no letter or digit before and behind it. A member's whole key is none: other objects have it,
/// too.
fn is_word_at(start: usize, word: &str, text: &[u8]) -> bool {
    let (before, rest) = text.split_at(start);
    let Some(rest) = rest.strip_prefix(word.as_bytes()) else { return false };
    let is_key = rest.starts_with(b"\":") && before.ends_with(b"\"");
    let is_within_word = [before.last(), rest.first()].into_iter().flatten().any(u8::is_ascii_alphanumeric);
    !is_key && !is_within_word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'t>(name: &str, text: &'t str) -> Vec<(&'t str, u8)> {
        parts_in(name, text.as_bytes()).map(|(at, number)| (&text[at], number)).collect()
    }

    #[test]
    fn a_part_ends_before_a_separator() {
        let parts_of = |name| ends_of(name).map(|end| &name[..end]).collect::<Vec<_>>();
        let expected = ["my-web.v1-5d78-x7", "my-web.v1-5d78", "my-web.v1", "my-web", "my"];
        assert_eq!(parts_of("my-web.v1-5d78-x7"), expected);
        assert_eq!([parts_of(""), parts_of("-")], [vec![""], vec!["-", ""]]);
        // Names of custom resources in a broken server may be any text.
        assert_eq!(parts_of("é-ü.1"), ["é-ü.1", "é-ü", "é"]);
        let many = "a".to_owned() + &"-a".repeat(20);
        assert_eq!(ends_of(&many).collect::<Vec<_>>(), (11..=41).rev().step_by(2).collect::<Vec<_>>());
    }

    #[test]
    fn the_longest_part_at_a_place_is_found() {
        let text = "web-5d78 web web-5d78-x7 web-5d7 /web:v1 web-cache web.shop";
        let expected =
            [("web-5d78", 1), ("web", 2), ("web-5d78-x7", 0), ("web", 2), ("web", 2), ("web", 2), ("web", 2)];
        assert_eq!(parts("web-5d78-x7", text), expected);
    }

    #[test]
    fn a_part_is_a_word_of_its_own() {
        assert_eq!(parts("web-1", "webs aweb 1web web1 web-12 _web_"), [("web", 1), ("web", 1)]);
    }

    #[test]
    fn a_whole_key_is_left() {
        let text = r#"{"web":"web","web-2":{"a":"web:"}}"#;
        assert_eq!(parts("web-1", text), [("web", 1), ("web", 1), ("web", 1)]);
        assert_eq!(parts("web", r#"{"web":{"web-1":"web"}}"#), [("web", 0), ("web", 0)]);
        assert_eq!(words_in("web", br#"{"web":"web"}"#).map(|at| at.start).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn short_texts_and_numbers_are_left() {
        assert_eq!(parts("ab-web", "ab ab-web"), [("ab-web", 0)]);
        assert_eq!(parts("2026-11-backup", "2026-11-27T00:00:00Z 2026-11-backup"), [("2026-11-backup", 0)]);
        assert_eq!(parts("ab", "ab"), []);
        assert_eq!(parts("", "a"), []);
        assert_eq!(parts("-.", "-."), []);
    }

    #[test]
    fn words_are_found() {
        let text = "shop.svc shops web.shop";
        let found: Vec<_> = words_in("shop", text.as_bytes()).map(|at| at.start).collect();
        assert_eq!(found, [0, 19]);
        assert_eq!([words_in("", b"a").count(), words_in("ab", b"ab").count()], [0, 0]);
    }
}
