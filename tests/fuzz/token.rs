//! Resume tokens: a printed token parses to the same token, and a parsed token prints as it was written.

use informerd::testing::hub::{Resumable, ResumeToken};
use informerd::testing::k8s::ResourceVersion;
use proptest::prelude::*;

use super::engine::Target;

/// Longer than any token of informerd; refused without being parsed.
const TOKEN_BYTES_MAX: usize = 32 << 10;

fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let token = match ResumeToken::parse(text) {
        Ok(token) => token,
        Err(error) => {
            let said = error.to_string();
            assert!(said.len() < 1000 && said.contains("resource:resourceVersion"), "{said}");
            assert!(text.contains(&error.part), "{said} does not name a part of its input");
            return;
        }
    };
    assert!(text.len() <= TOKEN_BYTES_MAX && !token.is_empty());
    let printed = token.to_string();
    assert_eq!(ResumeToken::parse(&printed).as_ref(), Ok(&token), "printed as {printed:?}");
    // The part that marks a bookmark is not a resource.
    let text = text.strip_suffix(",.kind:bookmark").unwrap_or(text);
    for part in text.split(',') {
        let (name, version) = part.trim().rsplit_once(':').expect("a part has a colon");
        let first = text.split(',').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix(':'));
        if first == Some(version) && !version.contains('~') {
            assert_eq!(token.get(name), Some(&Resumable::from(ResourceVersion::new(version))));
        }
    }
    assert_eq!(token.len(), text.split(',').count());
    assert_eq!(token.get("no such informer"), None);
}

/// Versions compare as numbers of 128 bits. A text that is not a number compares with nothing.
fn check_version(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let version = ResourceVersion::new(text);
    assert_eq!(version.to_string(), text, "changed");
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = digits && (text == "0" || !text.starts_with('0'));
    let most = u128::MAX.to_string();
    let fits = text.len() < most.len() || (text.len() == most.len() && text <= &*most);
    assert_eq!(version.is_number(), canonical && fits);
    for other in ["0", "1", "9", "10", "99999999999999999999", "340282366920938463463374607431768211455"] {
        let ours = version.partial_cmp(&ResourceVersion::new(other));
        // By length, then by digits (KEP-5504).
        let theirs = (text.len(), text).cmp(&(other.len(), other));
        assert_eq!(ours, version.is_number().then_some(theirs), "beside {other}");
    }
    assert_eq!(version.is_zero(), text == "0");
    let token: ResumeToken = [("pods".to_owned(), version.clone())].into_iter().collect();
    if !text.is_empty() && text.len() < 1000 {
        let printed = token.to_string();
        assert_eq!(ResumeToken::parse(&printed).as_ref(), Ok(&token), "given out as {printed:?}");
        assert!(printed.bytes().all(|byte| byte.is_ascii_graphic()), "{printed:?} cannot stand in a header");
    }
}

#[test]
fn a_token_reads_back_as_it_was_written() {
    let tokens = &[
        ":",
        ",",
        "/",
        ".",
        "-",
        "~",
        "%",
        "pods",
        "deployments.apps",
        "pods/ns-1",
        ":0",
        ":7",
        " ",
        "00",
        "é",
        "\n",
        "\0",
        "340282366920938463463374607431768211455",
        "340282366920938463463374607431768211456",
        "18446744073709551616",
        "~2C",
        "~~",
        "~zz",
        "~C3~A9",
        "~FF",
    ];
    Target { name: "token", tokens, check: &check }.run(1);
    Target { name: "token", tokens, check: &check_version }.run(2);
    let versions = prop_oneof![
        "[0-9]{1,40}",
        "\\PC{0,12}",
        "[0-9a-f~:,=+/]{1,20}",
        "3402823669209384634633746074317682114[0-9]{2}"
    ];
    Target { name: "token", tokens, check: &check_version }.generate(versions, 2);
}

#[test]
fn a_token_that_is_too_long_is_refused_whole() {
    let long = "pods:1,".repeat(TOKEN_BYTES_MAX / 7) + "pods:12345";
    assert!(long.len() > TOKEN_BYTES_MAX);
    let error = ResumeToken::parse(&long).unwrap_err();
    assert!(error.to_string().len() < 200, "{error}");
}
