//! A JSON reader that shares no code with the one under test: RFC 8259, letter by letter.

/// A value and its text.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) text: &'a str,
    pub(crate) value: Value<'a>,
}

/// The parts of a value.
#[derive(Debug)]
pub(crate) enum Value<'a> {
    /// A string, a number, true, false, or null.
    Scalar,
    Array(Vec<Node<'a>>),
    /// The members in order, each with the text of its key.
    Object(Vec<(&'a str, Node<'a>)>),
}

/// Deeper than any API server accepts, and shallow enough for the stack of a test.
const DEPTH_MAX: usize = 600;

/// Whether a text nests too deeply for this reader.
pub(crate) fn is_too_deep(text: &str) -> bool {
    let opened = text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count();
    opened > DEPTH_MAX
}

/// Parses a text; `None` if it is not JSON.
pub(crate) fn parse(text: &str) -> Option<Node<'_>> {
    let mut reader = Reader { text, at: 0 };
    let node = reader.value()?;
    reader.blanks();
    (reader.at == text.len()).then_some(node)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        (self.at < self.text.len() && self.peek() == wanted).then(|| self.at += 1)
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Option<Node<'a>> {
        self.blanks();
        let start = self.at;
        let value = match self.peek() {
            b'{' => {
                self.at += 1;
                Value::Object(self.members(b'}', |reader| {
                    reader.blanks();
                    let start = reader.at;
                    reader.string()?;
                    let key = &reader.text[start..reader.at];
                    reader.blanks();
                    reader.take(b':')?;
                    Some((key, reader.value()?))
                })?)
            }
            b'[' => {
                self.at += 1;
                Value::Array(self.members(b']', Self::value)?)
            }
            b'"' => self.string().map(|()| Value::Scalar)?,
            b'-' | b'0'..=b'9' => self.number().map(|()| Value::Scalar)?,
            _ => {
                let rest = &self.text[self.at..];
                let word = ["true", "false", "null"].into_iter().find(|word| rest.starts_with(word))?;
                self.at += word.len();
                Value::Scalar
            }
        };
        Some(Node { text: &self.text[start..self.at], value })
    }

    fn members<T>(&mut self, end: u8, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut members = Vec::new();
        self.blanks();
        if self.take(end).is_some() {
            return Some(members);
        }
        loop {
            members.push(one(self)?);
            self.blanks();
            if self.take(end).is_some() {
                return Some(members);
            }
            self.take(b',')?;
        }
    }

    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            match self.peek() {
                b'"' => return self.take(b'"'),
                b'\\' => {
                    self.at += 1;
                    let escape = self.peek();
                    self.at += 1;
                    match escape {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                        b'u' => {
                            let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
                            digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                            self.at += 4;
                        }
                        _ => return None,
                    }
                }
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.take(b'-');
        if self.take(b'0').is_none() {
            self.digits()?;
        }
        if self.take(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }
}

impl<'a> Node<'a> {
    /// The members of an object.
    pub(crate) fn members(&self) -> Option<&[(&'a str, Node<'a>)]> {
        match &self.value {
            Value::Object(members) => Some(members),
            Value::Scalar | Value::Array(_) => None,
        }
    }

    /// The elements of an array.
    pub(crate) fn elements(&self) -> Option<&[Node<'a>]> {
        match &self.value {
            Value::Array(elements) => Some(elements),
            Value::Scalar | Value::Object(_) => None,
        }
    }

    /// A member of an object. Of duplicate members, the last one counts.
    pub(crate) fn get(&self, key: &str) -> Option<&Node<'a>> {
        let named = |(name, _): &&(&str, _)| string(name).as_deref() == Some(key);
        self.members()?.iter().rev().find(named).map(|(_, node)| node)
    }

    /// How often a member occurs.
    pub(crate) fn count(&self, key: &str) -> usize {
        let members = self.members().unwrap_or_default();
        members.iter().filter(|(name, _)| string(name).as_deref() == Some(key)).count()
    }

    /// The text of a string.
    pub(crate) fn string(&self) -> Option<String> {
        string(self.text)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.text == "null"
    }

    /// The text without blanks between tokens, and with line separators escaped.
    pub(crate) fn compact(&self) -> String {
        match &self.value {
            Value::Scalar => escaped(self.text),
            Value::Array(elements) => {
                let elements: Vec<_> = elements.iter().map(Node::compact).collect();
                format!("[{}]", elements.join(","))
            }
            Value::Object(members) => object(members.iter().map(|(key, node)| (*key, node.compact()))),
        }
    }
}

/// An object from members: the texts of keys and values.
pub(crate) fn object<'a>(members: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let members: Vec<_> =
        members.into_iter().map(|(key, value)| format!("{}:{value}", escaped(key))).collect();
    format!("{{{}}}", members.join(","))
}

/// Escapes the characters that some readers take for line ends.
fn escaped(text: &str) -> String {
    text.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029").replace('\u{85}', "\\u0085")
}

/// The decoded text of a string; `None` if it is not a string, or has an unpaired surrogate.
pub(crate) fn string(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut units: Vec<u16> = Vec::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            units.extend_from_slice(character.encode_utf16(&mut [0; 2]));
            continue;
        }
        units.push(match characters.next()? {
            'b' => 8,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'u' => {
                let digits: String = characters.by_ref().take(4).collect();
                u16::from_str_radix(&digits, 16).ok()?
            }
            other => other as u16,
        });
    }
    String::from_utf16(&units).ok()
}

#[test]
fn the_oracle_parses_json_as_the_standard_says() {
    for text in ["0", "-0.5e+7", "[]", "{}", r#"[1,{"a":[null]}]"#, r#""\u00e9\ud83d\ude00\/""#, " true\n"] {
        assert!(parse(text).is_some(), "{text}");
    }
    for text in [
        "",
        "01",
        "1.",
        "-",
        ".5",
        "+1",
        "[1,]",
        "{a:1}",
        "\"\t\"",
        r#""\x""#,
        "nul",
        "1 2",
        "\u{feff}1",
        "'a'",
    ] {
        assert!(parse(text).is_none(), "{text}");
    }
    let pretty = parse("{ \"a\" : [ 1.50 , \"x y\u{2028}\" ] }").unwrap();
    assert_eq!(pretty.compact(), r#"{"a":[1.50,"x y\u2028"]}"#);
    assert_eq!(string(r#""\ud800""#), None);
    assert_eq!(string(r#""a\"\u0041""#).as_deref(), Some("a\"A"));
}
