//! Links that the configuration declares, beside the built-in ones.

use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::expand::{Environment, expand};
use super::setting::{Form, Value, Wrong};
use crate::k8s::{FieldMask, FieldPath, IndexPath, Link, LinkBy, SelectorForm};

/// Largest number of declared links. Each object of a graph is asked for all links of its kind.
const LINKS_MAX: usize = 100;

/// A declared link: objects of one resource refer to objects of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// The resource of the objects that refer: `PLURAL[.GROUP]`.
    pub from: String,
    /// Where they have the name of what they refer to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Where they have a label selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The resource that they refer to: `PLURAL[.GROUP]`.
    pub to: String,
}

/// The declared links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredLinks(Vec<LinkSpec>);

impl LinkSpec {
    /// The link.
    pub fn link(&self) -> Link {
        let by = match (&self.path, &self.selector) {
            (None, Some(path)) => LinkBy::Selector(path.clone(), SelectorForm::Query),
            (path, _) => LinkBy::Name(IndexPath::Field(FieldPath::new(path.clone().unwrap_or_default()))),
        };
        Link { from: self.from.clone().into(), by, to: self.to.clone().into(), when: None }
    }

    /// Checks it. An error has the name of the member, its value, and what is accepted.
    fn check(&self) -> Result<(), (&'static str, String, String)> {
        for (field, name) in [("from", &self.from), ("to", &self.to)] {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            let is_name = name.split('.').all(|part| !part.is_empty() && part.bytes().all(is_plain));
            if !is_name || name.len() > 253 {
                let accepted = "expected a resource as PLURAL[.GROUP], such as pods or deployments.apps";
                return Err((field, name.clone(), accepted.to_owned()));
            }
        }
        let (field, path) = match (&self.path, &self.selector) {
            (Some(path), None) => ("path", path),
            (None, Some(path)) => ("selector", path),
            (path, _) => {
                let accepted =
                    "expected either path, where the name is, or selector, where the label selector is";
                return Err(("path", path.clone().unwrap_or_default(), accepted.to_owned()));
            }
        };
        FieldMask::parse(path).map_err(|error| (field, path.clone(), error.to_string()))?;
        match path.contains(',') {
            true => Err((field, path.clone(), "expected one path".to_owned())),
            false => Ok(()),
        }
    }
}

impl Value for DeclaredLinks {
    type Plain = Vec<LinkSpec>;
    type Yaml = Vec<LinkSpec>;
    const FORM: Form = Form::Links;

    fn from_texts(texts: &[String]) -> Result<Self, Wrong> {
        let read = |text: &String| {
            let accepted = r#"expected {"from":"RESOURCE","path":"PATH","to":"RESOURCE"}"#;
            let spec: LinkSpec =
                serde_json::from_str(text).map_err(|error| format!("{accepted}: {error}"))?;
            spec.check().map_err(|(field, value, problem)| format!("{field} {value:?}: {problem}"))?;
            Ok(spec)
        };
        let wrong = |text: &String, problem| Wrong { value: text.clone(), problem };
        let specs: Result<Vec<_>, _> =
            texts.iter().map(|text| read(text).map_err(|problem| wrong(text, problem))).collect();
        let specs = specs?;
        match texts.get(LINKS_MAX) {
            Some(text) => Err(wrong(text, too_many())),
            None => Ok(Self(specs)),
        }
    }

    fn from_yaml(yaml: Vec<LinkSpec>, key: &str, environment: Environment<'_>) -> Result<Self, ConfigError> {
        let mut specs = Vec::new();
        for (index, mut spec) in yaml.into_iter().enumerate() {
            let place = format!("{key}[{index}]");
            let LinkSpec { from, path, selector, to } = &mut spec;
            let texts = [("from", Some(from)), ("path", path.as_mut()), ("selector", selector.as_mut())];
            for (field, text) in texts.into_iter().chain([("to", Some(to))]) {
                if let Some(text) = text {
                    *text = expand(&format!("{place}.{field}"), text, environment)?;
                }
            }
            let wrong = |field: &str, value, problem| ConfigError::Setting {
                key: format!("{place}{field}"),
                value,
                problem,
            };
            spec.check().map_err(|(field, value, problem)| wrong(&format!(".{field}"), value, problem))?;
            if index >= LINKS_MAX {
                return Err(wrong("", spec.from, too_many()));
            }
            specs.push(spec);
        }
        Ok(Self(specs))
    }

    fn plain(self) -> Vec<LinkSpec> {
        self.0
    }

    fn text(plain: &Vec<LinkSpec>) -> String {
        let texts: Vec<_> =
            plain.iter().map(|spec| serde_json::to_string(spec).unwrap_or_default()).collect();
        texts.join(" ")
    }
}

fn too_many() -> String {
    format!("expected at most {LINKS_MAX} links")
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigLayers, Serve, ServeSettings};
    use super::*;

    fn resolve(yaml: &str) -> Result<Serve, String> {
        let environment = |name: &str| (name == "KIND").then(|| "pods".to_owned());
        let settings =
            ServeSettings::from_yaml(&format!("watch: [{{resource: pods}}]\n{yaml}"), &environment)
                .map_err(|error| error.to_string())?;
        ConfigLayers { file: None, settings }.resolve(&environment).map_err(|error| error.to_string())
    }

    #[test]
    fn links_are_read_checked_and_expanded() {
        let config = resolve(
            "links: [{from: certificates.cert-manager.io, path: spec.secretName, to: secrets}, \
             {from: servicemonitors.monitoring.coreos.com, selector: spec.selector, to: $(KIND)}]",
        );
        let links = config.unwrap().links;
        assert_eq!((links.len(), &*links[1].to), (2, "pods"));
        assert_eq!(links[0].link().path(), "spec.secretName");
        assert!(matches!(links[1].link().by, LinkBy::Selector(..)));
        let texts: Vec<_> = links.iter().map(|link| serde_json::to_string(link).unwrap()).collect();
        assert_eq!(DeclaredLinks::from_texts(&texts).unwrap().0, links, "they can be typed again");
    }

    #[test]
    fn an_invalid_link_is_refused_by_name() {
        for (yaml, told) in [
            ("links: [{from: Pod, path: a, to: pods}]", "links[0].from \"Pod\""),
            ("links: [{from: pods, path: a, to: ''}]", "links[0].to \"\""),
            ("links: [{from: pods, to: pods}]", "links[0].path \"\": expected either path"),
            ("links: [{from: pods, path: a, selector: b, to: pods}]", "expected either path"),
            ("links: [{from: pods, path: a..b, to: pods}]", "links[0].path \"a..b\""),
            ("links: [{from: pods, path: 'a,b', to: pods}]", "expected one path"),
            ("links: [{from: pods, paths: a, to: pods}]", "paths"),
        ] {
            let error = resolve(yaml).unwrap_err();
            assert!(error.contains(told), "{yaml}: {error}");
        }
        let many = "{from: pods, path: a, to: pods},".repeat(LINKS_MAX + 1);
        assert!(resolve(&format!("links: [{many}]")).unwrap_err().contains("at most 100 links"));
    }
}
