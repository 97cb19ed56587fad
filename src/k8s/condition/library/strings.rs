//! The functions on strings of Kubernetes' CEL except `format`, and its searches for regular expressions. Positions count characters
//! (code points).

use super::super::function::{Arguments, Function};
use super::super::meter::Stop;
use super::super::value::{Text, Val};

pub(super) const FUNCTIONS: [Function; 19] = [
    Function::member("charAt", 2, char_at),
    Function::member("indexOf", 2, index_of),
    Function::member("indexOf", 3, index_of),
    Function::member("lastIndexOf", 2, last_index_of),
    Function::member("lastIndexOf", 3, last_index_of),
    Function::member("join", 1, join),
    Function::member("join", 2, join),
    Function::member("lowerAscii", 1, lower_ascii),
    Function::member("upperAscii", 1, upper_ascii),
    Function::member("replace", 3, replace),
    Function::member("replace", 4, replace),
    Function::member("split", 2, split),
    Function::member("split", 3, split),
    Function::member("substring", 2, substring),
    Function::member("substring", 3, substring),
    Function::member("trim", 1, trim),
    Function::member("find", 2, find).with_pattern(),
    Function::member("findAll", 2, find_all).with_pattern(),
    Function::member("findAll", 3, find_all).with_pattern(),
];

fn char_at<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, at) = (args.text(0)?, args.int(1)?);
    args.meter.read(text.len())?;
    let start = byte_at(text, at).ok_or_else(|| out_of_range(args, at))?;
    let end = text[start..].chars().next().map_or(start, |character| start + character.len_utf8());
    part(args, text, start, end)
}

/// The first place at or after an offset.
fn index_of<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, sought) = (args.text(0)?, args.text(1)?);
    args.meter.read(text.len() + sought.len())?;
    let start = match start(args, args.optional_int(2)?.unwrap_or(0))? {
        Start::At(start) => start,
        Start::Answer(place) => return Ok(Val::Int(place)),
    };
    let found = text[start..].find(&**sought).map(|at| start + at);
    Ok(Val::Int(found.map_or(-1, |at| characters(&text[..at]))))
}

/// The last place at or before an offset.
fn last_index_of<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, sought) = (args.text(0)?, args.text(1)?);
    args.meter.read(text.len() + sought.len())?;
    let end = match args.optional_int(2)? {
        None => text.len(),
        Some(offset) => match start(args, offset)? {
            // What is found may begin at the offset, so it may end so far after it.
            Start::At(start) => text.floor_char_boundary(start + sought.len()),
            Start::Answer(place) => return Ok(Val::Int(place)),
        },
    };
    Ok(Val::Int(text[..end].rfind(&**sought).map_or(-1, |at| characters(&text[..at]))))
}

/// Where a search in the first argument begins.
enum Start {
    /// At this byte.
    At(usize),
    /// Nowhere: this is its answer.
    Answer(i64),
}

/// An empty text is found at the offset, or at the end. Nothing is found from an offset after the end.
fn start(args: &Arguments<'_, '_>, offset: i64) -> Result<Start, Stop> {
    let (text, sought) = (args.text(0)?, args.text(1)?);
    if offset < 0 {
        return Err(out_of_range(args, offset));
    }
    let length = characters(text);
    Ok(match byte_at(text, offset) {
        _ if sought.is_empty() => Start::Answer(offset.min(length)),
        Some(byte) if offset < length => Start::At(byte),
        _ => Start::Answer(-1),
    })
}

fn join<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let list = args.list(0)?;
    let separator = if args.values.len() > 1 { &**args.text(1)? } else { "" };
    let (mut joined, mut first) = (String::new(), true);
    for element in list.iter() {
        let Val::Text(text) = element else {
            return Err(args.failed(element.type_name(), "expected strings in the list"));
        };
        args.meter.make_text(separator.len() + text.len())?;
        if !first {
            joined.push_str(separator);
        }
        joined.push_str(&text);
        first = false;
    }
    Ok(Val::text(joined))
}

fn lower_ascii<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let text = args.text(0)?;
    args.meter.make_text(text.len())?;
    Ok(Val::text(text.to_ascii_lowercase()))
}

fn upper_ascii<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let text = args.text(0)?;
    args.meter.make_text(text.len())?;
    Ok(Val::text(text.to_ascii_uppercase()))
}

/// All occurrences, or the first so many; a negative number means all.
fn replace<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, old, new) = (args.text(0)?, args.text(1)?, args.text(2)?);
    let limit = limit(args.optional_int(3)?);
    args.meter.read(text.len() + old.len())?;
    let count = text.matches(&**old).take(limit).count();
    args.meter.make_text((text.len() - count * old.len()).saturating_add(count.saturating_mul(new.len())))?;
    Ok(Val::text(text.replacen(&**old, new, count)))
}

/// At most so many parts, of which the last one is the rest. Between all characters if the separator is empty.
fn split<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, separator) = (args.text(0)?, args.text(1)?);
    let limit = limit(args.optional_int(2)?);
    args.meter.read(text.len() + separator.len())?;
    let mut parts = Vec::new();
    let mut start = 0;
    while parts.len() < limit {
        let rest = &text[start..];
        let next = if separator.is_empty() {
            if rest.is_empty() {
                break;
            }
            let first = rest.chars().next().map_or(0, char::len_utf8);
            (first < rest.len()).then_some((first, first))
        } else {
            rest.find(&**separator).map(|at| (at, at + separator.len()))
        };
        let next = next.filter(|_| parts.len() + 1 < limit);
        args.meter.make_elements(1)?;
        let (end, after) = next.map_or((text.len(), None), |(end, after)| (start + end, Some(start + after)));
        parts.push(part(args, text, start, end)?);
        let Some(after) = after else { break };
        start = after;
    }
    Ok(Val::list(parts))
}

fn substring<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, start) = (args.text(0)?, args.int(1)?);
    args.meter.read(text.len())?;
    let end = args.optional_int(2)?;
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(args.failed(text, format_args!("invalid range, start {start}, end {end}")));
    }
    let start = byte_at(text, start).ok_or_else(|| out_of_range(args, start))?;
    let end = match end {
        None => text.len(),
        Some(end) => byte_at(text, end).ok_or_else(|| out_of_range(args, end))?,
    };
    part(args, text, start, end)
}

fn trim<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let text = args.text(0)?;
    args.meter.read(text.len())?;
    let start = text.len() - text.trim_start().len();
    part(args, text, start, start + text.trim().len())
}

fn find<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, pattern) = (args.text(0)?, args.pattern()?);
    args.meter.search(text.len(), pattern)?;
    match pattern.regex().find(text) {
        Some(found) => part(args, text, found.start(), found.end()),
        None => Ok(Val::Text(Text::Borrowed(""))),
    }
}

/// All parts that match, or the first so many; a negative number means all.
fn find_all<'a>(args: &mut Arguments<'_, 'a>) -> Result<Val<'a>, Stop> {
    let (text, pattern) = (args.text(0)?, args.pattern()?);
    let limit = limit(args.optional_int(2)?);
    let mut parts = Vec::new();
    let mut all = pattern.regex().find_iter(text);
    let mut start = 0;
    while parts.len() < limit {
        // A search can read all that is left, and find little.
        args.meter.search(text.len() - start, pattern)?;
        let Some(found) = all.next() else { break };
        args.meter.make_elements(1)?;
        parts.push(part(args, text, found.start(), found.end())?);
        start = found.end();
    }
    Ok(Val::list(parts))
}

/// A part of a text. It is borrowed where the text is.
fn part<'a>(
    args: &mut Arguments<'_, 'a>,
    text: &Text<'a>,
    start: usize,
    end: usize,
) -> Result<Val<'a>, Stop> {
    Ok(match text {
        Text::Borrowed(text) => Val::Text(Text::Borrowed(&text[start..end])),
        Text::Shared(text) => {
            args.meter.make_text(end - start)?;
            Val::text(&text[start..end])
        }
    })
}

/// The byte at which a character begins; that after the last one is one too.
fn byte_at(text: &str, at: i64) -> Option<usize> {
    let at = usize::try_from(at).ok()?;
    let ends = std::iter::once(text.len());
    text.char_indices().map(|(byte, _)| byte).chain(ends).nth(at)
}

fn characters(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

fn limit(limit: Option<i64>) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

fn out_of_range(args: &Arguments<'_, '_>, at: i64) -> Stop {
    match args.text(0) {
        Ok(text) => args.failed(text, format_args!("index out of range: {at}")),
        Err(stop) => stop,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{check_all, check_failures};

    #[test]
    fn strings_follow_the_library() {
        check_all(&[
            "'abc'.charAt(1) == 'b' && 'tacocat'.charAt(7) == '' && '©αT'.charAt(1) == 'α'",
            "'hello mellow'.indexOf('') == 0 && 'hello mellow'.indexOf('ello') == 1",
            "'hello mellow'.indexOf('jello') == -1 && 'hello mellow'.indexOf('', 2) == 2",
            "'hello mellow'.indexOf('ello', 2) == 7 && 'ta©o©αT'.indexOf('©', 3) == 4",
            "'abc'.indexOf('', 20) == 3 && ''.indexOf('a') == -1 && 'ta©o©αT'.indexOf('©α', 5) == -1",
            "'hello mellow'.lastIndexOf('') == 12 && 'hello mellow'.lastIndexOf('ello') == 7",
            "'hello mellow'.lastIndexOf('ello', 6) == 1 && 'ta©o©αT'.lastIndexOf('©', 3) == 2",
            "'bananananana'.lastIndexOf('nana', 7) == 6 && ''.lastIndexOf('@@') == -1",
            "'hello'.indexOf('l', 20) == -1 && 'hello'.lastIndexOf('l', 20) == -1 && 'abc'.lastIndexOf('', 20) == 3",
            "'abc'.lastIndexOf('', 3) == 3 && 'abc'.lastIndexOf('c', 1) == -1 && 'aé'.lastIndexOf('a', 1) == 0",
            "['hello', 'mellow'].join() == 'hellomellow' && ['a', 'b', 'c'].join(', ') == 'a, b, c'",
            "[].join() == '' && [''].join('-') == '' && ['', 'a'].join('-') == '-a'",
            "'TacoCÆt Xii'.lowerAscii() == 'tacocÆt xii' && 'tacoCÆt'.upperAscii() == 'TACOCÆT'",
            "'hello hello'.replace('he', 'we') == 'wello wello'",
            "'hello hello'.replace('he', 'we', 1) == 'wello hello' && 'hello'.replace('he', 'we', 0) == 'hello'",
            "'hello hello'.replace('', '_') == '_h_e_l_l_o_ _h_e_l_l_o_' && 'aa'.replace('a', 'b', -1) == 'bb'",
            "'hello hello hello'.split(' ') == ['hello', 'hello', 'hello'] && ''.split(',') == ['']",
            "'hello hello hello'.split(' ', 0) == [] && 'hello hello hello'.split(' ', 1) == ['hello hello hello']",
            "'hello hello hello'.split(' ', 2) == ['hello', 'hello hello'] && 'a,b,'.split(',', -1) == ['a', 'b', '']",
            "'aéb'.split('') == ['a', 'é', 'b'] && 'abc'.split('', 2) == ['a', 'bc'] && ''.split('') == []",
            "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco' && 'tacocat'.substring(7) == ''",
            "'ta©o©αT'.substring(2, 6) == '©o©α' && ' \\t trim\\n '.trim() == 'trim' && '  '.trim() == ''",
            // Parts of what an expression made, and of the object.
            "('a' + 'bc').substring(1) == 'bc' && object.metadata.name.split('') == ['p']",
        ]);
        check_failures(&[
            ("'tacocat'.charAt(30) == ''", "charAt(\"tacocat\"): index out of range: 30"),
            ("'tacocat'.charAt(-1) == ''", "index out of range: -1"),
            ("'hello'.lastIndexOf('l', -1) == 0", "index out of range: -1"),
            ("'abc'.indexOf('', -1) == 0", "index out of range: -1"),
            ("'tacocat'.substring(40) == ''", "index out of range: 40"),
            ("'tacocat'.substring(1, 50) == ''", "index out of range: 50"),
            ("'tacocat'.substring(3, 1) == ''", "invalid range, start 3, end 1"),
            ("['a', 1].join() == ''", "join(int): expected strings"),
            ("'a'.charAt('b') == ''", "no such overload: charAt(string, string)"),
        ]);
    }

    #[test]
    fn patterns_are_found() {
        check_all(&[
            "'abc 123'.find('[0-9]+') == '123' && 'abc 123'.find('xyz') == ''",
            "'123 abc 456'.findAll('[0-9]+') == ['123', '456'] && '123 abc 456'.findAll('xyz') == []",
            "'123 abc 456'.findAll('[0-9]+', 1) == ['123'] && '123'.findAll('[0-9]', 0) == []",
            "'123'.findAll('[0-9]', -1) == ['1', '2', '3'] && 'abba'.findAll('a*') == ['a', '', 'a']",
            "object.spec.containers.map(c, c.image.find('[0-9]+$')) == ['1', '2']",
        ]);
        check_failures(&[("(1).find('a') == ''", "no such overload: find(int, string)")]);
    }

    #[test]
    fn what_strings_make_is_bounded() {
        let long = format!("'{}'", "x".repeat(200));
        let longer = format!("[{long}]{}", ".map(a, a.replace('x', 'xxxxxxxxxx'))".repeat(8));
        let parts = format!("[{long}]{}.map(a, a.split(''))", ".map(a, a + a + a + a)".repeat(5));
        let joined = format!("[{long}]{}", ".map(a, [a, a, a, a, a, a, a, a].join())".repeat(10));
        // Each search reads to the end in vain.
        let quadratic = format!("[{long}]{}.map(a, a.findAll('x|x.*y'))", ".map(a, a + a + a + a)".repeat(4));
        for text in [longer, parts, joined, quadratic] {
            check_failures(&[(&format!("size({text}) == 1"), "too much work")]);
        }
    }
}
