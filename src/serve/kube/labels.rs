//! What the API server says of a label selector that it cannot read.
//!
//! Our own parser says where something is wrong; people look for the API server's sentence, so this follows its parser
//! up to the first mistake. Source: apimachinery `labels/selector.go`.

/// The sentence about a selector that is refused; `otherwise` where the API server would have taken it.
pub(super) fn refusal(text: &str, otherwise: &str) -> String {
    let mut parser = Parser { tokens: scan(text), at: 0 };
    parser.parse().err().unwrap_or_else(|| otherwise.to_owned())
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Sign(&'static str),
    End,
}

const SIGNS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

fn scan(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(BLANKS);
    while !rest.is_empty() {
        if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            tokens.push(Token::Sign(sign));
            rest = &rest[sign.len()..];
        } else {
            let special = |c: char| BLANKS.contains(&c) || "=!(),><".contains(c);
            let (word, after) = rest.split_at(rest.find(special).unwrap_or(rest.len()));
            tokens.push(Token::Word(word.to_owned()));
            rest = after;
        }
        rest = rest.trim_start_matches(BLANKS);
    }
    tokens
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Sign(sign) => sign,
            Self::End => "",
        }
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Token {
        self.tokens.get(self.at).cloned().unwrap_or(Token::End)
    }

    fn take(&mut self) -> Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn parse(&mut self) -> Result<(), String> {
        loop {
            match self.peek() {
                Token::Word(_) | Token::Sign("!") => {
                    self.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?;
                }
                Token::End => return Ok(()),
                Token::Sign(sign) => {
                    return Err(format!("found '{sign}', expected: !, identifier, or 'end of string'"));
                }
            }
            match self.take() {
                Token::End => return Ok(()),
                Token::Sign(",") => match self.peek() {
                    Token::Word(_) | Token::Sign("!") => {}
                    Token::Sign(_) | Token::End => {
                        return Err(format!(
                            "found '{}', expected: identifier after ','",
                            self.peek().text()
                        ));
                    }
                },
                other => {
                    return Err(format!("found '{}', expected: ',' or 'end of string'", other.text()));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<(), String> {
        let mut first = self.take();
        let absent = first == Token::Sign("!");
        if absent {
            first = self.take();
        }
        let Token::Word(key) = first else {
            return Err(format!("found '{}', expected: identifier", first.text()));
        };
        check_key(&key)?;
        if absent || matches!(self.peek(), Token::End | Token::Sign(",")) {
            return Ok(());
        }
        let values = match self.take() {
            Token::Word(word) if word == "in" || word == "notin" => self.set()?,
            Token::Sign("=" | "==" | "!=") => vec![self.exact()?],
            Token::Sign(">" | "<") => {
                let value = self.exact()?;
                if value.parse::<i64>().is_err() {
                    return Err(invalid_value(
                        &key,
                        &value,
                        "for 'Gt', 'Lt' operators, the value must be an integer",
                    ));
                }
                vec![value]
            }
            other => return Err(format!("found '{}', expected: {OPERATORS}", other.text())),
        };
        values.iter().try_for_each(|value| check_value(&key, value))
    }

    fn set(&mut self) -> Result<Vec<String>, String> {
        match self.take() {
            Token::Sign("(") => {}
            other => return Err(format!("found '{}', expected: '('", other.text())),
        }
        let mut values = Vec::new();
        loop {
            match self.take() {
                Token::Word(word) => {
                    values.push(word);
                    match self.peek() {
                        Token::Sign("," | ")") => {}
                        other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
                    }
                }
                Token::Sign(",") => {}
                Token::Sign(")") => return Ok(values),
                other if values.is_empty() => {
                    return Err(format!("found '{}', expected: ',', ')' or identifier", other.text()));
                }
                other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
            }
        }
    }

    fn exact(&mut self) -> Result<String, String> {
        match self.peek() {
            Token::End | Token::Sign(",") => Ok(String::new()),
            Token::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            Token::Sign(sign) => Err(format!("found '{sign}', expected: identifier")),
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

/// What can be wrong with a key beside its prefix, of which our own parser's sentence tells.
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
    fn mistakes_are_named_as_the_api_server_names_them() {
        let requirement = |why: &str| format!("unable to parse requirement: {why}");
        for (text, expected) in [
            ("a===b", requirement("found '=', expected: identifier")),
            ("a=b c", "found 'c', expected: ',' or 'end of string'".to_owned()),
            ("a,", "found '', expected: identifier after ','".to_owned()),
            ("=a", "found '=', expected: !, identifier, or 'end of string'".to_owned()),
            ("a foo (x)", requirement("found 'foo', expected: in, notin, =, ==, !=, gt, lt")),
            ("a in x", requirement("found 'x', expected: '('")),
            ("a in (x", requirement("found '', expected: ',' or ')'")),
            ("!", requirement("found '', expected: identifier")),
            (
                "num>x",
                requirement(
                    r#"values[0][num]: Invalid value: "x": for 'Gt', 'Lt' operators, the value must be an integer"#,
                ),
            ),
            ("-a=b", requirement(&format!(r#"<nil>: Invalid value: "-a": {NAME}"#))),
        ] {
            assert_eq!(refusal(text, "?"), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            refusal(&text, "?");
        }
    }
}
