//! The parts of a setting: name, form, default, and the place where it was given.
//!
//! `table.rs` lists the settings. From each row the macros of `layer.rs` make the flag, the variable, the key of the
//! file and the field of the configuration. [`Setting`] is the same row as data, for the help, the documentation, the JSON
//! Schema and the tests.

use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;

use super::error::ConfigError;
use super::expand::{Environment, expand};

/// A row of the table of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name in the code and the log: `journal_len_max`.
    pub name: &'static str,
    /// Its heading in the help.
    pub heading: &'static str,
    /// What it does, with its default and the reason for that.
    pub help: String,
    /// Key of the file: `limits.journalLenMax`; `None` for a setting of `demo`, which reads no file.
    pub key: Option<String>,
    /// Its default as text; empty if it has none.
    pub default: String,
    /// The least value that is accepted.
    pub least: Option<String>,
    /// How its value is written.
    pub form: Form,
    /// What a reload does with a new value.
    pub reload: Reload,
}

/// What a reload of the configuration does with a setting that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The reload applies it.
    Applied,
    /// The reload warns that only a restart applies it.
    Restart,
}

/// How the value of a setting is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A whole number.
    Count,
    /// A number with a fraction.
    Number,
    /// A number of bytes: `64KiB`.
    Size,
    /// A time with its unit: `30s`.
    Span,
    /// A time with its unit, or `off`.
    SpanOrOff,
    /// `true` or `false`; the flag alone means `true`.
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Any other text, with its placeholder in the help.
    Text(&'static str),
    /// Several texts, with the placeholder of one in the help; separated by commas in a variable.
    List(&'static str),
    /// Watches: `RESOURCE?QUERY`, separated by semicolons in a variable; objects in the file.
    Watches,
    /// Work queues: `NAME=JSON`; a map in the file.
    Queues,
    /// Links: JSON; objects in the file.
    Links,
}

/// Where a value was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag of the command line.
    Flag,
    /// A variable of the environment.
    Variable,
    /// The configuration file.
    File,
}

/// A value, and the place where it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given<T> {
    /// The value.
    pub value: T,
    /// The place where it was given, for error messages.
    pub origin: Origin,
}

/// A text that is not accepted, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The text.
    pub value: String,
    /// What is wrong with it, and what is accepted.
    pub problem: String,
}

/// A single value that is written as one text.
pub trait Scalar: FromStr<Err: fmt::Display> + fmt::Display + Clone {
    /// What the program works with.
    type Plain: Clone + PartialEq + fmt::Debug;
    /// How it is written.
    const FORM: Form;

    /// Wraps a plain value, so that it can be formatted.
    fn dressed(plain: &Self::Plain) -> Self;

    /// The plain value.
    fn undressed(self) -> Self::Plain;
}

/// The value of a setting, as flags, variables and the file give it.
pub trait Value: Clone + Sized {
    /// What the program works with.
    type Plain: Clone + PartialEq + fmt::Debug;
    /// Its type in the file.
    type Yaml: DeserializeOwned;
    /// How it is written.
    const FORM: Form;

    /// Reads the texts of a flag or a variable; more than one only for a form that allows several.
    ///
    /// # Errors
    /// The first text that is not accepted.
    fn from_texts(texts: &[String]) -> Result<Self, Wrong>;

    /// Reads the value of a key, with `$(NAME)` expanded.
    ///
    /// # Errors
    /// [`ConfigError`] that names the key.
    fn from_yaml(yaml: Self::Yaml, key: &str, environment: Environment<'_>) -> Result<Self, ConfigError>;

    /// The plain value.
    fn plain(self) -> Self::Plain;

    /// A plain value as text.
    fn text(plain: &Self::Plain) -> String;
}

/// A setting that has no default: `None` unless it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maybe<T>(T);

/// A setting that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(bool);

/// Namespaces. `$(NAME)` in them is expanded later, together with that in the watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespaces(Vec<String>);

// === impl Setting ===

impl Setting {
    /// The flag: `--journal-len-max`.
    pub fn flag(&self) -> String {
        format!("--{}", self.long())
    }

    /// The variable: `INFORMERD_JOURNAL_LEN_MAX`.
    pub fn variable(&self) -> String {
        format!("INFORMERD_{}", self.name.to_ascii_uppercase())
    }

    /// Its name at the place where it was given, for error messages.
    pub(super) fn named(&self, origin: Option<Origin>) -> String {
        let key = || self.key.clone().unwrap_or_else(|| self.flag());
        match origin {
            Some(Origin::Flag) => self.flag(),
            Some(Origin::Variable) => self.variable(),
            Some(Origin::File) => key(),
            None => format!("{} ({})", key(), self.flag()),
        }
    }

    /// The flag for clap. clap does not check the value, which [`Value::from_texts`] does, as clap would blame the flag for a
    /// wrong variable.
    pub(super) fn arg(&self) -> clap::Arg {
        let arg = clap::Arg::new(self.name)
            .long(self.long())
            .env(self.variable())
            // A variable may hold a password.
            .hide_env_values(true)
            .help(self.help.clone())
            .help_heading(self.heading)
            .value_parser(Accepted(self.form))
            .hide_possible_values(true)
            .value_name(self.form.value_name());
        match self.form {
            Form::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            Form::List(_) => arg.action(clap::ArgAction::Append).value_delimiter(','),
            // A value is JSON, which may have any separator in it: a variable holds one queue or link.
            Form::Queues | Form::Links => arg.action(clap::ArgAction::Append),
            Form::Watches => arg.action(clap::ArgAction::Append).value_delimiter(';'),
            // `--page-size -5` is a wrong number, not an unknown flag.
            Form::Count | Form::Number | Form::Size | Form::Span | Form::SpanOrOff => {
                arg.allow_hyphen_values(true)
            }
            Form::OneOf(_) | Form::Text(_) => arg,
        }
    }

    fn long(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// The key of a setting in the file.
pub(super) fn key(prefix: &str, given: Option<&str>, name: &str) -> String {
    format!("{prefix}{}", given.map_or_else(|| camel_case(name), str::to_owned))
}

/// The key of the file for a name: `journalLenMax` for `journal_len_max`.
pub(super) fn camel_case(name: &str) -> String {
    let mut words = name.split(['_', '-']);
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, rest) = word.split_at(1.min(word.len()));
        camel.push_str(&first.to_ascii_uppercase());
        camel.push_str(rest);
    }
    camel
}

// === impl Form ===

impl Form {
    /// The placeholder for the value in the help.
    pub const fn value_name(&self) -> &'static str {
        match self {
            Self::Count | Self::Number => "N",
            Self::Size => "SIZE",
            Self::Span | Self::SpanOrOff => "TIME",
            Self::Switch => "BOOL",
            Self::OneOf(_) => "WORD",
            Self::Text(name) | Self::List(name) => name,
            Self::Watches => "SPEC",
            Self::Queues => "NAME=JSON",
            Self::Links => "JSON",
        }
    }
}

/// The values of a [`Form::Switch`].
const SWITCH: &[&str] = &["true", "false"];

/// Values that completions offer. clap does not check them.
#[derive(Clone)]
struct Accepted(Form);

impl clap::builder::TypedValueParser for Accepted {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = clap::builder::PossibleValue> + '_>> {
        let words = if let Form::OneOf(words) = self.0 { words } else { SWITCH };
        let offers = matches!(self.0, Form::OneOf(_) | Form::Switch);
        offers.then(|| Box::new(words.iter().copied().map(clap::builder::PossibleValue::new)) as Box<_>)
    }
}

fn parse<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, Wrong> {
    text.parse().map_err(|problem: T::Err| Wrong { value: text.to_owned(), problem: problem.to_string() })
}

/// The value of a flag that takes one: the last.
fn last(texts: &[String]) -> &str {
    texts.last().map(String::as_str).unwrap_or_default()
}

// === impl Value ===

impl<T: Scalar> Value for T {
    type Plain = T::Plain;
    type Yaml = String;
    const FORM: Form = T::FORM;

    fn from_texts(texts: &[String]) -> Result<Self, Wrong> {
        parse(last(texts))
    }

    fn from_yaml(yaml: String, key: &str, environment: Environment<'_>) -> Result<Self, ConfigError> {
        let text = expand(key, &yaml, environment)?;
        parse(&text).map_err(|wrong| wrong.at(key))
    }

    fn plain(self) -> T::Plain {
        Scalar::undressed(self)
    }

    fn text(plain: &T::Plain) -> String {
        T::dressed(plain).to_string()
    }
}

impl<T: Scalar> Value for Maybe<T> {
    type Plain = Option<T::Plain>;
    type Yaml = String;
    const FORM: Form = T::FORM;

    fn from_texts(texts: &[String]) -> Result<Self, Wrong> {
        parse(last(texts)).map(Self)
    }

    fn from_yaml(yaml: String, key: &str, environment: Environment<'_>) -> Result<Self, ConfigError> {
        T::from_yaml(yaml, key, environment).map(Self)
    }

    fn plain(self) -> Option<T::Plain> {
        Some(Scalar::undressed(self.0))
    }

    fn text(plain: &Option<T::Plain>) -> String {
        plain.as_ref().map_or_else(String::new, |plain| T::dressed(plain).to_string())
    }
}

impl<T: Scalar> Value for Vec<T> {
    type Plain = Vec<T::Plain>;
    type Yaml = Vec<String>;
    const FORM: Form = Form::List(T::FORM.value_name());

    fn from_texts(texts: &[String]) -> Result<Self, Wrong> {
        texts.iter().map(|text| parse(text)).collect()
    }

    fn from_yaml(yaml: Vec<String>, key: &str, environment: Environment<'_>) -> Result<Self, ConfigError> {
        yaml.into_iter().map(|text| T::from_yaml(text, key, environment)).collect()
    }

    fn plain(self) -> Vec<T::Plain> {
        self.into_iter().map(Scalar::undressed).collect()
    }

    fn text(plain: &Vec<T::Plain>) -> String {
        let texts: Vec<String> = plain.iter().map(|plain| T::dressed(plain).to_string()).collect();
        texts.join(",")
    }
}

impl Value for Switch {
    type Plain = bool;
    type Yaml = bool;
    const FORM: Form = Form::Switch;

    fn from_texts(texts: &[String]) -> Result<Self, Wrong> {
        let text = last(texts);
        text.trim()
            .parse()
            .map(Self)
            .map_err(|_| Wrong { value: text.to_owned(), problem: "expected true or false".to_owned() })
    }

    fn from_yaml(yaml: bool, _key: &str, _environment: Environment<'_>) -> Result<Self, ConfigError> {
        Ok(Self(yaml))
    }

    fn plain(self) -> bool {
        self.0
    }

    fn text(plain: &bool) -> String {
        plain.to_string()
    }
}

impl Value for Namespaces {
    type Plain = Vec<String>;
    type Yaml = Vec<String>;
    const FORM: Form = Form::List("NS");

    fn from_texts(texts: &[String]) -> Result<Self, Wrong> {
        Ok(Self(texts.to_vec()))
    }

    fn from_yaml(yaml: Vec<String>, _key: &str, _environment: Environment<'_>) -> Result<Self, ConfigError> {
        Ok(Self(yaml))
    }

    fn plain(self) -> Vec<String> {
        self.0
    }

    fn text(plain: &Vec<String>) -> String {
        plain.join(",")
    }
}

// === impl Wrong ===

impl Wrong {
    /// The error at a place.
    pub(super) fn at(self, place: &str) -> ConfigError {
        ConfigError::Setting { key: place.to_owned(), value: self.value, problem: self.problem }
    }
}
