//! Query parameters. Unknown ones are refused by name.

use std::str::FromStr;

use percent_encoding::percent_decode_str;

use super::ApiError;
use crate::k8s::Cause;

/// The parameters of a request.
#[derive(Debug)]
pub(super) struct Params(Vec<(String, String)>);

/// Parameters that may be given more than once.
const REPEATABLE: &[&str] = &["namespace", "value"];

/// Number of wrong parameters that one answer names, so that it is not many times as long as the request.
const CAUSES_MAX: usize = 10;

/// Characters of a wrong value that the error repeats.
const VALUE_CHARS_MAX: usize = 200;

impl Params {
    /// Parses a query. `known` are the parameters that the path accepts, in groups that paths share.
    pub(super) fn parse(query: Option<&str>, known: &[&[&str]]) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        // Some clients send an empty pair before the first parameter (`?&limit=5`).
        for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(name), Some(value)) = (decode(name), decode(value)) else {
                return Err(ApiError::invalid("query", pair, "expected percent-encoded UTF-8"));
            };
            pairs.push((name, value));
        }
        Self::of_pairs(pairs, known)
    }

    /// Parameters that need no decoding.
    pub(super) fn of_pairs(
        given: impl IntoIterator<Item = (String, String)>,
        known: &[&[&str]],
    ) -> Result<Self, ApiError> {
        let known = known.concat();
        let mut pairs: Vec<(String, String)> = Vec::new();
        let mut causes = Vec::new();
        for (name, value) in given {
            let shown: String = value.chars().take(VALUE_CHARS_MAX).collect();
            let mut refuse = |reason: &str, message: String| {
                if causes.len() >= CAUSES_MAX {
                    return;
                }
                causes.push(Cause { reason: reason.into(), message, field: name.chars().take(80).collect() });
            };
            if !known.contains(&&*name) {
                let accepted = match known.is_empty() {
                    true => "the path has no parameters".to_owned(),
                    false => format!("accepted are {}", known.join(", ")),
                };
                let accepted = format!("unknown parameter (value {shown:?}); {accepted}");
                refuse("FieldValueNotSupported", accepted);
            } else if !REPEATABLE.contains(&&*name) && pairs.iter().any(|(other, _)| *other == name) {
                refuse("FieldValueDuplicate", format!("given more than once (value {shown:?})"));
            } else {
                pairs.push((name, value));
            }
        }
        if causes.is_empty() { Ok(Self(pairs)) } else { Err(ApiError::of_causes(causes)) }
    }

    /// Parameters that were given otherwise than in a query.
    pub(super) fn of(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// A parameter's value.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values of a repeatable one.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// A number between bounds.
    pub(super) fn number<T>(&self, name: &str, min: T, max: T) -> Result<Option<T>, ApiError>
    where
        T: FromStr + PartialOrd + std::fmt::Display + Copy,
    {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if min <= number && number <= max => Ok(Some(number)),
            _ => Err(ApiError::invalid(name, text, &format!("expected a whole number from {min} to {max}"))),
        }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some("true" | "1" | "") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(text) => Err(ApiError::invalid(name, text, "expected true or false")),
        }
    }
}

fn decode(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8().ok().map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(query: &str) -> String {
        Params::parse(Some(query), &[&["limit", "namespace"]]).unwrap_err().status().message.clone()
    }

    #[test]
    fn unknown_and_repeated_parameters_are_refused_by_name() {
        let params =
            Params::parse(Some("&namespace=a&namespace=b%2Fc&limit=5"), &[&["limit", "namespace"]]).unwrap();
        assert_eq!(params.all("namespace").collect::<Vec<_>>(), ["a", "b/c"]);
        assert_eq!(params.number("limit", 1_u32, 10).unwrap(), Some(5));
        assert_eq!(
            message("lim=5&x=1"),
            r#"lim: unknown parameter (value "5"); accepted are limit, namespace; x: unknown parameter (value "1"); accepted are limit, namespace"#
        );
        assert_eq!(message("limit=1&limit=2"), r#"limit: given more than once (value "2")"#);
        assert!(Params::parse(Some("limit=%ff"), &[&["limit"]]).is_err());
    }

    #[test]
    fn an_invalid_number_is_refused_with_the_accepted_range() {
        let params = Params::parse(Some("limit=abc"), &[&["limit"]]).unwrap();
        let error = params.number("limit", 1_u32, 10).unwrap_err();
        assert_eq!(
            error.status().message,
            r#"limit: invalid value "abc": expected a whole number from 1 to 10"#
        );
    }
}
