//! Resume tokens: a client's position, made of resourceVersions alone, so that every replica accepts it.

use std::fmt;

use super::Resumable;
use crate::k8s::ResourceVersion;

/// `pods:48213`, several joined by commas: for each informer the resourceVersion up to which the client has
/// everything, or 0 if it has to start over ([`Resumable::No`]).
///
/// Versions are almost always decimal numbers (U1). Those of an aggregated API server may be any text; a byte of it that is
/// not allowed in a header, a URL or between commas is written as `~` and two hexadecimal digits.
///
/// The token of a bookmark ends with the part `.kind:bookmark`, as it promises less: see [`TokenKind`]. Release 0.1.0 takes
/// that part for one more resource, which the request does not name, and answers with RESET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    parts: Vec<(String, Resumable)>,
    kind: Option<TokenKind>,
}

/// The last part of a bookmark's token. No resource has a name that begins with a dot.
pub const BOOKMARK_PART: &str = ".kind:bookmark";

/// Why a token could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} is not resource:resourceVersion")]
pub struct TokenError {
    /// The part that is wrong.
    pub part: String,
}

/// Whether the client of a token may hold events from beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// The token of the last event. The client has everything up to its versions, and nothing beyond.
    PerEvent,
    /// The token of the last bookmark. The client has everything up to its versions, and perhaps events from beyond.
    Bookmark,
}

/// Longest token that is accepted, in bytes. A part has a name of at most 253 and a version of at most 39 characters; this
/// is enough for some hundred informers on one stream, and bounds the parsing of a header.
const TOKEN_BYTES_MAX: usize = 32 << 10;

impl ResumeToken {
    /// Reads a token.
    ///
    /// # Errors
    /// [`TokenError`] with the part that is not `resource:resourceVersion`.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let wrong = |part: &str| TokenError { part: part.chars().take(80).collect() };
        if text.len() > TOKEN_BYTES_MAX {
            return Err(wrong(text));
        }
        let part = |part: &str| {
            let (name, version) = part.trim().rsplit_once(':').ok_or_else(|| wrong(part))?;
            if name.is_empty() || !name.bytes().all(is_plain) {
                return Err(wrong(part));
            }
            let version = unescape(version).ok_or_else(|| wrong(part))?;
            Ok((name.to_owned(), ResourceVersion::new(&version).into()))
        };
        let (text, kind) = match text.strip_suffix(BOOKMARK_PART).and_then(|rest| rest.strip_suffix(',')) {
            Some(rest) => (rest, Some(TokenKind::Bookmark)),
            None => (text, None),
        };
        let parts = text.split(',').map(part).collect::<Result<_, _>>()?;
        Ok(Self { parts, kind })
    }

    /// The kind that it names; `None` for the token of an event or a snapshot, and for any token of release 0.1.0.
    pub fn kind(&self) -> Option<TokenKind> {
        self.kind
    }

    /// Writes the part of one informer.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_part(name: &str, position: &Resumable, out: &mut impl fmt::Write) -> fmt::Result {
        write!(out, "{name}:")?;
        let version = position.written();
        if version.is_number() {
            return write!(out, "{version}");
        }
        for byte in version.to_string().bytes() {
            if is_plain(byte) {
                out.write_char(char::from(byte))?;
            } else {
                write!(out, "~{byte:02X}")?;
            }
        }
        Ok(())
    }

    /// Where the client resumes in an informer.
    pub fn get(&self, name: &str) -> Option<&Resumable> {
        self.parts.iter().find(|(part, _)| part == name).map(|(_, position)| position)
    }

    /// Where the client was in an informer of the same resource that selects other objects, or holds other members of each.
    pub fn get_of_other_content(&self, name: &str) -> Option<&Resumable> {
        let is_of = |part: &str| part != name && without_digest(part) == without_digest(name);
        self.parts.iter().find(|(part, _)| is_of(part)).map(|(_, position)| position)
    }

    /// How many informers it names.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it names none; never true of a parsed one.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl<N: AsRef<str>, P: Into<Resumable>> FromIterator<(N, P)> for ResumeToken {
    fn from_iter<T: IntoIterator<Item = (N, P)>>(parts: T) -> Self {
        let parts = parts.into_iter().map(|(name, position)| (name.as_ref().to_owned(), position.into()));
        Self { parts: parts.collect(), kind: None }
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, position)) in self.parts.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            Self::write_part(name, position, f)?;
        }
        if self.kind == Some(TokenKind::Bookmark) {
            write!(f, ",{BOOKMARK_PART}")?;
        }
        Ok(())
    }
}

/// The name of an informer without the digest of its content. No resource and no namespace has an underscore in its name.
fn without_digest(name: &str) -> &str {
    name.split_once('_').map_or(name, |(name, _)| name)
}

/// Whether a byte is written in a token unchanged.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'/' | b'_')
}

/// The unescaped version; `None` for a text that no token contains.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'~' {
            let (digits, after) = after.split_at_checked(2)?;
            let digit = |digit: u8| char::from(digit).to_digit(16);
            bytes.push((digit(digits[0])? << 4 | digit(digits[1])?) as u8);
            rest = after;
        } else {
            bytes.push(Some(*first).filter(|byte| is_plain(*byte))?);
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_read_as_they_are_written() {
        for text in [
            "pods:48213",
            "pods:1,deployments.apps:2",
            "pods/ns-1:0",
            "pods:123456789012345678901234567890",
            "a:x~2C~C3~A9",
            "pods:1,deployments.apps:2,.kind:bookmark",
        ] {
            assert_eq!(ResumeToken::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_part_of_0_is_no_place_to_resume_from() {
        let token = ResumeToken::parse("pods:0,nodes:7").unwrap();
        assert_eq!(token.get("pods"), Some(&Resumable::No));
        assert_eq!(token.get("nodes"), Some(&Resumable::At(7.into())));
        assert_eq!(token.get("services"), None);
    }

    #[test]
    fn a_part_of_other_content_is_found_by_what_is_before_the_digest() {
        let token = ResumeToken::parse("pods_1f0a44c2:7,nodes:3,widgets/a-b_00aa11bb:5").unwrap();
        let other = |name: &str| token.get_of_other_content(name).map(ToString::to_string);
        assert_eq!(other("pods").as_deref(), Some("7"));
        assert_eq!(other("pods_877fccb3").as_deref(), Some("7"));
        assert_eq!(other("widgets/a-b").as_deref(), Some("5"));
        for name in ["pods_1f0a44c2", "nodes", "services", "widgets", "pods/a-b"] {
            assert_eq!(other(name), None, "{name}");
        }
    }

    #[test]
    fn a_bookmark_token_has_a_kind_that_older_releases_answer_with_reset() {
        let token = ResumeToken::parse("pods:7,.kind:bookmark").unwrap();
        assert_eq!((token.kind(), token.len()), (Some(TokenKind::Bookmark), 1));
        assert_eq!(ResumeToken::parse("pods:7").unwrap().kind(), None);
        // A kind that a later release may add: older releases see one part more than there are resources, and answer
        // with RESET.
        let later = ResumeToken::parse("pods:7,.kind:later").unwrap();
        assert_eq!((later.kind(), later.len()), (None, 2));
        // Release 0.1.0 parsed `name:version` of these characters between commas, and compared the number of parts.
        let (name, version) = BOOKMARK_PART.split_once(':').unwrap();
        assert!(name.bytes().chain(version.bytes()).all(is_plain));
    }

    #[test]
    fn a_bad_token_names_its_part() {
        for (text, part) in
            [("", ""), ("pods", "pods"), ("pods:1,:2", ":2"), ("pods:", "pods:"), ("p s:1", "p s:1")]
        {
            assert_eq!(ResumeToken::parse(text).unwrap_err().part, part);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_token_panic(text in "\\PC{0,60}") {
            if let Ok(token) = ResumeToken::parse(&text) {
                proptest::prop_assert_eq!(ResumeToken::parse(&token.to_string()).unwrap(), token);
            }
        }
    }
}
