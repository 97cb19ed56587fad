//! The whole system in one deterministic run for each seed: a cluster, an unreliable network, two replicas of
//! informerd, and dozens of clients, on a virtual clock and without a socket. Separate, simple checkers compare what
//! each client was told with what the simulation wrote.
//!
//! A seed decides all that goes wrong and when; only the order of tasks that wake at the same instant is tokio's, so a seed
//! has to be run a few times to be sure of it. `INFORMERD_SEED=4711` runs one and prints what happened;
//! `INFORMERD_SEEDS=100000` runs that many, best with `--release`. By default nothing happens that makes a relist necessary, and
//! nobody falls behind the journal; `INFORMERD_FAULTS=all` adds forgotten versions, unreadable events, lagging servers,
//! restores, removed definitions and small journals, where about one history in thirty still finds something to mend.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::wildcard_enum_match_arm, reason = "faults are told apart where they matter")]

mod checker;
mod client;
mod dice;
mod fault;
mod meter;
mod network;
mod plan;
mod replica;
mod report;
mod trace;
mod truth;
mod wire;
mod world;

/// Histories of a usual run.
const SEEDS: u64 = 60;

#[test]
fn every_client_sees_what_the_cluster_was() {
    match std::env::var("INFORMERD_SEED") {
        Ok(seed) => report::run_one(seed.parse().expect("INFORMERD_SEED is a number")),
        Err(_) => {
            let seeds =
                std::env::var("INFORMERD_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
            let first =
                std::env::var("INFORMERD_FIRST_SEED").map_or(0, |seed| seed.parse().expect("a number"));
            report::run_many(first, seeds);
        }
    }
}
