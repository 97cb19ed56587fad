//! The program: commands, exit codes, and the setup of the process.

use std::io::Write;
use std::process::ExitCode;

use crate::cli::{self, Command};
use crate::{app, config, rbac, telemetry};

/// Exit code for wrong usage or configuration, as clap uses it.
const EXIT_USAGE: u8 = 2;

/// Runs the command of the process' arguments, and returns its exit code.
pub fn run() -> ExitCode {
    // Help without a command goes to stderr with code 2, and a wrong flag too: clap does both.
    match dispatch(cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            let usage = error.is::<config::ConfigError>() || error.is::<rbac::RbacError>();
            telemetry::last_words(&error);
            if usage { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => {
            let config = args.source().load()?;
            let metrics = prepare(&config.log)?;
            block_on(app::serve(config, metrics))?;
        }
        Command::Demo(args) => {
            let config = config::Demo::resolve(*args)?;
            let metrics = prepare(&config.log())?;
            block_on(app::demo(config, metrics))?;
        }
        Command::Check(args) => {
            let config = args.load()?;
            prepare(&config.log)?;
            return Ok(match block_on(app::check(config))? {
                app::Verdict::Right => ExitCode::SUCCESS,
                app::Verdict::Wrong => ExitCode::FAILURE,
                app::Verdict::Misconfigured => ExitCode::from(EXIT_USAGE),
            });
        }
        Command::Rbac(args) => {
            let (watches, lease) = (args.watches()?, args.election()?);
            let manifest = rbac::manifest(&watches, lease.as_ref(), &args.name, &args.service_account)?;
            print(manifest.as_bytes())?;
        }
        Command::Links(args) => print(&cli::links(&args.declared()?))?,
        Command::ConfigSchema => print(&cli::config_schema())?,
        Command::Completions { shell } => print(&cli::completions(shell))?,
        Command::Man { command } => match cli::man(command.as_deref()) {
            Ok(page) => print(&page)?,
            Err(error) => error.exit(),
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn prepare(log: &config::Log) -> anyhow::Result<telemetry::Metrics> {
    telemetry::init_log(log)?;
    // With two crypto providers compiled in, rustls does not choose one by itself. An error means that one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Each client takes a file descriptor, and the usual soft limit of 1024 is far below connections_max.
    if let Err(error) = rlimit::increase_nofile_limit(rlimit::INFINITY) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    telemetry::Metrics::install()
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(future);
    // Does not wait for threads, in which an exec plugin may hang.
    runtime.shutdown_background();
    ended
}

fn print(bytes: &[u8]) -> anyhow::Result<()> {
    match std::io::stdout().write_all(bytes) {
        // A closed pipe, as in `informerd man | head`, is no failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
