//! Times, and ages as `kubectl` prints them.

use std::time::Duration;

use super::tree::Tree;

/// A moment: nanoseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(i128);

const NANOS: i128 = 1_000_000_000;

/// Go's zero time, the first of January of year 1: no time at all to `IsZero`.
const ZERO: Timestamp = Timestamp(-62_135_596_800 * NANOS);

impl Timestamp {
    /// The moment this long after the beginning of 1970.
    pub const fn since_epoch(duration: Duration) -> Self {
        Self(duration.as_nanos() as i128)
    }

    /// Parses RFC 3339 as Go does: capital letters, a zone, a fraction or none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let (year, month, day) = (digits(date.get(..4)?)?, digits(date.get(5..7)?)?, digits(date.get(8..)?)?);
        let (clock, rest) = rest.strip_prefix('T')?.split_at_checked(8)?;
        let (hour, minute) = (digits(clock.get(..2)?)?, digits(clock.get(3..5)?)?);
        let second = digits(clock.get(6..)?)?;
        let separators = [date.get(4..5)?, date.get(7..8)?, clock.get(2..3)?, clock.get(5..6)?];
        let is_day = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
        if separators != ["-", "-", ":", ":"] || !is_day || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let (nanos, rest) = fraction(rest)?;
        let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset(rest)?;
        Some(Self(i128::from(seconds) * NANOS + nanos))
    }

    /// The time at a path of an object; `None` where there is none, or the zero time.
    pub(super) fn at(tree: &Tree<'_>, path: &str) -> Option<Self> {
        Self::parse(tree.text(path)).filter(|time| *time != ZERO)
    }

    /// Whether it is Go's zero time.
    pub(super) fn is_zero(self) -> bool {
        self == ZERO
    }

    /// The time since another moment, as `kubectl` prints it.
    pub(super) fn after(self, other: Self) -> String {
        // Saturates where Go's durations would overflow.
        let nanos = (self.0 - other.0).clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        human((nanos / NANOS) as i64)
    }
}

/// The age of a time; `<unknown>` if there is none.
///
/// Source: `translateTimestampSince` of `k8s.io/kubernetes/pkg/printers/internalversion`.
pub(super) fn ago(time: Option<Timestamp>, now: Timestamp) -> String {
    time.map_or_else(|| "<unknown>".to_owned(), |time| now.after(time))
}

/// Seconds, cut off, in at most two units.
///
/// Source: `HumanDuration` of `k8s.io/apimachinery/pkg/util/duration`.
pub(super) fn human(seconds: i64) -> String {
    let two = |large: i64, unit: char, small: i64, smaller: char| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{smaller}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    let days = hours / 24;
    if seconds < -1 {
        "<invalid>".to_owned()
    } else if seconds < 0 {
        "0s".to_owned()
    } else if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        two(days, 'd', hours % 24, 'h')
    } else if hours < 24 * 365 * 2 {
        format!("{days}d")
    } else if hours < 24 * 365 * 8 {
        two(days / 365, 'y', days % 365, 'd')
    } else {
        format!("{}y", days / 365)
    }
}

fn digits(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// The nanoseconds of `.5Z`, and what follows them.
fn fraction(text: &str) -> Option<(i128, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    let (digits, rest) = rest.split_at(end);
    if digits.is_empty() {
        return None;
    }
    let nanos = digits.bytes().chain(std::iter::repeat(b'0')).take(9);
    Some((nanos.fold(0, |sum, digit| sum * 10 + i128::from(digit - b'0')), rest))
}

/// Seconds east of Greenwich.
fn offset(text: &str) -> Option<i64> {
    let sign = match text.get(..1)? {
        "Z" if text.len() == 1 => return Some(0),
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = text[1..].split_once(':')?;
    let (hours, minutes) = (digits(hours).filter(|_| hours.len() == 2)?, digits(minutes)?);
    (text.len() == 6 && hours <= 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970 in the proleptic Gregorian calendar.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_as_by_go() {
        let check = |text: &str, nanos: Option<i128>| {
            assert_eq!(Timestamp::parse(text).map(|time| time.0), nanos, "{text}");
        };
        check("1970-01-01T00:00:00Z", Some(0));
        check("2026-11-21T05:48:55Z", Some(1_795_240_135 * NANOS));
        check("2026-11-21T06:48:55.25+01:00", Some(1_795_240_135 * NANOS + 250_000_000));
        check("2024-02-29T23:59:59-00:30", Some((1_709_251_199 + 1_800) * NANOS));
        check("1969-12-31T23:59:59.999999Z", Some(-1_000));
        check("0001-01-01T00:00:00Z", Some(ZERO.0));
        for wrong in [
            "",
            "2026-11-21",
            "2026-11-21T05:48:55",
            "2026-11-21t05:48:55Z",
            "2026-11-21T05:48:55z",
            "2026-02-29T05:48:55Z",
            "2026-13-01T05:48:55Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T05:48:60Z",
            "2026-11-21T05:48:55.Z",
            "2026-11-21T05:48:55+1:00",
            "2026-11-21T05:48:55+é:00",
            "+026-11-21T05:48:55Z",
            "2026-11-21T05:48:55Zé",
            "ééééééééé",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn durations_are_shortened_as_by_kubectl() {
        let (minute, hour, day) = (60, 3_600, 86_400);
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (10 * minute - 1, "9m59s"),
            (10 * minute + 59, "10m"),
            (3 * hour - 1, "179m"),
            (3 * hour, "3h"),
            (7 * hour + 59 * minute, "7h59m"),
            (8 * hour + minute, "8h"),
            (2 * day - 1, "47h"),
            (2 * day, "2d"),
            (2 * day + hour, "2d1h"),
            (8 * day - 1, "7d23h"),
            (8 * day + hour, "8d"),
            (730 * day - 1, "729d"),
            (730 * day, "2y"),
            (731 * day, "2y1d"),
            (8 * 365 * day - 1, "7y364d"),
            (8 * 365 * day, "8y"),
            (30 * 365 * day, "30y"),
        ] {
            assert_eq!(human(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn a_missing_time_is_unknown_and_a_distant_one_is_clamped() {
        let now = Timestamp::parse("2026-11-21T05:48:55.5Z").unwrap();
        let object = |time: &str| format!(r#"{{"t":"{time}"}}"#);
        for (time, expected) in [
            ("2026-11-21T05:48:50Z", "5s"),
            ("2026-11-21T05:48:57Z", "0s"),
            ("2026-11-21T05:48:58Z", "<invalid>"),
            ("0001-01-01T00:00:00Z", "<unknown>"),
            ("never", "<unknown>"),
            ("0999-01-01T00:00:00Z", "292y"),
        ] {
            let json = object(time);
            let tree: Tree<'_> = serde_json::from_str(&json).unwrap();
            assert_eq!(ago(Timestamp::at(&tree, "t"), now), expected, "{time}");
        }
    }
}
