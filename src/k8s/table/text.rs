//! Pieces that several kinds print alike.

use super::tree::Tree;

/// Labels as `k=v,…` by key; `<none>` where there are none.
///
/// Source: `FormatLabels` of `k8s.io/apimachinery/pkg/labels`.
pub(super) fn labels(tree: &Tree<'_>) -> String {
    let mut pairs: Vec<String> = tree.entries().iter().map(|(key, value)| pair(key, value)).collect();
    pairs.sort_unstable();
    or_none(pairs.join(","))
}

/// A label selector by key, in the grammar of `kubectl -l`; empty where it selects all or nothing.
///
/// Source: `LabelSelectorAsSelector` of `k8s.io/apimachinery/pkg/apis/meta/v1` and `Selector.String`.
pub(super) fn selector(tree: &Tree<'_>) -> String {
    let labels = tree.get("matchLabels").entries().iter();
    let mut terms: Vec<(&str, String)> = labels.map(|(key, value)| (&**key, pair(key, value))).collect();
    for expression in tree.list("matchExpressions") {
        let key = expression.text("key");
        let mut values: Vec<&str> = expression.list("values").iter().filter_map(Tree::as_text).collect();
        values.sort_unstable();
        let values = values.join(",");
        terms.push((
            key,
            match expression.text("operator") {
                "In" => format!("{key} in ({values})"),
                "NotIn" => format!("{key} notin ({values})"),
                "Exists" => key.to_owned(),
                "DoesNotExist" => format!("!{key}"),
                _ => return "<error>".to_owned(),
            },
        ));
    }
    terms.sort_by(|one, other| one.0.cmp(other.0));
    terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(",")
}

/// The names and the images of containers.
pub(super) fn containers(pod_spec: &Tree<'_>) -> (String, String) {
    let all = |field: &str| join(pod_spec.list("containers").iter().map(|container| container.text(field)));
    (all("name"), all("image"))
}

/// `a,b,c + 2 more...`: at most so many of the items.
pub(super) fn list_with_more(items: &[String], shown_max: usize, separator: &str) -> String {
    let shown = items[..items.len().min(shown_max)].join(separator);
    and_more(shown, items.len().saturating_sub(shown_max))
}

/// The shown items, and how many more there are.
pub(super) fn and_more(shown: String, more: usize) -> String {
    if more == 0 { shown } else { format!("{shown} + {more} more...") }
}

/// Joined by commas.
pub(super) fn join<'s>(texts: impl Iterator<Item = &'s str>) -> String {
    texts.collect::<Vec<_>>().join(",")
}

/// The text, or `<none>`.
pub(super) fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

/// `name (default)` where an annotation says so.
pub(super) fn default_name(object: &Tree<'_>, annotations: &[&str]) -> String {
    let name = object.text("metadata.name");
    let all = object.at("metadata.annotations");
    let is_default = annotations.iter().any(|annotation| all.get(annotation).as_text() == Some("true"));
    if is_default { format!("{name} (default)") } else { name.to_owned() }
}

/// The first condition of a type.
pub(super) fn condition<'s, 'a>(conditions: &'s [Tree<'a>], kind: &str) -> Option<&'s Tree<'a>> {
    conditions.iter().find(|condition| condition.text("type") == kind)
}

/// Whether the first condition of a type is `True`.
pub(super) fn is_so(conditions: &[Tree<'_>], kind: &str) -> bool {
    condition(conditions, kind).is_some_and(|condition| condition.text("status") == "True")
}

fn pair(key: &str, value: &Tree<'_>) -> String {
    format!("{key}={}", value.as_text().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn tree(json: &str) -> Tree<'_> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn selectors_are_printed_as_they_are_typed() {
        for (json, expected) in [
            ("null", ""),
            ("{}", ""),
            (r#"{"matchLabels":{"b":"2","a":"1"}}"#, "a=1,b=2"),
            (
                r#"{"matchLabels":{"m":"1"},"matchExpressions":[{"key":"z","operator":"Exists"},
                    {"key":"a","operator":"In","values":["y","x"]},{"key":"n","operator":"NotIn","values":["v"]},
                    {"key":"b","operator":"DoesNotExist"}]}"#,
                "a in (x,y),!b,m=1,n notin (v),z",
            ),
            (r#"{"matchExpressions":[{"key":"z","operator":"Like"}]}"#, "<error>"),
        ] {
            assert_eq!(selector(&tree(json)), expected, "{json}");
        }
        assert_eq!(labels(&tree(r#"{"b":"2","a":""}"#)), "a=,b=2");
        assert_eq!(labels(&tree("null")), "<none>");
    }

    #[test]
    fn long_lists_are_cut() {
        let items = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        assert_eq!(list_with_more(&items(0), 3, ","), "");
        assert_eq!(list_with_more(&items(3), 3, ","), "0,1,2");
        assert_eq!(list_with_more(&items(5), 3, ","), "0,1,2 + 2 more...");
    }
}
