//! The official Python client.

use tokio::process::Command;

use super::{
    Program, WIDGETS, Wanted, World, any, has_the_app, is_in_the_namespace, is_refused, reads_the_same,
    script,
};

const FOLLOWERS: [Wanted; 6] = [
    ("pods", "pods", any),
    ("pods without a list", "pods", any),
    ("pods of an app", "pods", has_the_app),
    ("pods of a namespace", "pods", is_in_the_namespace),
    ("widgets", WIDGETS, any),
    ("widgets of the dynamic client", WIDGETS, any),
];

/// A command that runs a script; `None`, with a `skipped:` line, if the client is not installed.
fn python(path: &str) -> Option<Command> {
    let Some(python) = std::env::var_os("INFORMERD_PYTHON") else {
        println!(
            "skipped: no Python client; pip install kubernetes, and set INFORMERD_PYTHON to that python"
        );
        return None;
    };
    let mut command = Command::new(python);
    command.arg(script(path));
    Some(command)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_client_follows_through_every_fault() {
    let Some(mut command) = python("python/follow.py") else { return };
    let world = World::start().await;
    command.arg(world.url());
    Box::pin(world.survive_every_fault(&mut Program::start(command), &FOLLOWERS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_client_reads_the_same_at_informerd_and_at_the_api_server() {
    let Some(refused) = python("python/read.py") else { return };
    let mut world = World::start().await;
    world.pause().await;
    reads_the_same(&world, || python("python/read.py").unwrap()).await;
    is_refused(&world, refused).await;
}
