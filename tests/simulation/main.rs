//! The whole system in one deterministic run for each seed: a cluster, an unreliable network, two replicas of
//! informerd, and dozens of clients, on a virtual clock and without sockets. Separate, simple checkers compare what
//! each client received with what the simulation wrote.
//!
//! A seed decides which faults happen and when, and always gives the same history: everything at one moment is
//! finished before the next moment begins. `INFORMERD_SEED=4711` runs one seed and prints what happens.
//! `INFORMERD_SEEDS=100000` runs that many, best with `--release`, from `INFORMERD_FIRST_SEED` on.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::wildcard_enum_match_arm, reason = "faults are told apart where they matter")]

mod checker;
mod client;
mod crew;
mod dice;
mod fault;
mod getter;
mod joiner;
mod lister;
mod meter;
mod network;
mod notes;
mod plan;
mod quiet;
mod replica;
mod report;
mod small_state;
mod trace;
mod truth;
mod wire;
mod world;

/// Number of histories unless INFORMERD_SEEDS says otherwise.
const SEEDS: u64 = 2000;

/// Number of histories that are run twice and compared.
const TWICE: u64 = 12;

#[test]
fn one_seed_gives_one_history() {
    for seed in 0..TWICE {
        let [first, second] = [0, 1].map(|_| report::history(seed, false));
        assert_eq!(first.result, second.result, "seed {seed}");
        assert_eq!(first.digest, second.digest, "seed {seed}");
    }
}

#[test]
fn an_idle_kind_costs_few_requests_and_its_version_stays_recent() {
    quiet::check();
}

#[test]
fn every_client_sees_the_states_of_the_cluster() {
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
