//! Values of expressions. What the object holds is borrowed from its JSON. What an expression makes is shared, so that no value
//! is copied.

use core::net::IpAddr;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value as Json;

use super::meter::{Meter, Stop};
use super::net::Cidr;
use super::quantity::Quantity;
use super::semver::Semver;

/// Bytes of a text that a message shows.
const SHOWN_MAX: usize = 64;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Arc<[u8]>),
    List(List<'a>),
    Map(Map<'a>),
    Quantity(Arc<Quantity>),
    Ip(IpAddr),
    Cidr(Cidr),
    Semver(Arc<Semver>),
    /// A value that may be missing.
    Optional(Option<Arc<Val<'a>>>),
    /// A type, by its name.
    Type(&'static str),
}

/// A string.
#[derive(Clone, Debug)]
pub(super) enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

/// A list.
#[derive(Clone, Debug)]
pub(super) enum List<'a> {
    Json(&'a [Json]),
    Made(Arc<[Val<'a>]>),
}

/// A map.
#[derive(Clone, Debug)]
pub(super) enum Map<'a> {
    Json(&'a serde_json::Map<String, Json>),
    /// The pairs of a map that the expression writes out. They are few, so they are searched one by one.
    Made(Arc<[(Val<'a>, Val<'a>)]>),
}

// === impl Val ===

impl<'a> Val<'a> {
    /// A value of the object. A number without a fraction is an `int`, as in Kubernetes, but for one that is too large.
    pub(super) fn of(json: &'a Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(value) => Self::Int(value),
                None => Self::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::Text(Text::Borrowed(text)),
            Json::Array(all) => Self::List(List::Json(all)),
            Json::Object(all) => Self::Map(Map::Json(all)),
        }
    }

    /// A new string. The caller has counted it.
    pub(super) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(Text::Shared(text.into()))
    }

    /// A new list. The caller has counted its elements.
    pub(super) fn list(elements: Vec<Self>) -> Self {
        Self::List(List::Made(elements.into()))
    }

    /// An optional value.
    pub(super) fn optional(value: Option<Self>) -> Self {
        Self::Optional(value.map(Arc::new))
    }

    /// The value itself, or that of an optional value; `None` if it is missing.
    pub(super) fn present(&self) -> Option<&Self> {
        if let Self::Optional(value) = self { value.as_deref() } else { Some(self) }
    }

    /// The name of its type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
        }
    }

    /// Whether it equals another value. Numbers are equal across their types; values of other types never are.
    ///
    /// # Errors
    /// [`Stop::Spent`].
    pub(super) fn equals(&self, other: &Self, meter: &mut Meter) -> Result<bool, Stop> {
        meter.spend(1)?;
        match (self, other) {
            (Self::Null, Self::Null) => Ok(true),
            (Self::Bool(one), Self::Bool(other)) => Ok(one == other),
            (Self::Text(one), Self::Text(other)) => {
                if one.len() != other.len() {
                    return Ok(false);
                }
                meter.read(one.len())?;
                Ok(**one == **other)
            }
            (Self::Bytes(one), Self::Bytes(other)) => {
                meter.read(one.len())?;
                Ok(one == other)
            }
            (Self::List(one), Self::List(other)) => one.equals(other, meter),
            (Self::Map(one), Self::Map(other)) => one.equals(other, meter),
            (Self::Quantity(one), Self::Quantity(other)) => Ok(one == other),
            (Self::Ip(one), Self::Ip(other)) => Ok(one == other),
            (Self::Cidr(one), Self::Cidr(other)) => Ok(one == other),
            (Self::Semver(one), Self::Semver(other)) => {
                meter.spend(one.comparison_work(other))?;
                Ok(one == other)
            }
            (Self::Optional(None), Self::Optional(None)) => Ok(true),
            (Self::Optional(Some(one)), Self::Optional(Some(other))) => one.equals(other, meter),
            (Self::Type(one), Self::Type(other)) => Ok(one == other),
            _ => Ok(self.compare_numbers(other) == Some(Some(Ordering::Equal))),
        }
    }

    /// Its order relative to another value.
    ///
    /// # Errors
    /// [`Stop::NoOverload`] if values of these types have no order.
    pub(super) fn compare(&self, other: &Self, meter: &mut Meter) -> Result<Ordering, Stop> {
        meter.spend(1)?;
        match (self, other) {
            (Self::Bool(one), Self::Bool(other)) => Ok(one.cmp(other)),
            (Self::Text(one), Self::Text(other)) => {
                meter.read(one.len().min(other.len()))?;
                Ok((**one).cmp(&**other))
            }
            (Self::Bytes(one), Self::Bytes(other)) => {
                meter.read(one.len().min(other.len()))?;
                Ok(one.cmp(other))
            }
            _ => {
                let order = self.compare_numbers(other).ok_or(Stop::NoOverload)?;
                order.ok_or_else(|| Stop::Failed("NaN values cannot be ordered".into()))
            }
        }
    }

    /// The order of two numbers, `Some(None)` if one is not a number (NaN); `None` if a value is of another type.
    fn compare_numbers(&self, other: &Self) -> Option<Option<Ordering>> {
        Some(match (self, other) {
            (Self::Int(one), Self::Int(other)) => Some(one.cmp(other)),
            (Self::Uint(one), Self::Uint(other)) => Some(one.cmp(other)),
            (Self::Double(one), Self::Double(other)) => one.partial_cmp(other),
            (Self::Int(one), Self::Uint(other)) => Some(i128::from(*one).cmp(&i128::from(*other))),
            (Self::Uint(one), Self::Int(other)) => Some(i128::from(*one).cmp(&i128::from(*other))),
            (Self::Int(one), Self::Double(other)) => (*one as f64).partial_cmp(other),
            (Self::Double(one), Self::Int(other)) => one.partial_cmp(&(*other as f64)),
            (Self::Uint(one), Self::Double(other)) => (*one as f64).partial_cmp(other),
            (Self::Double(one), Self::Uint(other)) => one.partial_cmp(&(*other as f64)),
            _ => return None,
        })
    }
}

// === impl Text ===

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

/// As a message shows it: quoted, and not all of a long one.
impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self[..self.floor_char_boundary(SHOWN_MAX)];
        write!(f, "{shown:?}{}", if shown.len() < self.len() { "…" } else { "" })
    }
}

// === impl List ===

impl<'a> List<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Json(all) => all.len(),
            Self::Made(all) => all.len(),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<Val<'a>> {
        match self {
            Self::Json(all) => all.get(index).map(Val::of),
            Self::Made(all) => all.get(index).cloned(),
        }
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Val<'a>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Whether an element equals a value.
    ///
    /// # Errors
    /// [`Stop::Spent`].
    pub(super) fn contains(&self, value: &Val<'_>, meter: &mut Meter) -> Result<bool, Stop> {
        for element in self.iter() {
            if element.equals(value, meter)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn equals(&self, other: &List<'_>, meter: &mut Meter) -> Result<bool, Stop> {
        if self.len() != other.len() {
            return Ok(false);
        }
        for (one, other) in self.iter().zip(other.iter()) {
            if !one.equals(&other, meter)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

// === impl Map ===

impl<'a> Map<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Json(all) => all.len(),
            Self::Made(all) => all.len(),
        }
    }

    /// The value of a member.
    ///
    /// # Errors
    /// [`Stop::Spent`].
    pub(super) fn member(&self, name: &str, meter: &mut Meter) -> Result<Option<Val<'a>>, Stop> {
        match self {
            Self::Json(all) => {
                // The keys are sorted, so that it is compared with few of them.
                let compared = 1 + all.len().checked_ilog2().unwrap_or(0) as usize;
                meter.read(name.len().saturating_mul(compared))?;
                Ok(all.get(name).map(Val::of))
            }
            Self::Made(all) => {
                meter.spend(all.len())?;
                meter.read(name.len().saturating_mul(all.len()))?;
                let is_named = |key: &Val<'_>| matches!(key, Val::Text(text) if **text == *name);
                Ok(all.iter().find(|(key, _)| is_named(key)).map(|(_, value)| value.clone()))
            }
        }
    }

    /// The value of a key of any type. Numeric keys are found across the types of numbers.
    ///
    /// # Errors
    /// [`Stop::Spent`].
    pub(super) fn get(&self, key: &Val<'_>, meter: &mut Meter) -> Result<Option<Val<'a>>, Stop> {
        if let Val::Text(name) = key {
            return self.member(name, meter);
        }
        if let Self::Made(all) = self {
            for (other, value) in all.iter() {
                if other.equals(key, meter)? {
                    return Ok(Some(value.clone()));
                }
            }
        }
        Ok(None)
    }

    pub(super) fn keys(&self) -> Vec<Val<'a>> {
        match self {
            Self::Json(all) => all.keys().map(|key| Val::Text(Text::Borrowed(key))).collect(),
            Self::Made(all) => all.iter().map(|(key, _)| key.clone()).collect(),
        }
    }

    fn equals(&self, other: &Map<'_>, meter: &mut Meter) -> Result<bool, Stop> {
        if self.len() != other.len() {
            return Ok(false);
        }
        meter.make_elements(self.len())?;
        for key in self.keys() {
            let (one, other) = (self.get(&key, meter)?, other.get(&key, meter)?);
            let (Some(one), Some(other)) = (one, other) else { return Ok(false) };
            if !one.equals(&other, meter)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
