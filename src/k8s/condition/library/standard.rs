//! The functions of the CEL standard: sizes, parts of strings, and conversions.

use super::super::function::{Arguments, Function};
use super::super::meter::Stop;
use super::super::value::Val;

pub(super) const FUNCTIONS: [Function; 15] = [
    Function::global("size", 1, size),
    Function::member("size", 1, size),
    Function::member("contains", 2, contains),
    Function::member("startsWith", 2, starts_with),
    Function::member("endsWith", 2, ends_with),
    Function::global("matches", 2, matches).with_pattern(),
    Function::member("matches", 2, matches).with_pattern(),
    Function::global("int", 1, int),
    Function::global("uint", 1, uint),
    Function::global("double", 1, double),
    Function::global("string", 1, string),
    Function::global("bool", 1, bool),
    Function::global("bytes", 1, bytes),
    Function::global("type", 1, type_of),
    Function::global("dyn", 1, dynamic),
];

/// 2^63 and 2^64: the first values that an `int` and a `uint` cannot have.
const INT_END: f64 = 9_223_372_036_854_775_808.0;
const UINT_END: f64 = 18_446_744_073_709_551_616.0;

fn size<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let value = args.value(0)?;
    let size = if let Val::Text(text) = value {
        args.meter.read(text.len())?;
        text.chars().count()
    } else if let Val::Bytes(bytes) = value {
        bytes.len()
    } else if let Val::List(list) = value {
        list.len()
    } else if let Val::Map(map) = value {
        map.len()
    } else {
        return Err(Stop::NoOverload);
    };
    Ok(Val::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn contains<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, part) = (args.text(0)?, args.text(1)?);
    args.meter.read(text.len() + part.len())?;
    Ok(Val::Bool(text.contains(&**part)))
}

fn starts_with<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, part) = (args.text(0)?, args.text(1)?);
    args.meter.read(part.len())?;
    Ok(Val::Bool(text.starts_with(&**part)))
}

fn ends_with<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, part) = (args.text(0)?, args.text(1)?);
    args.meter.read(part.len())?;
    Ok(Val::Bool(text.ends_with(&**part)))
}

fn matches<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, pattern) = (args.text(0)?, args.pattern()?);
    args.meter.search(text.len(), pattern)?;
    Ok(Val::Bool(pattern.regex().is_match(text)))
}

fn int<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let value = args.value(0)?;
    if let Val::Int(value) = value {
        Ok(Val::Int(*value))
    } else if let Val::Uint(value) = value {
        i64::try_from(*value).map(Val::Int).map_err(|_| args.failed(value, "out of range"))
    } else if let Val::Double(value) = value {
        let fits = *value > -INT_END && *value < INT_END;
        if fits { Ok(Val::Int(*value as i64)) } else { Err(args.failed(value, "out of range")) }
    } else {
        parsed(args, Val::Int)
    }
}

fn uint<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let value = args.value(0)?;
    if let Val::Uint(value) = value {
        Ok(Val::Uint(*value))
    } else if let Val::Int(value) = value {
        u64::try_from(*value).map(Val::Uint).map_err(|_| args.failed(value, "out of range"))
    } else if let Val::Double(value) = value {
        let fits = *value >= 0.0 && *value < UINT_END;
        if fits { Ok(Val::Uint(*value as u64)) } else { Err(args.failed(value, "out of range")) }
    } else if args.text(0)?.starts_with('+') {
        Err(args.failed(args.text(0)?, "not a number"))
    } else {
        parsed(args, Val::Uint)
    }
}

fn double<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let value = args.value(0)?;
    if let Val::Double(value) = value {
        Ok(Val::Double(*value))
    } else if let Val::Int(value) = value {
        Ok(Val::Double(*value as f64))
    } else if let Val::Uint(value) = value {
        Ok(Val::Double(*value as f64))
    } else {
        let parsed = parsed(args, Val::Double)?;
        let text = args.text(0)?;
        let is_too_large = matches!(parsed, Val::Double(value) if value.is_infinite())
            && text.contains(|byte: char| byte.is_ascii_digit());
        if is_too_large { Err(args.failed(text, "out of range")) } else { Ok(parsed) }
    }
}

/// The number that a text is.
fn parsed<'a, T: std::str::FromStr>(
    args: &mut Arguments<'_, 'a>,
    value: fn(T) -> Val<'a>,
) -> Result<Val<'a>, Stop> {
    let text = args.text(0)?;
    args.meter.read(text.len())?;
    text.parse().map(value).map_err(|_| args.failed(text, "not a number"))
}

fn string<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let value = args.value(0)?;
    if let Val::Bool(value) = value {
        Ok(Val::text(value.to_string()))
    } else if let Val::Int(value) = value {
        Ok(Val::text(value.to_string()))
    } else if let Val::Uint(value) = value {
        Ok(Val::text(value.to_string()))
    } else if let Val::Double(value) = value {
        Ok(Val::text(double_text(*value)))
    } else if let Val::Bytes(bytes) = value {
        args.meter.make_text(bytes.len())?;
        let text = std::str::from_utf8(bytes).map_err(|_| args.failed("bytes", "not UTF-8"))?;
        Ok(Val::text(text))
    } else if let Val::Ip(address) = value {
        Ok(Val::text(address.to_string()))
    } else if let Val::Cidr(network) = value {
        Ok(Val::text(network.to_string()))
    } else {
        args.text(0).cloned().map(Val::Text)
    }
}

/// A double as Go prints it: with an exponent if that is below -4 or above 5 (`%g`).
fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

fn bool<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    if let Val::Bool(value) = args.value(0)? {
        return Ok(Val::Bool(*value));
    }
    let text = args.text(0)?;
    match &**text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Val::Bool(true)),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Val::Bool(false)),
        _ => Err(args.failed(text, "not a boolean")),
    }
}

fn bytes<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    if let Val::Bytes(bytes) = args.value(0)? {
        return Ok(Val::Bytes(bytes.clone()));
    }
    let text = args.text(0)?;
    args.meter.make_text(text.len())?;
    Ok(Val::Bytes(text.as_bytes().into()))
}

fn type_of<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    Ok(Val::Type(args.value(0)?.type_name()))
}

/// Its argument. `dyn` tells a checker of types to let it pass, and there is none here.
fn dynamic<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    args.value(0).cloned()
}
