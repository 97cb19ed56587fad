//! HorizontalPodAutoscalers, of every version there has been.
//!
//! `autoscaling/v1` keeps all metrics but one in annotations, with the field names of `v2beta1`; `v2beta2` and `v2` have
//! field names of their own. Whichever name an object has is read.
//!
//! Source: `printHorizontalPodAutoscaler` of `k8s.io/kubernetes/pkg/printers/internalversion`, and the conversion of
//! `k8s.io/kubernetes/pkg/apis/autoscaling/v1`.

use serde_json::Value;

use super::context::Context;
use super::text::list_with_more;
use super::tree::Tree;

const UNKNOWN: &str = "<unknown>";

/// The minor version from which the name of a resource stands before its target.
const NAMED_SINCE: u32 = 31;

pub(super) fn autoscaler(object: &Tree<'_>, context: &Context) -> Vec<Value> {
    let target = object.at("spec.scaleTargetRef");
    vec![
        object.text("metadata.name").into(),
        format!("{}/{}", target.text("kind"), target.text("name")).into(),
        metrics(object, context).into(),
        match object.at("spec.minReplicas").as_int() {
            Some(least) => least.to_string(),
            None => "<unset>".to_owned(),
        }
        .into(),
        object.int("spec.maxReplicas").into(),
        object.int("status.currentReplicas").into(),
        context.age(object).into(),
    ]
}

fn metrics(object: &Tree<'_>, context: &Context) -> String {
    let specs = object.list("spec.metrics");
    let texts = if object.text("apiVersion") == "autoscaling/v1" {
        texts_of_v1(object, context)
    } else {
        texts(specs, object.list("status.currentMetrics"), context)
    };
    if texts.is_empty() { "<none>".to_owned() } else { list_with_more(&texts, 2, ", ") }
}

fn texts_of_v1(object: &Tree<'_>, context: &Context) -> Vec<String> {
    let annotated = |name: &str| {
        let annotation = object.at("metadata.annotations").get(name);
        serde_json::from_str::<Vec<Tree<'_>>>(annotation.as_text()?).ok()
    };
    let mut specs = annotated("autoscaling.alpha.kubernetes.io/metrics").unwrap_or_default();
    let percent = object.at("spec.targetCPUUtilizationPercentage").as_int();
    if percent.is_some() || specs.is_empty() {
        // The API server's default, which objects of this version do not contain.
        specs.push(cpu("targetAverageUtilization", percent.unwrap_or(80)));
    }
    let statuses = annotated("autoscaling.alpha.kubernetes.io/current-metrics").unwrap_or_else(|| {
        let percent = object.at("status.currentCPUUtilizationPercentage").as_int();
        percent.map(|percent| cpu("currentAverageUtilization", percent)).into_iter().collect()
    });
    texts(&specs, &statuses, context)
}

/// The metric that has fields of its own in `autoscaling/v1`.
fn cpu(field: &'static str, percent: i64) -> Tree<'static> {
    let resource = vec![("name".into(), Tree::Text("cpu".into())), (field.into(), Tree::Int(percent))];
    let kind = ("type".into(), Tree::Text("Resource".into()));
    Tree::Map(vec![kind, ("resource".into(), Tree::Map(resource))])
}

fn texts(specs: &[Tree<'_>], statuses: &[Tree<'_>], context: &Context) -> Vec<String> {
    let nothing = Tree::Null;
    let statuses = statuses.iter().chain(std::iter::repeat(&nothing));
    specs.iter().zip(statuses).map(|(spec, status)| text(spec, status, context)).collect()
}

/// One metric: its current value and its target.
fn text(spec: &Tree<'_>, status: &Tree<'_>, context: &Context) -> String {
    match spec.text("type") {
        "External" => value(spec.get("external"), status.get("external")),
        "Object" => value(spec.get("object"), status.get("object")),
        "Pods" => {
            let target = amount(spec.get("pods"), AVERAGE_TARGET);
            format!("{}/{target}", current(status.get("pods"), CURRENT_AVERAGE))
        }
        "Resource" => resource(spec.get("resource"), status.get("resource"), context),
        "ContainerResource" => {
            resource(spec.get("containerResource"), status.get("containerResource"), context)
        }
        _ => "<unknown type>".to_owned(),
    }
}

const AVERAGE_TARGET: &[&str] = &["target.averageValue", "targetAverageValue", "averageValue"];
const CURRENT_AVERAGE: &[&str] = &["current.averageValue", "currentAverageValue", "averageValue"];

/// A metric that is a value, or the average of one.
fn value(spec: &Tree<'_>, status: &Tree<'_>) -> String {
    if spec.first(AVERAGE_TARGET).is_there() {
        let current = status.first(CURRENT_AVERAGE);
        let current = if current.is_there() { current.plain() } else { UNKNOWN.into() };
        return format!("{current}/{} (avg)", amount(spec, AVERAGE_TARGET));
    }
    let target = amount(spec, &["target.value", "targetValue"]);
    format!("{}/{target}", current(status, &["current.value", "currentValue"]))
}

/// A metric of a resource such as `cpu`: an amount, or a percentage of the request.
fn resource(spec: &Tree<'_>, status: &Tree<'_>, context: &Context) -> String {
    let text = if spec.first(AVERAGE_TARGET).is_there() {
        format!("{}/{}", current(status, CURRENT_AVERAGE), amount(spec, AVERAGE_TARGET))
    } else {
        let percent = |tree: &Tree<'_>, paths: &[&str], otherwise: &str| match tree.first(paths).as_int() {
            Some(percent) => format!("{percent}%"),
            None => otherwise.to_owned(),
        };
        let current = percent(status, &["current.averageUtilization", "currentAverageUtilization"], UNKNOWN);
        let target = percent(spec, &["target.averageUtilization", "targetAverageUtilization"], "<auto>");
        format!("{current}/{target}")
    };
    if context.minor >= NAMED_SINCE { format!("{}: {text}", spec.text("name")) } else { text }
}

/// A quantity of a status; unknown while there is no status.
fn current(status: &Tree<'_>, paths: &[&str]) -> String {
    if status.is_there() { amount(status, paths) } else { UNKNOWN.to_owned() }
}

/// A quantity as Go prints it; a missing one, too.
fn amount(tree: &Tree<'_>, paths: &[&str]) -> String {
    let found = tree.first(paths);
    if found.is_there() { found.plain().into_owned() } else { "<nil>".to_owned() }
}
