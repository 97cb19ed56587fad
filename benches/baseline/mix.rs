//! A mix of twenty kinds in the shares of a cluster, of objects as programs and people write them.
//!
//! Objects belong to applications of about ten objects of a kind each, which share names, images, hashes and owners. What no other object
//! has is random, and its entropy is counted: names, uids, times, addresses, certificates, digests.

use anyhow::Context as _;
use informerd::testing::sim::Cluster;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

/// A kind of the mix.
pub(crate) struct MixedKind {
    /// Its resource. A kind that the simulator does not serve by itself is defined, in another group where the simulator serves the
    /// group.
    pub(crate) resource: &'static str,
    /// Objects among a thousand of the mix.
    per_mille: usize,
    /// The JSON of an object, with places that [`Writer::expand`] fills.
    template: &'static str,
    /// The version and the kind of a resource that has to be defined first.
    defined: Option<(&'static str, &'static str)>,
}

/// Writes objects.
struct Writer {
    random: StdRng,
    /// Entropy of what was written, in bits.
    entropy: f64,
}

const fn built_in(resource: &'static str, per_mille: usize, template: &'static str) -> MixedKind {
    MixedKind { resource, per_mille, template, defined: None }
}

const fn defined(
    resource: &'static str,
    per_mille: usize,
    version: &'static str,
    kind: &'static str,
    template: &'static str,
) -> MixedKind {
    MixedKind { resource, per_mille, template, defined: Some((version, kind)) }
}

/// The kinds, without those of which a cluster has few objects.
pub(crate) const KINDS: [MixedKind; 20] = [
    built_in("events", 220, EVENT),
    built_in("pods", 160, POD),
    built_in("replicasets", 150, REPLICA_SET),
    built_in("configmaps", 90, CONFIG_MAP),
    built_in("secrets", 80, SECRET),
    built_in("serviceaccounts", 50, SERVICE_ACCOUNT),
    defined("endpointslices.discovery.k8s.io", 45, "v1", "EndpointSlice", ENDPOINT_SLICE),
    built_in("services", 40, SERVICE),
    defined("rolebindings.rbac.authorization.k8s.io", 30, "v1", "RoleBinding", ROLE_BINDING),
    built_in("deployments", 25, DEPLOYMENT),
    defined("jobs.batch", 25, "v1", "Job", JOB),
    defined("roles.rbac.authorization.k8s.io", 15, "v1", "Role", ROLE),
    defined("persistentvolumeclaims.storage.example.com", 15, "v1", "PersistentVolumeClaim", CLAIM),
    built_in("leases", 12, LEASE),
    defined("certificates.cert-manager.io", 10, "v1", "Certificate", CERTIFICATE),
    built_in("nodes", 8, NODE),
    defined("ingresses.networking.k8s.io", 8, "v1", "Ingress", INGRESS),
    defined("statefulsets.apps.example.com", 7, "v1", "StatefulSet", STATEFUL_SET),
    defined("cronjobs.batch", 6, "v1", "CronJob", CRON_JOB),
    defined("servicemonitors.monitoring.coreos.com", 4, "v1", "ServiceMonitor", SERVICE_MONITOR),
];

/// Objects of a kind that an application has.
const OBJECTS_PER_APP: usize = 10;

/// Creates about `count` objects. Returns the entropy of an object, in bytes.
pub(crate) fn create(cluster: &Cluster, count: usize) -> anyhow::Result<f64> {
    let create = |resource: &str, object: Value| {
        cluster.create(resource, object).map_err(|status| anyhow::anyhow!(status.message))
    };
    let mut writer = Writer { random: StdRng::seed_from_u64(0), entropy: 0.0 };
    let mut created = 0;
    for kind in &KINDS {
        if let Some((version, name)) = kind.defined {
            let (plural, group) = kind.resource.split_once('.').context("a group")?;
            create("customresourcedefinitions", definition(plural, group, version, name))?;
        }
        let objects = (count * kind.per_mille / 1000).max(1);
        for at in 0..objects {
            let text = writer.expand(kind.template, at / OBJECTS_PER_APP)?;
            create(kind.resource, serde_json::from_str(&text).with_context(|| text.clone())?)?;
        }
        created += objects;
    }
    Ok(writer.entropy / 8.0 / created as f64)
}

fn definition(plural: &str, group: &str, version: &str, kind: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": version, "served": true, "storage": true, "schema": schema});
    let names = json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind});
    let spec = json!({"group": group, "scope": "Namespaced", "names": names, "versions": [version]});
    json!({"metadata": {"name": format!("{plural}.{group}")}, "spec": spec})
}

impl Writer {
    /// Fills the places of a template: `@{app}` and `@{namespace}` are those of the application, and `@{shared N}` are hexadecimal
    /// digits that all its objects have. Random are `@{hex N}`, `@{base64 N}` and `@{letters N}` with as many characters,
    /// `@{number N}` below N, `@{time}` of the last three months, `@{ip}` and `@{uid}`.
    fn expand(&mut self, template: &str, app: usize) -> anyhow::Result<String> {
        let mut text = String::with_capacity(template.len() * 2);
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("@{") {
            text.push_str(before);
            let (place, after) = after.split_once('}').context("a place without an end")?;
            self.fill(&mut text, place, app)?;
            rest = after;
        }
        text.push_str(rest);
        Ok(text)
    }

    fn fill(&mut self, text: &mut String, place: &str, app: usize) -> anyhow::Result<()> {
        use std::fmt::Write as _;
        const HEX: &[u8] = b"0123456789abcdef";
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (name, len) = place.split_once(' ').unwrap_or((place, "0"));
        let len: usize = len.parse()?;
        match name {
            "app" => write!(text, "{}-{app}", APPS[app % APPS.len()])?,
            "namespace" => write!(text, "team-{}", app % 60)?,
            "shared" => {
                let mut random = StdRng::seed_from_u64(app as u64);
                (0..len).for_each(|_| text.push(char::from(HEX[random.random_range(0..HEX.len())])));
            }
            "hex" => self.draw(text, HEX, len),
            "letters" => self.draw(text, LETTERS, len),
            "base64" => self.draw(text, BASE64, len),
            "uid" => {
                for (at, digits) in [8, 4, 4, 4, 12].into_iter().enumerate() {
                    text.push_str(if at == 0 { "" } else { "-" });
                    self.draw(text, HEX, digits);
                }
            }
            "number" => write!(text, "{}", self.below(len))?,
            "ip" => write!(text, "10.{}.{}.{}", self.below(64), self.below(256), self.below(256))?,
            "time" => {
                let (month, day) = (8 + self.below(3), 1 + self.below(28));
                let (hour, minute, second) = (self.below(24), self.below(60), self.below(60));
                write!(text, "2026-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")?;
            }
            _ => anyhow::bail!("unknown place {place:?}"),
        }
        Ok(())
    }

    fn draw(&mut self, text: &mut String, from: &[u8], len: usize) {
        (0..len).for_each(|_| text.push(char::from(from[self.below(from.len())])));
    }

    /// A number below `end`, of which the entropy is counted.
    fn below(&mut self, end: usize) -> usize {
        self.entropy += (end as f64).log2();
        self.random.random_range(0..end)
    }
}

const APPS: [&str; 12] = [
    "checkout",
    "payments",
    "catalog",
    "search-indexer",
    "frontend",
    "auth-proxy",
    "inventory",
    "mailer",
    "billing-worker",
    "recommendations",
    "session-store",
    "image-resizer",
];

const EVENT: &str = r#"{"metadata":{"name":"@{app}-@{shared 10}-@{letters 5}.@{hex 16}","namespace":"@{namespace}","creationTimestamp":"@{time}"},"involvedObject":{"kind":"Pod","namespace":"@{namespace}","name":"@{app}-@{shared 10}-@{letters 5}","uid":"@{uid}","apiVersion":"v1","resourceVersion":"@{number 9999999}","fieldPath":"spec.containers{@{app}}"},"reason":"Pulled","message":"Container image \"registry.example.com/shop/@{app}:1.@{number 9}.@{number 20}\" already present on machine","source":{"component":"kubelet","host":"node-@{number 5000}"},"firstTimestamp":"@{time}","lastTimestamp":"@{time}","count":@{number 12},"type":"Normal","eventTime":null,"reportingComponent":"kubelet","reportingInstance":"node-@{number 5000}"}"#;

const POD: &str = r#"{"metadata":{"name":"@{app}-@{shared 10}-@{letters 5}","generateName":"@{app}-@{shared 10}-","namespace":"@{namespace}","creationTimestamp":"@{time}","labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/instance":"@{app}","app.kubernetes.io/managed-by":"Helm","pod-template-hash":"@{shared 10}"},"annotations":{"checksum/config":"@{shared 64}","prometheus.io/scrape":"true","prometheus.io/port":"9090"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"@{app}-@{shared 10}","uid":"@{shared 8}-1c4e-4f0a-9a51-@{shared 12}","controller":true,"blockOwnerDeletion":true}]},"spec":{"volumes":[{"name":"config","configMap":{"name":"@{app}","defaultMode":420}},{"name":"kube-api-access-@{letters 5}","projected":{"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},{"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},{"downwardAPI":{"items":[{"path":"namespace","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}]}}],"defaultMode":420}}],"containers":[{"name":"@{app}","image":"registry.example.com/shop/@{app}:1.14.2","args":["--config=/etc/@{app}/config.yaml","--log-format=json"],"ports":[{"name":"http","containerPort":8080,"protocol":"TCP"},{"name":"metrics","containerPort":9090,"protocol":"TCP"}],"env":[{"name":"POD_IP","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"status.podIP"}}},{"name":"DATABASE_URL","valueFrom":{"secretKeyRef":{"name":"@{app}-database","key":"url"}}},{"name":"GOMEMLIMIT","value":"230MiB"}],"resources":{"limits":{"memory":"256Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"volumeMounts":[{"name":"config","readOnly":true,"mountPath":"/etc/@{app}"},{"name":"kube-api-access-x","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"livenessProbe":{"httpGet":{"path":"/livez","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"readinessProbe":{"httpGet":{"path":"/readyz","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":5,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","securityContext":{"allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true,"runAsNonRoot":true}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"@{app}","serviceAccount":"@{app}","nodeName":"node-@{number 5000}","securityContext":{"fsGroup":2000},"schedulerName":"default-scheduler","tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],"priority":0,"enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority"},"status":{"phase":"Running","conditions":[{"type":"Initialized","status":"True","lastProbeTime":null,"lastTransitionTime":"@{time}"},{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"@{time}"},{"type":"ContainersReady","status":"True","lastProbeTime":null,"lastTransitionTime":"@{time}"},{"type":"PodScheduled","status":"True","lastProbeTime":null,"lastTransitionTime":"@{time}"}],"hostIP":"@{ip}","podIP":"@{ip}","podIPs":[{"ip":"@{ip}"}],"startTime":"@{time}","containerStatuses":[{"name":"@{app}","state":{"running":{"startedAt":"@{time}"}},"lastState":{},"ready":true,"restartCount":@{number 4},"image":"registry.example.com/shop/@{app}:1.14.2","imageID":"registry.example.com/shop/@{app}@sha256:@{shared 64}","containerID":"containerd://@{hex 64}","started":true}],"qosClass":"Burstable"}}"#;

const REPLICA_SET: &str = r#"{"metadata":{"name":"@{app}-@{hex 10}","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":@{number 4},"labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/instance":"@{app}","pod-template-hash":"@{hex 10}"},"annotations":{"deployment.kubernetes.io/desired-replicas":"3","deployment.kubernetes.io/max-replicas":"4","deployment.kubernetes.io/revision":"@{number 80}","meta.helm.sh/release-name":"@{app}"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"@{app}","uid":"@{shared 8}-77aa-4d1b-8d0f-@{shared 12}","controller":true,"blockOwnerDeletion":true}]},"spec":{"replicas":0,"selector":{"matchLabels":{"app.kubernetes.io/name":"@{app}","pod-template-hash":"@{hex 10}"}},"template":{"metadata":{"labels":{"app.kubernetes.io/name":"@{app}","pod-template-hash":"@{hex 10}"},"annotations":{"checksum/config":"@{hex 64}"}},"spec":{"containers":[{"name":"@{app}","image":"registry.example.com/shop/@{app}:1.@{number 20}.@{number 9}","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],"env":[{"name":"DATABASE_URL","valueFrom":{"secretKeyRef":{"name":"@{app}-database","key":"url"}}}],"resources":{"limits":{"memory":"256Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"livenessProbe":{"httpGet":{"path":"/livez","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"@{app}","securityContext":{"fsGroup":2000},"schedulerName":"default-scheduler"}}},"status":{"replicas":0,"observedGeneration":@{number 4}}}"#;

const CONFIG_MAP: &str = r#"{"metadata":{"name":"@{app}-@{letters 6}","namespace":"@{namespace}","creationTimestamp":"@{time}","labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"@{app}","meta.helm.sh/release-namespace":"@{namespace}"}},"data":{"config.yaml":"server:\n  listen: 0.0.0.0:8080\n  readTimeout: @{number 60}s\n  writeTimeout: @{number 60}s\nmetrics:\n  listen: 0.0.0.0:9090\ndatabase:\n  host: @{app}-db.@{namespace}.svc.cluster.local\n  port: 5432\n  pool: @{number 100}\n  sslMode: verify-full\ncache:\n  addresses:\n  - @{ip}:6379\n  - @{ip}:6379\n  ttl: @{number 3600}s\nfeatures:\n  newCheckout: true\n  recommendations: false\n  sampling: 0.0@{number 100}\ntracing:\n  endpoint: http://otel-collector.observability:4317\n  serviceName: @{app}\n","version":"@{hex 40}","rules.json":"{\"rules\":[{\"id\":\"@{letters 12}\",\"weight\":@{number 1000}},{\"id\":\"@{letters 12}\",\"weight\":@{number 1000}},{\"id\":\"@{letters 12}\",\"weight\":@{number 1000}}]}"}}"#;

const SECRET: &str = r#"{"metadata":{"name":"@{app}-@{letters 6}","namespace":"@{namespace}","creationTimestamp":"@{time}","labels":{"app.kubernetes.io/name":"@{app}"},"annotations":{"cert-manager.io/certificate-name":"@{app}-tls","cert-manager.io/issuer-kind":"ClusterIssuer"}},"type":"kubernetes.io/tls","data":{"tls.crt":"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk@{base64 760}","tls.key":"LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk@{base64 240}"}}"#;

const SERVICE_ACCOUNT: &str = r#"{"metadata":{"name":"@{app}-@{letters 6}","namespace":"@{namespace}","creationTimestamp":"@{time}","labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/managed-by":"Helm"},"annotations":{"eks.amazonaws.com/role-arn":"arn:aws:iam::123456789012:role/@{app}","meta.helm.sh/release-name":"@{app}"}},"automountServiceAccountToken":true}"#;

const ENDPOINT_SLICE: &str = r#"{"metadata":{"name":"@{app}-@{letters 5}","generateName":"@{app}-","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":@{number 900},"labels":{"endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":"@{app}"},"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"@{time}"},"ownerReferences":[{"apiVersion":"v1","kind":"Service","name":"@{app}","uid":"@{uid}","controller":true,"blockOwnerDeletion":true}]},"addressType":"IPv4","endpoints":[{"addresses":["@{ip}"],"conditions":{"ready":true,"serving":true,"terminating":false},"targetRef":{"kind":"Pod","namespace":"@{namespace}","name":"@{app}-@{shared 10}-@{letters 5}","uid":"@{uid}"},"nodeName":"node-@{number 5000}","zone":"eu-central-1a"},{"addresses":["@{ip}"],"conditions":{"ready":true,"serving":true,"terminating":false},"targetRef":{"kind":"Pod","namespace":"@{namespace}","name":"@{app}-@{shared 10}-@{letters 5}","uid":"@{uid}"},"nodeName":"node-@{number 5000}","zone":"eu-central-1b"},{"addresses":["@{ip}"],"conditions":{"ready":true,"serving":true,"terminating":false},"targetRef":{"kind":"Pod","namespace":"@{namespace}","name":"@{app}-@{shared 10}-@{letters 5}","uid":"@{uid}"},"nodeName":"node-@{number 5000}","zone":"eu-central-1c"}],"ports":[{"name":"http","protocol":"TCP","port":8080}]}"#;

const SERVICE: &str = r#"{"metadata":{"name":"@{app}-@{letters 5}","namespace":"@{namespace}","creationTimestamp":"@{time}","labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"@{app}","meta.helm.sh/release-namespace":"@{namespace}"}},"spec":{"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":"http"},{"name":"metrics","protocol":"TCP","port":9090,"targetPort":"metrics"}],"selector":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/instance":"@{app}"},"clusterIP":"@{ip}","clusterIPs":["@{ip}"],"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster"},"status":{"loadBalancer":{}}}"#;

const ROLE_BINDING: &str = r#"{"metadata":{"name":"@{app}-@{letters 6}","namespace":"@{namespace}","creationTimestamp":"@{time}","labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/managed-by":"Helm"}},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"@{app}"},"subjects":[{"kind":"ServiceAccount","name":"@{app}","namespace":"@{namespace}"}]}"#;

const DEPLOYMENT: &str = r#"{"metadata":{"name":"@{app}-@{letters 5}","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":@{number 90},"labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/managed-by":"Helm"},"annotations":{"deployment.kubernetes.io/revision":"@{number 80}","meta.helm.sh/release-name":"@{app}"}},"spec":{"replicas":3,"selector":{"matchLabels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/instance":"@{app}"}},"template":{"metadata":{"labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/instance":"@{app}"},"annotations":{"checksum/config":"@{hex 64}"}},"spec":{"containers":[{"name":"@{app}","image":"registry.example.com/shop/@{app}:1.@{number 20}.@{number 9}","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],"env":[{"name":"DATABASE_URL","valueFrom":{"secretKeyRef":{"name":"@{app}-database","key":"url"}}}],"resources":{"limits":{"memory":"256Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"@{app}","schedulerName":"default-scheduler"}},"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%","maxSurge":"25%"}},"revisionHistoryLimit":10,"progressDeadlineSeconds":600},"status":{"observedGeneration":@{number 90},"replicas":3,"updatedReplicas":3,"readyReplicas":3,"availableReplicas":3,"conditions":[{"type":"Available","status":"True","lastUpdateTime":"@{time}","lastTransitionTime":"@{time}","reason":"MinimumReplicasAvailable","message":"Deployment has minimum availability."},{"type":"Progressing","status":"True","lastUpdateTime":"@{time}","lastTransitionTime":"@{time}","reason":"NewReplicaSetAvailable","message":"ReplicaSet \"@{app}-@{hex 10}\" has successfully progressed."}]}}"#;

const JOB: &str = r#"{"metadata":{"name":"@{app}-cleanup-@{number 29999999}","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":1,"labels":{"batch.kubernetes.io/controller-uid":"@{uid}","batch.kubernetes.io/job-name":"@{app}-cleanup"},"ownerReferences":[{"apiVersion":"batch/v1","kind":"CronJob","name":"@{app}-cleanup","uid":"@{shared 8}-90cf-4ab1-b0aa-@{shared 12}","controller":true,"blockOwnerDeletion":true}]},"spec":{"parallelism":1,"completions":1,"backoffLimit":6,"selector":{"matchLabels":{"batch.kubernetes.io/controller-uid":"@{uid}"}},"template":{"metadata":{"labels":{"batch.kubernetes.io/controller-uid":"@{uid}"}},"spec":{"containers":[{"name":"cleanup","image":"registry.example.com/shop/@{app}:1.14.2","command":["/bin/cleanup","--older-than=720h"],"resources":{"requests":{"cpu":"50m","memory":"64Mi"}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],"restartPolicy":"OnFailure","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","schedulerName":"default-scheduler"}},"completionMode":"NonIndexed","suspend":false},"status":{"conditions":[{"type":"Complete","status":"True","lastProbeTime":"@{time}","lastTransitionTime":"@{time}"}],"startTime":"@{time}","completionTime":"@{time}","succeeded":1,"uncountedTerminatedPods":{},"ready":0}}"#;

const ROLE: &str = r#"{"metadata":{"name":"@{app}-@{letters 6}","namespace":"@{namespace}","creationTimestamp":"@{time}","labels":{"app.kubernetes.io/name":"@{app}","app.kubernetes.io/managed-by":"Helm"}},"rules":[{"verbs":["get","list","watch"],"apiGroups":[""],"resources":["pods","services","endpoints"]},{"verbs":["create","patch"],"apiGroups":[""],"resources":["events"]},{"verbs":["get","update"],"apiGroups":["coordination.k8s.io"],"resources":["leases"],"resourceNames":["@{app}"]}]}"#;

const CLAIM: &str = r#"{"metadata":{"name":"data-@{app}-@{letters 5}","namespace":"@{namespace}","creationTimestamp":"@{time}","labels":{"app.kubernetes.io/name":"@{app}"},"annotations":{"pv.kubernetes.io/bind-completed":"yes","pv.kubernetes.io/bound-by-controller":"yes","volume.kubernetes.io/selected-node":"node-@{number 5000}","volume.kubernetes.io/storage-provisioner":"ebs.csi.aws.com"},"finalizers":["kubernetes.io/pvc-protection"]},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"@{number 500}Gi"}},"volumeName":"pvc-@{uid}","storageClassName":"gp3","volumeMode":"Filesystem"},"status":{"phase":"Bound","accessModes":["ReadWriteOnce"],"capacity":{"storage":"@{number 500}Gi"}}}"#;

const LEASE: &str = r#"{"metadata":{"name":"node-@{hex 8}","namespace":"kube-node-lease","creationTimestamp":"@{time}","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node-@{number 5000}","uid":"@{uid}"}]},"spec":{"holderIdentity":"node-@{number 5000}","leaseDurationSeconds":40,"renewTime":"@{time}"}}"#;

const CERTIFICATE: &str = r#"{"metadata":{"name":"@{app}-@{letters 5}","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":1,"ownerReferences":[{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","name":"@{app}","uid":"@{uid}","controller":true,"blockOwnerDeletion":true}]},"spec":{"dnsNames":["@{app}.@{namespace}.shop.example.com"],"issuerRef":{"group":"cert-manager.io","kind":"ClusterIssuer","name":"letsencrypt"},"secretName":"@{app}-tls","usages":["digital signature","key encipherment"]},"status":{"conditions":[{"lastTransitionTime":"@{time}","message":"Certificate is up to date and has not expired","observedGeneration":1,"reason":"Ready","status":"True","type":"Ready"}],"notAfter":"@{time}","notBefore":"@{time}","renewalTime":"@{time}","revision":@{number 20}}}"#;

const NODE: &str = r#"{"metadata":{"name":"node-@{hex 8}","creationTimestamp":"@{time}","labels":{"beta.kubernetes.io/arch":"amd64","kubernetes.io/arch":"amd64","kubernetes.io/os":"linux","kubernetes.io/hostname":"node-@{hex 8}","node.kubernetes.io/instance-type":"m6i.4xlarge","topology.kubernetes.io/region":"eu-central-1","topology.kubernetes.io/zone":"eu-central-1a"},"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"ebs.csi.aws.com\":\"i-@{hex 17}\"}","node.alpha.kubernetes.io/ttl":"0"}},"spec":{"podCIDR":"10.@{number 250}.@{number 250}.0/24","providerID":"aws:///eu-central-1a/i-@{hex 17}"},"status":{"capacity":{"cpu":"16","ephemeral-storage":"104845292Ki","memory":"64@{number 999999}Ki","pods":"110"},"allocatable":{"cpu":"15890m","ephemeral-storage":"95551679124","memory":"63@{number 999999}Ki","pods":"110"},"conditions":[{"type":"MemoryPressure","status":"False","lastHeartbeatTime":"@{time}","lastTransitionTime":"@{time}","reason":"KubeletHasSufficientMemory","message":"kubelet has sufficient memory available"},{"type":"DiskPressure","status":"False","lastHeartbeatTime":"@{time}","lastTransitionTime":"@{time}","reason":"KubeletHasNoDiskPressure","message":"kubelet has no disk pressure"},{"type":"Ready","status":"True","lastHeartbeatTime":"@{time}","lastTransitionTime":"@{time}","reason":"KubeletReady","message":"kubelet is posting ready status"}],"addresses":[{"type":"InternalIP","address":"@{ip}"},{"type":"Hostname","address":"node-@{hex 8}"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"nodeInfo":{"machineID":"@{hex 32}","systemUUID":"@{uid}","bootID":"@{uid}","kernelVersion":"6.1.112-122.189.amzn2023.x86_64","osImage":"Amazon Linux 2023","containerRuntimeVersion":"containerd://1.7.22","kubeletVersion":"v1.31.2","kubeProxyVersion":"v1.31.2","operatingSystem":"linux","architecture":"amd64"},"images":[{"names":["registry.example.com/shop/checkout@sha256:@{hex 64}","registry.example.com/shop/checkout:1.14.2"],"sizeBytes":@{number 99999999}},{"names":["registry.example.com/shop/catalog@sha256:@{hex 64}","registry.example.com/shop/catalog:1.3.0"],"sizeBytes":@{number 99999999}}]}}"#;

const INGRESS: &str = r#"{"metadata":{"name":"@{app}-@{letters 5}","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":1,"labels":{"app.kubernetes.io/name":"@{app}"},"annotations":{"cert-manager.io/cluster-issuer":"letsencrypt","nginx.ingress.kubernetes.io/proxy-body-size":"16m"}},"spec":{"ingressClassName":"nginx","tls":[{"hosts":["@{app}.@{namespace}.shop.example.com"],"secretName":"@{app}-tls"}],"rules":[{"host":"@{app}.@{namespace}.shop.example.com","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"@{app}","port":{"name":"http"}}}}]}}]},"status":{"loadBalancer":{"ingress":[{"hostname":"a@{hex 31}.elb.eu-central-1.amazonaws.com"}]}}}"#;

const STATEFUL_SET: &str = r#"{"metadata":{"name":"@{app}-@{letters 5}","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":@{number 20},"labels":{"app.kubernetes.io/name":"@{app}"}},"spec":{"replicas":3,"selector":{"matchLabels":{"app.kubernetes.io/name":"@{app}"}},"serviceName":"@{app}-headless","template":{"metadata":{"labels":{"app.kubernetes.io/name":"@{app}"},"annotations":{"checksum/config":"@{hex 64}"}},"spec":{"containers":[{"name":"@{app}","image":"registry.example.com/infra/@{app}:7.@{number 9}.@{number 9}","ports":[{"name":"tcp","containerPort":6379,"protocol":"TCP"}],"volumeMounts":[{"name":"data","mountPath":"/data"}],"resources":{"limits":{"memory":"2Gi"},"requests":{"cpu":"500m","memory":"2Gi"}}}],"restartPolicy":"Always"}},"volumeClaimTemplates":[{"metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"50Gi"}},"volumeMode":"Filesystem"}}],"podManagementPolicy":"OrderedReady","updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"partition":0}}},"status":{"observedGeneration":@{number 20},"replicas":3,"readyReplicas":3,"currentReplicas":3,"currentRevision":"@{app}-@{hex 10}","updateRevision":"@{app}-@{hex 10}"}}"#;

const CRON_JOB: &str = r#"{"metadata":{"name":"@{app}-@{letters 5}","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":1,"labels":{"app.kubernetes.io/name":"@{app}"}},"spec":{"schedule":"@{number 60} @{number 24} * * *","concurrencyPolicy":"Forbid","suspend":false,"jobTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"cleanup","image":"registry.example.com/shop/@{app}:1.14.2","command":["/bin/cleanup","--older-than=720h"]}],"restartPolicy":"OnFailure"}}}},"successfulJobsHistoryLimit":3,"failedJobsHistoryLimit":1},"status":{"lastScheduleTime":"@{time}","lastSuccessfulTime":"@{time}"}}"#;

const SERVICE_MONITOR: &str = r#"{"metadata":{"name":"@{app}-@{letters 5}","namespace":"@{namespace}","creationTimestamp":"@{time}","generation":1,"labels":{"app.kubernetes.io/name":"@{app}","release":"prometheus"}},"spec":{"endpoints":[{"interval":"30s","port":"metrics","path":"/metrics","relabelings":[{"action":"replace","sourceLabels":["__meta_kubernetes_pod_node_name"],"targetLabel":"node"}]}],"namespaceSelector":{"matchNames":["@{namespace}"]},"selector":{"matchLabels":{"app.kubernetes.io/name":"@{app}"}}}}"#;
