use proptest::prelude::*;

use super::super::expand::Expander;
use super::super::places::Span;
use super::*;

const LABELS: &str = r#"{"app":"web"}"#;
const UID: &str = "6e1f2a00-1c4e-4f0a-9a51-00000000000a";

/// The JSON of an object of this key, uid, version and labels, with this text.
fn object(name: &str, version: &str, rest: &str) -> (String, Key, ResourceVersion) {
    object_in("shop", name, version, rest)
}

/// The same in a namespace.
fn object_in(namespace: &str, name: &str, version: &str, rest: &str) -> (String, Key, ResourceVersion) {
    let metadata =
        format!(r#""labels":{{"app":"web"}},"name":"{name}","namespace":"{namespace}","uid":"{UID}""#);
    let json = format!(r#"{{"metadata":{{{metadata},"resourceVersion":"{version}"}},"rest":"{rest}"}}"#);
    (json, Key::new(namespace, name), ResourceVersion::new(version))
}

/// Shortens it, and checks that it becomes the same again.
fn shortened(json: &str, key: &Key, version: &ResourceVersion, common: &CommonValues) -> Shortened {
    let span = |text: &str| {
        let start = json.find(text).unwrap();
        start..start + text.len()
    };
    let held = Held { key, uid: UID, version, labels: Labels::Json(LABELS) };
    let uid_at = span(&format!(r#""uid":"{UID}"#));
    let uid_at = uid_at.end - UID.len()..uid_at.end;
    let version_at = span(r#""resourceVersion":""#).end..span(r#""},"rest"#).start;
    let at = HeldAt { uid: uid_at.clone(), version: version_at.clone(), labels: span(LABELS) };
    let shortened =
        shorten(json.as_bytes(), held, at, common, &mut Numbers::default()).expect("it has no marks");
    assert!(shortened.text.len() <= json.len());
    let Shortened { text, values, .. } = &shortened;
    let mut expander = Expander::default();
    let (expanded, marked) = expander.expand(text, values, held, json.len()).expect("undamaged");
    assert_eq!(String::from_utf8_lossy(expanded), json);
    let places = [marked.uid, marked.version, marked.labels].map(Span::range);
    // A version of two digits is no longer than a mark.
    assert_eq!(shortened.marks_tell_places, version.to_string().len() > 2);
    assert_eq!(shortened.marks_tell_places, places == [uid_at, version_at, span(LABELS)]);
    shortened
}

/// The text and the bytes of values that stand for this text of an object.
fn of_text(rest: &str) -> (Vec<u8>, Vec<u8>) {
    let (json, key, version) = object("web-1", "17", rest);
    let Shortened { text, values, .. } = shortened(&json, &key, &version, &CommonValues::default());
    let start = memmem::find(&text, br#""rest":""#).unwrap() + 8;
    (text[start..text.len() - 2].to_owned(), values)
}

#[test]
fn each_form_has_its_bytes() {
    // Years since 2000, month, day, hour, minute, second.
    let time: u32 = 26 << 26 | 11 << 22 | 27 << 17 | 10 << 12 | 57 << 6 | 30;
    let uuid = *b"\x7e\x1f\x2a\0\x1c\x4e\x4f\x0a\x9a\x51\0\0\0\0\0\xff";
    let cases: [(&str, &[u8], &[u8]); 7] = [
        ("7e1f2a00-1c4e-4f0a-9a51-0000000000ff.", b"\x01u.", &uuid),
        ("at 2026-11-27T10:57:30Z", b"at \x01t", &time.to_le_bytes()),
        ("2000-00-00T00:00:00.000258Z", b"\x01m", &[0, 0, 0, 0, 2, 1, 0]),
        ("10.0.200.255:80", b"\x01i:80", &[10, 0, 200, 255]),
        ("sha256:0123abcdef", b"sha256:\x01\x84", &[0x01, 0x23, 0xab, 0xcd, 0xef]),
        ("fedcba987", b"\x01\x83", &[0xfe, 0xdc, 0xba, 0x98, 0x70]),
        ("2852045", b"\x01\x81", &[0x28, 0x52, 0x04, 0x50]),
    ];
    for (rest, text, values) in cases {
        assert_eq!(of_text(rest), (text.to_owned(), values.to_owned()), "{rest}");
    }
}

#[test]
fn what_has_no_shorter_form_stays() {
    for rest in [
        "7E1F2A00-1C4E-4F0A-9A51-0000000000FF",
        "7e1f2a0-1c4e-4f0a-9a51-0000000000F",
        "1999-11-27T10:57:30Z",
        "2064-11-27T10:57:30Z",
        "2026-11-27T10:57:64Z",
        "2026-11-27 10:57:30Z",
        "2026-11-27T10:57:30+01:00",
        "2026-11-27T10:57:30.123Z",
        "10.0.0.256 010.0.0.1 10.0.0. 10.0.0",
        "123456a 12345g78 facadefacade 12345 0123456",
        "00000000000000000000000000000000",
        "12345678901234567890",
    ] {
        assert_eq!(of_text(rest), (rest.as_bytes().to_owned(), Vec::new()));
    }
    assert_eq!(of_text(&"a1".repeat(67)).1.len(), 0, "{DIGITS_MAX} digits are the most");
    assert_eq!(of_text(&"a1".repeat(66)).1.len(), 66);
}

#[test]
fn eight_digits_at_once_are_the_same_as_two_by_two() {
    for digits in [b"01234567", b"89abcdef", b"f0e1d2c3", b"9a9a0f0f", b"ffffffff", b"00000000"] {
        let two_by_two: Vec<_> = digits.chunks(2).map(|two| nibble(two[0]) << 4 | nibble(two[1])).collect();
        assert_eq!(bytes_of(*digits).to_vec(), two_by_two);
    }
}

#[test]
fn values_keep_their_numbers_when_their_hashes_name_one_slot() {
    let json = b"aabbccddaabbee";
    let mut numbers = Numbers::default();
    let mut number = |value: Range<usize>, hash| numbers.find_or_add(json, &value, hash);
    let last = SLOTS as u64 - 1;
    // Another hash with the same slot, and another value with the same hash.
    assert_eq!([number(0..2, last), number(2..4, last + SLOTS as u64), number(4..6, last)], [None; 3]);
    assert_eq!(number(8..10, last), Some(0));
    assert_eq!(number(10..12, last + SLOTS as u64), Some(1));
    assert_eq!(number(4..6, last), Some(2));
    numbers.clear();
    assert_eq!(numbers.find_or_add(json, &(4..6), last), None);
    assert_eq!(numbers.find_or_add(json, &(4..6), last), Some(0));
}

#[test]
fn a_value_is_held_once() {
    let (text, values) = of_text("10.1.2.3 deadbeef01 10.1.2.3 deadbeef01");
    assert_eq!(text, b"\x01i \x01\x84 \x01A\0 \x01A\x01");
    assert_eq!(values.len(), 9);
    // More values than there are numbers: the last ones are held each time.
    let many: String = (0..300).map(|at| format!("10.1.{}.{} ", at / 256, at % 256)).collect();
    assert_eq!(of_text(&many.repeat(2)).1.len(), 4 * (300 + 45));
}

#[test]
fn texts_that_are_held_beside_are_left_out() {
    let (json, key, version) = object("web-1", "17", "web-1 or 17");
    let json = json.replace("web-1 or 17", r#"","host":"web-1","more":"shop"#);
    let Shortened { text, values, .. } = shortened(&json, &key, &version, &CommonValues::default());
    let metadata = r#"{"metadata":{"labels":@L,"name":@N,"namespace":@S,"uid":"@U","resourceVersion":"17"}"#;
    let expected = format!(r#"{metadata},"rest":"","host":@N,"more":@S}}"#);
    assert_eq!((String::from_utf8(text).unwrap().replace('\u{1}', "@"), values.len()), (expected, 0));
    // A label with the object's name is within the labels.
    let (json, key, version) = object("web", "1700", "");
    let text = shortened(&json, &key, &version, &CommonValues::default()).text;
    assert!(String::from_utf8(text).unwrap().contains("\"labels\":\u{1}L,\"name\":\u{1}N,"));
}

#[test]
fn parts_of_the_name_and_the_namespace_within_strings_are_left_out() {
    let rest = r#"","owner":"shop-web-5d","host":"shop-web.shop.svc","id":"6e1f2a00","command":"/bin/shop-web --id=shop-web-5d-x7"#;
    let (json, key, version) = object("shop-web-5d-x7", "1700", rest);
    let Shortened { text, values, .. } = shortened(&json, &key, &version, &CommonValues::default());
    let expected: [&[u8]; 4] = [
        b"\"owner\":\"\x01\x11\"",
        b"\"host\":\"\x01\x12.\x01s.svc\"",
        b"\"id\":\"\x01\x82\"",
        b"\"command\":\"/bin/\x01\x12 --id=\x01\x10\"",
    ];
    let text = text.escape_ascii().to_string();
    assert!(text.contains(&expected.join(&b","[..]).escape_ascii().to_string()), "{text}");
    assert_eq!(values, [0x6e, 0x1f, 0x2a, 0]);
}

#[test]
fn the_mark_of_a_uid_goes_before_that_of_a_part() {
    let (json, key, version) = object(&format!("{UID}-x7"), "1700", UID);
    let text = shortened(&json, &key, &version, &CommonValues::default()).text;
    let text = String::from_utf8(text).unwrap().replace('\u{1}', "@");
    assert!(text.contains("\"uid\":\"@U\"") && text.ends_with("\"rest\":\"@\u{11}\"}"), "{text}");
}

#[test]
fn common_values_stay_in_the_text() {
    let rest = |at: usize| format!("image deadbeef00 id {at:08x}f0 twice {at:08x}f0");
    let objects: Vec<_> = (0..10).map(|at| object("web-1", "17", &rest(at)).0).collect();
    let common = CommonValues::of(objects.iter().map(String::as_bytes));
    let (json, key, version) = object("web-1", "17", &rest(7));
    let Shortened { text, values, .. } = shortened(&json, &key, &version, &common);
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("image deadbeef00 id \u{1}"), "{text}");
    assert_eq!(values, [0, 0, 0, 7, 0xf0]);
}

#[test]
fn a_text_with_marks_is_not_shortened() {
    let (key, version) = (Key::new("", "n"), ResourceVersion::new("1"));
    let held = Held { key: &key, uid: "", version: &version, labels: Labels::Json("") };
    let at = HeldAt { uid: 0..0, version: 0..0, labels: 0..0 };
    assert_eq!(
        shorten(b"{\"a\":\"\x01N\"}", held, at, &CommonValues::default(), &mut Numbers::default()),
        None
    );
}

proptest! {
    /// What is found in any text becomes the same text again.
    #[test]
    fn shortening_is_lossless(
        parts in prop::collection::vec(prop_oneof![
            "[0-9a-f]{1,70}", "[0-9]{1,21}", "20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{6})?Z?",
            "[0-9]{1,3}(\\.[0-9]{1,3}){2,4}", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "[ -~&&[^\"\\\\]]{0,10}", "web-1", "web", "shop",
        ], 0..40),
        version in "[1-9][0-9]{0,12}",
        separator in "[ .:\\-]?",
        namespace in prop_oneof![Just("shop".to_owned()), "[a-cé0-9.:_-]{0,8}"],
        name in prop_oneof![Just("web-1".to_owned()), "[a-cé0-9.:_-]{1,40}", "([a-c]{1,3}[.-]){14,20}[a-c]"],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let chars: Vec<_> = name.chars().collect();
        let of_name = cuts.iter().map(|cut| chars[..=cut.index(chars.len())].iter().collect());
        let parts: Vec<String> = parts.into_iter().chain(of_name).chain([namespace.clone()]).collect();
        let (json, key, version) = object_in(&namespace, &name, &version, &parts.join(&separator));
        let common = CommonValues::of([json.as_bytes(); 3].into_iter());
        shortened(&json, &key, &version, &common);
        shortened(&json, &key, &version, &CommonValues::default());
    }
}
