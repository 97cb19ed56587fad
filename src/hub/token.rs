//! A client's place, outside: made of resourceVersions alone, so that any replica takes it.

use std::fmt;

use crate::k8s::ResourceVersion;

/// `pods:48213`, several joined by commas: for each informer the resourceVersion up to which the client has
/// everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    parts: Vec<(String, ResourceVersion)>,
}

/// Why a token could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} is not resource:resourceVersion")]
pub struct TokenError {
    /// The part that is wrong.
    pub part: String,
}

/// Longest token taken, in bytes. A part is a name of at most 253 and a version of at most 39 characters;
/// this leaves room for some hundred informers on one stream, and bounds what a header can make us parse.
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
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/' | '_');
            if name.is_empty()
                || version.is_empty()
                || !name.chars().all(plain)
                || !version.chars().all(plain)
            {
                return Err(wrong(part));
            }
            Ok((name.to_owned(), ResourceVersion::new(version)))
        };
        let parts = text.split(',').map(part).collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }

    /// The version for an informer.
    pub fn get(&self, name: &str) -> Option<&ResourceVersion> {
        self.parts.iter().find(|(part, _)| part == name).map(|(_, version)| version)
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

impl FromIterator<(String, ResourceVersion)> for ResumeToken {
    fn from_iter<T: IntoIterator<Item = (String, ResourceVersion)>>(parts: T) -> Self {
        Self { parts: parts.into_iter().collect() }
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, version)) in self.parts.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{name}:{version}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_read_as_they_are_written() {
        for text in
            ["pods:48213", "pods:1,deployments.apps:2", "pods/ns-1:0", "pods:123456789012345678901234567890"]
        {
            assert_eq!(ResumeToken::parse(text).unwrap().to_string(), text);
        }
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
