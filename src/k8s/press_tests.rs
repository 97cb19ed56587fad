use proptest::prelude::*;

use super::*;
use crate::k8s::places::Places;
use crate::k8s::{
    Damaged, DecodeOptions, Decoder, FieldPath, IndexPath, IndexPaths, Resource, ResourceParts, damages,
};

fn decoder() -> Decoder {
    let options =
        DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
    Decoder::new(Resource::new(ResourceParts::default()), options)
}

fn pod(at: usize, note: &str) -> Object {
    // Some uids are UUIDs, as in every cluster, and some are not.
    let uid =
        if at.is_multiple_of(2) { format!("6e1f2a00-1c4e-4f0a-9a51-{at:012x}") } else { format!("u-{at}") };
    pod_of(at, &uid, note)
}

fn pod_of(at: usize, uid: &str, note: &str) -> Object {
    let name = format!("web-{at}");
    let json = serde_json::json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": "shop", "uid": uid, "resourceVersion": at.to_string(),
            "labels": {"app": format!("app-{}", at % 3)},
        },
        "spec": {"nodeName": format!("node-{}", at % 7), "containers": vec![
            serde_json::json!({"name": "web", "image": "registry.example.com/shop/web:1.4.2", "env": []}); 4
        ]},
        "status": {"phase": "Running", "note": note},
    });
    decoder().object(&json.to_string()).unwrap()
}

fn packed_of(objects: &[Object]) -> Vec<Option<Object>> {
    let Some(dictionary) = Dictionary::train(objects, 4096) else { return vec![None; objects.len()] };
    Press::new(Arc::new(dictionary)).pack(objects, &mut CommonLabels::default())
}

fn lent(object: &Object) -> Vec<u8> {
    let mut lent = Vec::new();
    object.lend(|json| lent = json.to_vec());
    lent
}

#[test]
fn a_thread_keeps_the_json_of_an_object_that_clients_read_again() {
    let objects: Vec<_> = (1..200).map(|at| pod(at, "fine")).collect();
    let packed: Vec<_> = packed_of(&objects).into_iter().map(Option::unwrap).collect();
    let kept = || packed.iter().filter_map(Object::json_at_hand).count();
    assert_eq!((objects[0].json_at_hand(), packed[0].json_at_hand()), (Some(objects[0].json()), None));
    let read = |objects: &[Object]| objects.iter().for_each(Object::note_read);
    read(&packed[..50]);
    assert_eq!(kept(), 0, "they were read once");
    read(&packed[..50]);
    // Two of them may have one place.
    assert!((35..=50).contains(&kept()), "{} are kept", kept());
    for (object, packed) in objects.iter().zip(&packed) {
        assert!(packed.json_at_hand().is_none_or(|json| json == object.json()));
    }
}

#[test]
fn a_packed_object_is_the_same_object() {
    let objects: Vec<_> = (1..200).map(|at| pod(at, "fine")).collect();
    let paths = IndexPaths::new(vec![IndexPath::Label("app".into())]);
    objects[5].values(&paths);
    objects[5].content_hash();
    for (object, packed) in objects.iter().zip(packed_of(&objects)) {
        let packed = packed.expect("similar objects are packed");
        assert!(packed.held_bytes() * 4 < object.held_bytes(), "{} bytes", packed.held_bytes());
        let plain = Object::plain(packed.clone());
        for other in [&packed, &plain] {
            let is_found = object.is_same(&objects[5]);
            assert_eq!((other.has_content_hash(), other.has_values()), (is_found, is_found));
            assert_eq!(other.resource_version(), object.resource_version());
        }
        assert_eq!((packed.key(), packed.uid()), (object.key(), object.uid()));
        assert_eq!((packed.labels(), packed.json_len()), (object.labels(), object.json_len()));
        assert_eq!((lent(object), lent(&packed)), (object.json().to_vec(), object.json().to_vec()));
        assert_eq!(packed.json(), object.json());
        // Now this thread remembers it.
        assert_eq!(packed.json_at_hand(), Some(object.json()));
        assert_eq!(packed.json_around_version(), object.json_around_version());
        assert_eq!(packed.metadata(), object.metadata());
        assert_eq!(packed.content_hash(), object.content_hash());
        assert_eq!(packed.values(&paths).get(0).iter().collect::<Vec<_>>().len(), 1);
        assert_eq!(Object::plain(packed.clone()).json(), object.json());
        assert!(Object::plain(packed.clone()).dictionary().is_none());
    }
}

#[test]
fn an_object_whose_version_is_not_in_its_head_is_not_packed() {
    let mut objects: Vec<_> = (1..200).map(|at| pod(at, "fine")).collect();
    for (at, version) in ["x1", "18446744073709551615", "18446744073709551614"].into_iter().enumerate() {
        let json = String::from_utf8(pod(1, "fine").json().to_vec()).unwrap();
        let other = json.replace(r#""resourceVersion":"1""#, &format!(r#""resourceVersion":"{version}""#));
        objects[at] = decoder().object(&other).unwrap();
    }
    let packed = packed_of(&objects);
    assert_eq!(packed.iter().map(Option::is_some).take(4).collect::<Vec<_>>(), [false, false, true, true]);
    let versions: Vec<_> = [&packed[2], &packed[3]]
        .into_iter()
        .flatten()
        .map(|object| object.resource_version().to_string())
        .collect();
    assert_eq!(versions, ["18446744073709551614", "4"]);
}

#[test]
fn a_dictionary_has_its_text_again_or_none() {
    let text = "a text of some length ".repeat(40);
    let dictionary = || Dictionary::new(text.as_bytes(), CommonValues::default());
    assert_eq!(dictionary().bytes(), text.as_bytes());
    let tables = 27 << 10;
    assert!((tables + text.len()..tables + 2 * text.len()).contains(&dictionary().held_bytes()));
    for at in 0..text.len() {
        for mask in [1, 0x80, 0xff] {
            // A bit of zstd's head may have no meaning.
            let bytes = dictionary().damaged_at(at, mask).bytes();
            assert!(bytes.is_empty() || bytes == text.as_bytes(), "byte {at}: {bytes:?}");
        }
    }
}

#[test]
fn objects_are_the_same_if_they_are_packed_without_the_text_of_their_dictionary() {
    let objects: Vec<_> = (1..200).map(|at| pod(at, "fine")).collect();
    let dictionary =
        Dictionary::train(&objects, 4096).expect("similar objects have one").damaged_at(40, 0xff);
    assert!(dictionary.bytes().is_empty());
    let packed = Press::new(Arc::new(dictionary)).pack(&objects, &mut CommonLabels::default());
    for (object, packed) in objects.iter().zip(packed) {
        assert_eq!(packed.expect("it is packed by itself").json(), object.json());
    }
}

#[test]
fn the_json_is_a_part_of_the_object_and_outlives_its_handles() {
    let object = pod(1, "fine");
    let (clone, other) = (object.clone(), pod(1, "fine"));
    assert!(object.is_same(&clone) && !object.is_same(&other));
    let (json, text) = (object.json(), object.text().to_vec());
    assert_eq!(json.as_ptr(), clone.text().as_ptr());
    let ((before, after), (metadata, version)) = (object.json_around_version(), object.metadata());
    assert!(json.as_ptr_range().contains(&metadata.as_ptr()));
    assert_eq!(metadata[version], *b"1");
    drop((object, clone));
    assert_eq!(json, text);
    assert_eq!([&before[..], b"1", &after[..]].concat(), text);
    assert_eq!(other.json(), text);
}

#[test]
fn incompressible_objects_are_not_packed() {
    // Letters without a pattern, by a linear congruential generator.
    let noise = |seed: usize| -> String {
        let mut state = seed as u64 + 1;
        let mut letter = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(
                b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[(state >> 58) as usize],
            )
        };
        (0..20_000).map(|_| letter()).collect()
    };
    let mut objects: Vec<_> = (1..60).map(|at| pod(at, "fine")).collect();
    objects.push(pod(60, &noise(60)));
    // A letter carries six of eight bits, so even noise saves a fifth. Packing must save more than that.
    let packed = packed_of(&objects);
    assert!(packed[3].is_some());
    if let Some(packed) = &packed[59] {
        assert!(packed.held_bytes() * 5 <= packed.json_len() * 4);
    }
    // Objects that are packed already are left alone.
    let again: Vec<_> = packed.into_iter().flatten().collect();
    assert!(packed_of(&again).iter().all(Option::is_none));
}

#[test]
fn a_thread_unpacks_an_object_once_for_several_uses() {
    let objects: Vec<_> = (1..100).map(|at| pod(at, "fine")).collect();
    let packed: Vec<_> = packed_of(&objects).into_iter().flatten().collect();
    let (first, second) = (packed[0].json(), packed[0].json());
    assert_eq!(first.as_ptr(), second.as_ptr());
    packed[1].json();
    assert_eq!(packed[0].json(), first);
}

#[test]
fn what_a_thread_remembers_does_not_keep_the_dictionary() {
    let objects: Vec<_> = (1..100).map(|at| pod(at, "fine")).collect();
    let dictionary = Arc::new(Dictionary::train(&objects, 4096).unwrap());
    let held = Arc::downgrade(&dictionary);
    let packed = Press::new(dictionary).pack(&objects, &mut CommonLabels::default());
    assert_eq!(packed[0].as_ref().map(Object::json), Some(objects[0].json()));
    drop(packed);
    assert!(held.upgrade().is_none());
}

/// An object with these labels, as JSON.
fn labelled(at: usize, labels: &str) -> Object {
    let metadata = format!(r#""name":"web-{at}","uid":"u-{at}","resourceVersion":"{at}","labels":{labels}"#);
    let status = format!(r#"{{"ready":"{}"}}"#, "yes ".repeat(100));
    decoder().object(&format!(r#"{{"metadata":{{{metadata}}},"status":{status}}}"#)).unwrap()
}

#[test]
fn labels_of_any_shape_are_packed_losslessly() {
    let shapes = [
        r#"{"app":"web","tier":"front"}"#,
        r#"{"app":"","tier":"\"\\"}"#,
        r#"{"\u0061pp":"\u0041"}"#,
        r#"{"app":"\ud800","tier":"x"}"#,
        r#"{"\ud800":"x","tier":"x"}"#,
        r#"{"app":1,"tier":["x"]}"#,
        "{}",
        "null",
    ];
    let objects: Vec<_> = shapes.iter().zip(100..).map(|(labels, at)| labelled(at, labels)).collect();
    for (object, packed) in objects.iter().zip(packed_of(&objects)) {
        let packed = packed.unwrap_or_else(|| panic!("{} is not packed", object.labels_json()));
        assert_eq!((packed.labels_json(), packed.labels()), (object.labels_json(), object.labels()));
        assert_eq!(packed.json(), object.json());
        assert_eq!(Object::plain(packed).labels_json(), object.labels_json());
    }
}

#[test]
fn objects_share_their_labels_and_templates() {
    let labels = |at: usize| format!(r#"{{"app":"web","owner":"{}"}}"#, at / 10);
    let objects: Vec<_> = (0..100).map(|at| labelled(at, &labels(at))).collect();
    let dictionary = Arc::new(Dictionary::train(&objects, 4096).unwrap());
    let mut common = CommonLabels::default();
    let mut of = |at: usize| common.of(&dictionary, &labels(at));
    let [one, sibling, other] = [50, 59, 60].map(&mut of);
    assert_eq!(one.values().as_ptr(), sibling.values().as_ptr());
    assert_ne!(one.values().as_ptr(), other.values().as_ptr());
    assert!(Arc::ptr_eq(one.template(), other.template()));
    // Those of more owners than are remembered are the same labels in another place.
    (0..20 * LABELS_LEN_MAX).step_by(10).for_each(|at| drop(of(at)));
    let again = of(50);
    assert_ne!(one.values().as_ptr(), again.values().as_ptr());
    assert_eq!(one.labels().json(), again.labels().json());
}

#[test]
fn labels_that_are_remembered_do_not_keep_the_dictionary_before() {
    let objects: Vec<_> = (0..100).map(|at| labelled(at, r#"{"app":"web"}"#)).collect();
    let train = || Arc::new(Dictionary::train(&objects, 4096).unwrap());
    let (first, second) = (train(), train());
    let held = Arc::downgrade(&first);
    let mut common = CommonLabels::default();
    drop(common.of(&first, r#"{"app":"web"}"#));
    drop(common.of(&first, r#"{"tier":"front"}"#));
    drop(first);
    assert!(held.upgrade().is_some());
    common.of(&second, r#"{"app":"web"}"#);
    assert!(held.upgrade().is_none());
}

#[test]
fn each_damaged_byte_of_an_object_of_the_usual_form_is_detected() {
    let objects: Vec<_> = (100..200).map(|at| pod(at, "fine")).collect();
    let object = &objects[8];
    let packed = packed_of(&objects)[8].clone().unwrap();
    let mut errors = 0;
    for at in 0..packed.held_bytes() {
        for mask in [1, 0x80, 0xff] {
            let damaged = packed.damaged_at(at, mask);
            match damaged.try_json() {
                Ok(json) => {
                    assert_eq!((json, Object::plain(damaged).places()), (object.json(), object.places()))
                }
                Err(Damaged) => errors += 1,
            }
        }
    }
    // A few bits have no meaning.
    assert!(errors > packed.held_bytes() * 3 - 12, "{errors} of {}", packed.held_bytes() * 3);
}

#[test]
fn uids_of_any_form_are_packed_losslessly() {
    let uids = [
        "6e1f2a00-1c4e-4f0a-9a51-00000000000a",
        // Only the canonical form may be held as 16 bytes.
        "6E1F2A00-1C4E-4F0A-9A51-00000000000A",
        "6e1f2a001c4e4f0a9a5100000000000a",
        "{6e1f2a00-1c4e-4f0a-9a51-00000000000a}",
        "",
        "quoted \"text\"",
        &"x".repeat(253),
    ];
    let objects: Vec<_> = uids.iter().zip(1..).map(|(uid, at)| pod_of(at, uid, "fine")).collect();
    for (object, packed) in objects.iter().zip(packed_of(&objects)) {
        let packed = packed.unwrap_or_else(|| panic!("{} is not packed", object.uid()));
        assert_eq!((packed.uid(), packed.json()), (object.uid(), object.json()));
        assert_eq!(Object::plain(packed).places(), object.places());
    }
    let objects = [pod_of(1, &"x".repeat(254), "fine")];
    assert!(packed_of(&objects)[0].is_none(), "there is no form for a uid of this length");
}

#[test]
fn the_identity_stands_at_the_same_places_in_unpacked_json() {
    let uuid = "6e1f2a00-1c4e-4f0a-9a51-00000000000a";
    let object = |version: &str, labels: &str, note: &str| {
        let metadata = format!(r#""name":"web","uid":"{uuid}","resourceVersion":"{version}"{labels}"#);
        let status = format!(r#""ready":"{}","note":"{note}""#, "yes ".repeat(200));
        decoder().object(&format!(r#"{{"metadata":{{{metadata}}},"status":{{{status}}}}}"#)).unwrap()
    };
    let labels = r#","labels":{"app":"web"}"#;
    let long: String =
        (0..100_000).map(|at: u32| format!("{},", at.wrapping_mul(0x9e37_79b9) % 1000)).collect();
    let objects = [
        object("1234", labels, "usual"),
        // Texts that are no longer than a mark have none.
        object("12", labels, "short version"),
        object("1234", r#","labels":{}"#, "empty labels"),
        object("1234", "", "no labels"),
        // A block of a frame has at most 128 KiB.
        object("1234", labels, &long),
    ];
    let packed: Vec<_> = packed_of(&objects).into_iter().map(Option::unwrap).collect();
    for (object, packed) in objects.iter().zip(&packed) {
        assert_eq!(packed.json(), object.json());
        let plain = Object::plain(packed.clone());
        assert_eq!((plain.places(), plain.labels_json()), (object.places(), object.labels_json()));
    }
    let [usual, short, ..] = &packed[..] else { unreachable!() };
    // The places, and the head of the frame and of its block.
    assert!(usual.held_bytes() + 8 < short.held_bytes(), "{usual:?}");
}

#[test]
fn nothing_that_was_read_of_a_damaged_object_stays_with_it() {
    let objects: Vec<_> = (1..51).map(|at| pod(at, "fine")).collect();
    let damaged = packed_of(&objects)[7].as_ref().unwrap().damaged();
    let paths = IndexPaths::new(vec![IndexPath::Field(FieldPath::new("spec.nodeName"))]);
    let node_of =
        |object: &Object| object.values(&paths).get(0).iter().map(ToString::to_string).collect::<Vec<_>>();
    for _ in 0..2 {
        let before = damages();
        assert_ne!(node_of(&damaged), node_of(&objects[7]));
        assert!(damages() > before);
        let before = damages();
        assert_ne!(damaged.content_hash(), objects[7].content_hash());
        assert!(damages() > before && !damaged.has_content_hash());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Unpacking damaged bytes gives the object or an error.
    #[test]
    fn damaged_bytes_are_detected(at in any::<usize>(), mask in 1..=255u8, which in 0..50usize) {
        let objects: Vec<_> = (75..125).map(|at| pod(at, "fine")).collect();
        let object = packed_of(&objects)[which].clone().unwrap();
        let damaged = object.damaged_at(at, mask);
        let before = damages();
        match damaged.try_json() {
            // A bit without a meaning in the frame's head.
            Ok(json) => {
                prop_assert_eq!(&lent(&damaged), &json);
                prop_assert_eq!(Object::plain(damaged.clone()).places(), objects[which].places());
                prop_assert_eq!(json, objects[which].json());
            }
            Err(Damaged) => {
                prop_assert!(damages() > before);
                let before = damages();
                prop_assert_eq!(lent(&damaged), damaged.json());
                prop_assert!(damages() > before);
                // It shows its identity, and nothing wrong.
                let shown: serde_json::Value = serde_json::from_slice(&damaged.json()).unwrap();
                if damaged.uid() == object.uid() {
                    prop_assert_eq!(shown["metadata"]["uid"].as_str(), Some(&*object.uid()));
                }
                prop_assert_eq!(shown.as_object().unwrap().len(), 1);
                prop_assert_eq!(damaged.metadata().0.len(), damaged.json().len() - 13);
                prop_assert_eq!(damaged.labels(), object.labels());
            }
        }
    }

    /// Where the identity stands in the JSON is checked like the JSON.
    #[test]
    fn damaged_places_are_detected(mask in 1..0x80u8, which in 0..50usize) {
        let uid = |at: usize| format!("6e1f2a00-1c4e-4f0a-9a51-{at:012x}");
        let objects: Vec<_> = (1..51).map(|at| pod_of(at, &uid(at), "fine")).collect();
        let object = packed_of(&objects)[which].clone().unwrap();
        let Places { uid, version, labels } = objects[which].places();
        let numbers = [version.start, version.end - version.start, uid.start, labels.start];
        // These versions are no longer than a mark, so the places are held. Of a number, each byte has seven bits. The mask does not change
        // its length.
        let len: usize = numbers.iter().map(|number| if *number < 0x80 { 1 } else { 2 }).sum();
        // They follow the uid's form and its 16 bytes.
        for at in 17..17 + len {
            prop_assert!(object.damaged_at(at, mask).try_json().is_err(), "byte {}", at);
        }
    }

    #[test]
    fn packing_any_objects_is_lossless(notes in prop::collection::vec(".{0,400}", 1..20)) {
        let objects: Vec<_> = notes.iter().enumerate().map(|(at, note)| pod(at + 1, note)).collect();
        for (object, packed) in objects.iter().zip(packed_of(&objects)) {
            if let Some(packed) = packed {
                prop_assert_eq!(packed.json(), object.json());
            }
        }
    }
}
