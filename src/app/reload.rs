//! Reads the configuration again on SIGHUP, and when its file has changed.
//!
//! Why the file is read every second and not watched with inotify: a ConfigMap's file is a symbolic link into a folder that
//! is swapped as a whole. A watch on the file never sees that, and a watch on the folders sees it in pieces. Some file
//! systems have no inotify at all. The file is small, and its content is more reliable than a time stamp.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::informers::{Changes, Reload};
use super::metrics::{ReloadOutcome, reloaded};
use crate::config;

/// Time between two looks at the file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the configuration again.
pub(super) struct Reloader {
    /// The layers to read.
    pub(super) source: config::ConfigLayers,
    /// The configuration with which the process started; settings that need a restart are compared with it.
    pub(super) running: config::Serve,
    /// Where a new configuration is sent.
    pub(super) door: mpsc::Sender<Reload>,
    /// Makes it read the file at once.
    pub(super) trigger: Arc<Notify>,
}

/// A digest of the file's content, or why it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Content(u64),
    Unreadable(std::io::ErrorKind),
    NoFile,
}

impl Reloader {
    /// Runs until cancelled.
    pub(super) async fn run(self, cancel: CancellationToken) {
        let _ = cancel.run_until_cancelled(Box::pin(self.drive())).await;
    }

    async fn drive(self) -> std::convert::Infallible {
        let mut taken = self.look().await;
        // The file may have changed between the first reading and now.
        self.reload_quietly().await;
        let mut before = taken;
        loop {
            let asked = tokio::select! {
                () = self.trigger.notified() => true,
                () = sleep(LOOK_INTERVAL) => false,
            };
            let seen = self.look().await;
            // The same content twice: an editor may be in the middle of writing it, and half a list of watches is a valid
            // configuration, too.
            let settled = seen == before;
            before = seen;
            if asked || (seen != taken && settled) {
                taken = seen;
                self.reload().await;
            }
        }
    }

    async fn look(&self) -> Seen {
        match &self.source.file {
            Some(path) => Seen::of(path).await,
            None => Seen::NoFile,
        }
    }

    async fn reload_quietly(&self) {
        let Ok(config) = self.load().await else { return };
        if config.watches != self.running.watches || config.on_demand != self.running.on_demand {
            self.reload().await;
        }
    }

    async fn load(&self) -> Result<config::Serve, String> {
        let source = self.source.clone();
        let loaded = tokio::task::spawn_blocking(move || source.load()).await;
        loaded.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    async fn reload(&self) {
        match self.take().await {
            Ok(changes) if changes == Changes::default() => {
                reloaded(ReloadOutcome::Unchanged);
                info!("the configuration was read again: nothing to change");
            }
            Ok(Changes { added, changed, removed }) => {
                reloaded(ReloadOutcome::Applied);
                info!(added, changed, removed, "the configuration was read again");
            }
            Err(why) => {
                reloaded(ReloadOutcome::Refused);
                error!(error = why, "the configuration is refused; the previous one stays in force");
            }
        }
    }

    async fn take(&self) -> Result<Changes, String> {
        let config = self.load().await?;
        for setting in self.running.fixed_differences(&config) {
            warn!(setting, "a changed setting needs a restart to be applied");
        }
        let (answer, answered) = oneshot::channel();
        let reload = Reload { config: Box::new(config), answer };
        let stopping = "informerd is stopping";
        self.door.send(reload).await.map_err(|_| stopping.to_owned())?;
        answered.await.unwrap_or_else(|_| Err(stopping.to_owned()))
    }
}

impl Seen {
    async fn of(path: &Path) -> Self {
        match tokio::fs::read(path).await {
            Ok(content) => {
                let mut hasher = DefaultHasher::new();
                content.hash(&mut hasher);
                Self::Content(hasher.finish())
            }
            Err(error) => Self::Unreadable(error.kind()),
        }
    }
}
