//! What anyone who can connect to a listener may do.

use super::{Listen, PassThrough, Pattern, QueueMode, Serve, WatchSpec};

/// The resource that the warning names separately.
const SECRETS: &str = "secrets";

impl Listen {
    /// Whether only processes on this machine, or in this pod, can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl Serve {
    /// A sentence that says what anyone who can connect to the data listener may do; `None` if only local processes can
    /// connect.
    pub fn exposure(&self) -> Option<String> {
        if self.listen.is_local() {
            return None;
        }
        let mut sentence = format!(
            "{} has no authentication: everyone who can connect to it can read all that is watched",
            self.listen
        );
        if let Some(secrets) = self.exposed_secrets() {
            sentence.push_str(", ");
            sentence.push_str(secrets);
        }
        match self.pass_through {
            PassThrough::Off => {}
            PassThrough::Reads => {
                sentence.push_str(", and all else that informerd's role lets it read (--pass-through=reads)");
            }
            PassThrough::All => {
                sentence
                    .push_str(", and read and change all that informerd's role allows (--pass-through=all)");
            }
        }
        if self.queue_mode == QueueMode::Api {
            sentence.push_str(", and declare work queues (--queues=api)");
        }
        sentence.push_str(
            "; listen on 127.0.0.1 or a unix: socket, or limit who can connect with a NetworkPolicy",
        );
        Some(sentence)
    }

    fn exposed_secrets(&self) -> Option<&'static str> {
        let asked = self.on_demand.patterns.iter().map(Pattern::as_str).any(is_secrets);
        let watched: Vec<_> = self.watches.iter().filter(|spec| is_secrets(&spec.resource)).collect();
        let whole = |spec: &&WatchSpec| !spec.metadata_only;
        if asked || watched.iter().any(whole) {
            return Some("SECRETS WITH THEIR CONTENT among it");
        }
        (!watched.is_empty()).then_some("the names and metadata of secrets among it")
    }
}

/// Whether a name that kubectl takes means secrets: `secret`, `secrets`, `secrets.v1`, `Secrets.v1.`.
fn is_secrets(resource: &str) -> bool {
    let resource = resource.trim_end_matches('.').to_ascii_lowercase();
    let name = resource.strip_suffix(".v1").unwrap_or(&resource);
    name == SECRETS || name == &SECRETS[..SECRETS.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigLayers, ServeSettings};

    fn exposure(yaml: &str) -> String {
        let settings = ServeSettings::from_yaml(yaml, &|_| None).unwrap();
        ConfigLayers { file: None, settings }.resolve(&|_| None).unwrap().exposure().unwrap_or_default()
    }

    #[test]
    fn only_listeners_that_others_can_reach_are_reported() {
        for (listen, told) in [
            ("127.0.0.1:0", false),
            ("'[::1]:0'", false),
            ("unix:/run/informerd.sock", false),
            ("0.0.0.0:8090", true),
            ("'[::]:8090'", true),
            ("10.0.0.1:8090", true),
        ] {
            let exposure = exposure(&format!("{{watch: [{{resource: pods}}], listen: {listen}}}"));
            assert_eq!(exposure.contains("no authentication"), told, "{listen}: {exposure}");
            assert!(!exposure.to_lowercase().contains("secret"), "{exposure}");
        }
        assert_eq!(exposure("watch: [{resource: secrets}]"), "", "the default is the loopback");
    }

    #[test]
    fn secrets_and_pass_through_are_named() {
        for (watch, told) in [
            ("watch: [{resource: pods}, {resource: secrets}]", "SECRETS WITH THEIR CONTENT"),
            ("watch: [{resource: Secret}]", "SECRETS WITH THEIR CONTENT"),
            ("watch: [{resource: secrets, metadataOnly: true}]", "the names and metadata of secrets"),
            ("onDemand: [secrets]", "SECRETS WITH THEIR CONTENT"),
            ("watch: [{resource: pods}]\npassThrough: reads", "lets it read (--pass-through=reads)"),
            ("watch: [{resource: pods}]\npassThrough: all", "read and change all"),
        ] {
            let exposure = exposure(&format!("{watch}\nlisten: 0.0.0.0:8090\n"));
            assert!(exposure.contains(told), "{watch}: {exposure}");
        }
        assert!(
            !exposure("onDemand: ['*']\nlisten: 0.0.0.0:8090\n").contains("secret"),
            "no wildcard means secrets"
        );
    }
}
