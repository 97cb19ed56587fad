//! The official JavaScript client.

use tokio::process::Command;

use super::{
    Program, WIDGETS, Wanted, World, any, has_the_app, is_in_the_namespace, is_refused, reads_the_same,
    script,
};

const FOLLOWERS: [Wanted; 4] = [
    ("pods", "pods", any),
    ("pods of an app", "pods", has_the_app),
    ("pods of a namespace", "pods", is_in_the_namespace),
    ("widgets", WIDGETS, any),
];

/// A command that runs a script; `None`, with a `skipped:` line, if the client is not installed.
fn node(path: &str) -> Option<Command> {
    if std::env::var_os("INFORMERD_NODE_MODULES").is_none() {
        println!(
            "skipped: no JavaScript client; npm install @kubernetes/client-node, and set INFORMERD_NODE_MODULES to \
             the node_modules that has it"
        );
        return None;
    }
    let mut command = Command::new("node");
    command.arg(script(path));
    Some(command)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_javascript_client_follows_through_every_fault() {
    let Some(mut command) = node("node/follow.mjs") else { return };
    let world = World::start().await;
    command.arg(world.url());
    Box::pin(world.survive_every_fault(&mut Program::start(command), &FOLLOWERS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_javascript_client_reads_the_same_at_informerd_and_at_the_api_server() {
    let Some(refused) = node("node/read.mjs") else { return };
    let mut world = World::start().await;
    world.pause().await;
    reads_the_same(&world, || node("node/read.mjs").unwrap()).await;
    is_refused(&world, refused).await;
}
