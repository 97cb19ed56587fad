use super::*;

/// Texts that share most of their parts, in the same order.
fn alike(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|at| {
            // Every tenth part has a text of its own.
            let size = |nth: usize| if nth.is_multiple_of(10) { at * 7919 + nth } else { nth * nth };
            let part =
                |nth| format!(r#"{{"name":"part-{}","size":{},"state":"ready"}}"#, nth * 31, size(nth));
            (0..40).map(part).collect::<Vec<_>>().join(",").into_bytes()
        })
        .collect()
}

/// Short texts of a hundred forms.
fn of_many_forms(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|at| {
            let form = at % 100;
            format!(
                r#"{{"reason":"Reason{}","message":"{at}: {}"}}"#,
                form * form,
                "went on ".repeat(form / 10)
            )
        })
        .map(String::into_bytes)
        .collect()
}

fn slices(texts: &[Vec<u8>]) -> Vec<&[u8]> {
    texts.iter().map(|text| &text[..]).collect()
}

#[test]
fn objects_of_one_form_are_packed_by_a_whole_one() {
    let texts = alike(400);
    let texts = slices(&texts);
    let best = best_for(&texts, 32 << 10);
    assert!(
        texts.iter().any(|text| best.ends_with(text)) && best.len() < 2 * texts[0].len(),
        "{}",
        String::from_utf8_lossy(&best)
    );
    let chosen = from_samples(&texts, 32 << 10).unwrap();
    assert!(packed_len(&texts, &best) < packed_len(&texts, &chosen));
}

#[test]
fn objects_of_many_forms_are_packed_by_many() {
    let texts = of_many_forms(4000);
    let texts = slices(&texts);
    let best = best_for(&texts, 4096);
    assert!(best.len() > 2048);
    let [one, other] = [&best[..], texts[2000]].map(|dictionary| packed_len(&texts, dictionary));
    assert!(one * 5 < other * 4, "{one} bytes, and {other} with one text");
}

#[test]
fn a_dictionary_has_the_tables_of_another_one() {
    let texts = of_many_forms(4000);
    let texts = slices(&texts);
    let chosen = from_samples(&texts, 4096).unwrap();
    let tables = tables_of(&chosen);
    assert!((100..500).contains(&tables.len()), "{} bytes", tables.len());
    let [with, without] =
        [tables, &[]].map(|tables| packed_len(&texts, &[tables, &texts[..40].concat()].concat()));
    assert!(with < without, "{with} bytes with tables, {without} without");
}

#[test]
fn texts_that_take_turns_are_on_both_sides() {
    for period in 2..=8 {
        for first in 0..period {
            let held_out = (first..400).step_by(period).filter(|at| is_held_out(*at)).count();
            let share = 400 / period / HELD_OUT_SHARE as usize;
            assert!((share / 2..=share * 2).contains(&held_out), "{held_out} of period {period}");
        }
    }
}

#[test]
fn texts_that_do_not_fit_make_room_for_others() {
    let texts = [&[b'a'; 10][..], b"bbb", b"cc"];
    assert_eq!(joined(texts.iter(), 5), b"bbbcc");
    assert_eq!(joined(texts.iter(), 13), b"aaaaaaaaaabbb");
    assert_eq!(joined(texts.iter(), 1), b"a");
    assert_eq!(joined([].iter(), 1), b"");
}

#[test]
fn a_dictionary_of_few_texts_is_no_longer_than_it_may_be() {
    let texts = alike(3);
    let texts = slices(&texts);
    for bytes_max in [1, 100, 300, texts[1].len(), 10_000] {
        assert!(best_for(&texts[..1], bytes_max).len() <= bytes_max);
        assert!(best_for(&texts, bytes_max).len() <= bytes_max);
    }
    assert_eq!(best_for(&[b""], 100), b"");
    // With tables before their text.
    let texts = of_many_forms(4000);
    let texts = slices(&texts);
    for bytes_max in [256, 300, 1000] {
        let [one, many, chosen] = candidates(&texts, bytes_max);
        assert!(!tables_of(&chosen).is_empty() || bytes_max == 256);
        assert!([one, many, chosen].iter().all(|dictionary| dictionary.len() <= bytes_max));
    }
}
