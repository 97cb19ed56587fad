//! Expands `$(NAME)` from the environment, as in a pod's manifest.

use super::error::ConfigError;

/// Looks up a name in the environment. A parameter, so that tests can use their own.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Expands `$(NAME)` in the value of a key of the file.
pub(super) fn expand(key: &str, value: &str, environment: Environment<'_>) -> Result<String, ConfigError> {
    expanded(value, environment).map_err(|name| ConfigError::Unset {
        key: key.to_owned(),
        value: value.to_owned(),
        name,
    })
}

/// Replaces each `$(NAME)` by its value. `$$(` stands for `$(`, any other `$` for itself.
///
/// # Errors
/// The name that is not set. The kubelet leaves such a reference unchanged, but a selector that silently matches nothing
/// is worse than not starting.
///
/// Source: `k8s.io/kubernetes/third_party/forked/golang/expansion`.
fn expanded(text: &str, environment: Environment<'_>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        expanded.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        if let Some(after) = rest.strip_prefix("$(") {
            expanded.push_str("$(");
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            expanded.push_str(&environment(name).ok_or_else(|| name.to_owned())?);
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::expanded;

    #[test]
    fn variables_are_expanded_once_and_unset_ones_reported() {
        let environment = |name: &str| match name {
            "NODE" => Some("node-1".to_owned()),
            "TRICK" => Some("$(NODE)".to_owned()),
            _ => None,
        };
        for (text, expected) in [
            ("spec.nodeName=$(NODE)", Ok("spec.nodeName=node-1")),
            ("$(NODE)/$(NODE)", Ok("node-1/node-1")),
            ("$$(NODE)", Ok("$(NODE)")),
            ("$(TRICK)", Ok("$(NODE)")),
            ("cost=$5 $", Ok("cost=$5 $")),
            ("$(NODE", Ok("$(NODE")),
            ("plain", Ok("plain")),
            ("$(NOPE)", Err("NOPE")),
        ] {
            let actual = expanded(text, &environment);
            assert_eq!(actual.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }
}
