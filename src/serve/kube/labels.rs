//! The API server's error text for an invalid label selector.
//!
//! Our own parser has better errors, but people search for the API server's text. So this follows its parser up to the first
//! mistake. Source: apimachinery `labels/selector.go`.

/// The error text for an invalid selector; `otherwise` if the API server would accept it.
pub(super) fn refusal(text: &str, otherwise: &str) -> String {
    let mut parser = Parser { tokens: scan(text), at: 0 };
    parser.parse().err().unwrap_or_else(|| otherwise.to_owned())
}

const SIGNS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

/// The lexer: words and signs.
fn scan(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(BLANKS);
    while !rest.is_empty() {
        let special = |c: char| BLANKS.contains(&c) || "=!(),><".contains(c);
        let word = || rest.find(special).unwrap_or(rest.len());
        let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
        let (token, after) = rest.split_at(sign.map_or_else(word, str::len));
        tokens.push(token);
        rest = after.trim_start_matches(BLANKS);
    }
    tokens
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !SIGNS.contains(&token)
}

struct Parser<'t> {
    tokens: Vec<&'t str>,
    at: usize,
}

impl<'t> Parser<'t> {
    /// The next token; empty at the end.
    fn peek(&self) -> &'t str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn take(&mut self) -> &'t str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn parse(&mut self) -> Result<(), String> {
        loop {
            match self.peek() {
                "" => return Ok(()),
                token if is_word(token) || token == "!" => {
                    self.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?;
                }
                sign => return Err(format!("found '{sign}', expected: !, identifier, or 'end of string'")),
            }
            match self.take() {
                "" => return Ok(()),
                "," => {
                    let next = self.peek();
                    if !is_word(next) && next != "!" {
                        return Err(format!("found '{next}', expected: identifier after ','"));
                    }
                }
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<(), String> {
        let mut key = self.take();
        let absent = key == "!";
        if absent {
            key = self.take();
        }
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        check_key(key)?;
        if absent || matches!(self.peek(), "" | ",") {
            return Ok(());
        }
        let values = match self.take() {
            "in" | "notin" => self.set()?,
            "=" | "==" | "!=" => vec![self.exact()?],
            ">" | "<" => {
                let value = self.exact()?;
                if value.parse::<i64>().is_err() {
                    let why = "for 'Gt', 'Lt' operators, the value must be an integer";
                    return Err(format!("values[0]: Invalid value: {value:?}: {why}"));
                }
                vec![value]
            }
            other => return Err(format!("found '{other}', expected: {OPERATORS}")),
        };
        values.iter().try_for_each(|value| check_value(key, value))
    }

    fn set(&mut self) -> Result<Vec<&'t str>, String> {
        let open = self.take();
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut values = Vec::new();
        loop {
            match self.take() {
                "," => {}
                ")" => return Ok(values),
                word if is_word(word) => {
                    values.push(word);
                    let next = self.peek();
                    if !matches!(next, "," | ")") {
                        return Err(format!("found '{next}', expected: ',' or ')'"));
                    }
                }
                other if values.is_empty() => {
                    return Err(format!("found '{other}', expected: ',', ')' or identifier"));
                }
                other => return Err(format!("found '{other}', expected: ',', or identifier")),
            }
        }
    }

    fn exact(&mut self) -> Result<&'t str, String> {
        match self.peek() {
            "" | "," => Ok(""),
            word if is_word(word) => Ok(self.take()),
            sign => Err(format!("found '{sign}', expected: identifier")),
        }
    }
}

const NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                     must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
                     regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    ends(text.chars().next()) && ends(text.chars().next_back()) && text.chars().all(inner)
}

/// What is wrong with a key, apart from its prefix, which our own parser reports.
fn check_key(key: &str) -> Result<(), String> {
    let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
    let why = match name {
        _ if name.len() > 63 => "name part must be no more than 63 characters",
        _ if !is_name(name) => NAME,
        _ => return Ok(()),
    };
    Err(format!("<nil>: Invalid value: {key:?}: {why}"))
}

fn check_value(key: &str, value: &str) -> Result<(), String> {
    match value {
        _ if value.len() > 63 => Err(invalid_value(key, value, "must be no more than 63 characters")),
        _ if !value.is_empty() && !is_name(value) => Err(invalid_value(key, value, VALUE)),
        _ => Ok(()),
    }
}

fn invalid_value(key: &str, value: &str, why: &str) -> String {
    format!("values[0][{key}]: Invalid value: {value:?}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_selectors_get_the_api_servers_messages() {
        let requirement = |why: &str| format!("unable to parse requirement: {why}");
        for (text, expected) in [
            ("a===b", requirement("found '=', expected: identifier")),
            ("a=b c", "found 'c', expected: ',' or 'end of string'".to_owned()),
            ("a,", "found '', expected: identifier after ','".to_owned()),
            ("=a", "found '=', expected: !, identifier, or 'end of string'".to_owned()),
            ("a foo (x)", requirement("found 'foo', expected: in, notin, =, ==, !=, gt, lt")),
            ("a in x", requirement("found 'x' expected: '('")),
            ("a in (x", requirement("found '', expected: ',' or ')'")),
            ("!", requirement("found '', expected: identifier")),
            (
                "num>x",
                requirement(
                    r#"values[0]: Invalid value: "x": for 'Gt', 'Lt' operators, the value must be an integer"#,
                ),
            ),
            ("-a=b", requirement(&format!(r#"<nil>: Invalid value: "-a": {NAME}"#))),
        ] {
            assert_eq!(refusal(text, "?"), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_selector_refusal_panic(text in "\\PC{0,40}") {
            refusal(&text, "?");
        }
    }
}
