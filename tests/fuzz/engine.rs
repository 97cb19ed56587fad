//! The inputs: the corpus, its mutations, and outputs of grammars; the same for the same seed.

use std::path::PathBuf;

use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// Default number of cases of each target. All targets together take about 20 s on a slow core.
const CASES: u32 = 1000;

/// Longest input. A longer one takes more time and finds no more.
const INPUT_BYTES_MAX: usize = 16 << 10;

/// A fuzz target.
pub(crate) struct Target<'a> {
    /// The folder of its inputs in the corpus.
    pub(crate) name: &'static str,
    /// Texts with a meaning for the parser, which mutations insert.
    pub(crate) tokens: &'static [&'static str],
    /// The check; it panics if the input is parsed wrongly.
    pub(crate) check: &'a dyn Fn(&[u8]),
}

/// One change of an input: its kind, and three numbers for positions and sizes.
type Mutation = (u8, u32, u32, u32);

const MUTATIONS: u8 = 9;

impl Target<'_> {
    /// Replays the corpus, then mutates it. `part` divides the number of cases of costly checks.
    pub(crate) fn run(&self, part: u32) {
        let seeds = corpus(self.name);
        for (file, input) in &seeds {
            println!("{}: replay {file}", self.name);
            (self.check)(input);
        }
        let count = seeds.len();
        let mutation = (0..MUTATIONS, any::<u32>(), any::<u32>(), any::<u32>());
        let mutations = prop::collection::vec(mutation, 1..8);
        let (seeds, tokens) = (seeds.into_iter().map(|(_, input)| input).collect::<Vec<_>>(), self.tokens);
        let inputs = (0..count, mutations).prop_map(move |(seed, mutations)| {
            mutations.iter().fold(seeds[seed].clone(), |input, one| mutate(&input, *one, &seeds, tokens))
        });
        self.cases("mutated", &inputs.boxed(), part);
    }

    /// Checks texts from a grammar.
    pub(crate) fn generate(&self, inputs: impl Strategy<Value = String> + 'static, part: u32) {
        self.cases("generated", &inputs.prop_map(String::into_bytes).boxed(), part);
    }

    /// Checks bytes from a grammar.
    pub(crate) fn generate_bytes(&self, inputs: impl Strategy<Value = Vec<u8>> + 'static, part: u32) {
        self.cases("generated", &inputs.boxed(), part);
    }

    fn cases(&self, how: &str, inputs: &BoxedStrategy<Vec<u8>>, part: u32) {
        let cases = (number("INFORMERD_FUZZ_CASES", CASES) / part).max(1);
        let seed = number("INFORMERD_FUZZ_SEED", 1);
        let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&seed.to_le_bytes());
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let ran = TestRunner::new_with_rng(config, random).run(inputs, |input| {
            (self.check)(&input);
            Ok(())
        });
        match ran {
            Ok(()) => println!("{}: {cases} {how} cases, seed {seed}", self.name),
            Err(TestError::Fail(why, input)) => {
                let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-failed", self.name));
                std::fs::write(&file, &input).unwrap();
                panic!(
                    "{}, {how}, seed {seed}: {why}\ninput: {:?}\nkept in {}: goes into tests/fuzz/corpus/{} with its fix",
                    self.name,
                    String::from_utf8_lossy(&input),
                    file.display(),
                    self.name
                );
            }
            Err(TestError::Abort(why)) => panic!("{}: {why}", self.name),
        }
    }
}

/// The inputs of a target, in the order of their names.
pub(crate) fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    assert!(!inputs.is_empty(), "the corpus of {target} is empty");
    inputs.sort();
    inputs
}

/// A number from the environment.
fn number(name: &str, default: u32) -> u32 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")),
        Err(_) => default,
    }
}

/// Cuts bytes into chunks. The seed decides the lengths.
pub(crate) fn chunks(bytes: &[u8], mut seed: u64) -> Vec<&[u8]> {
    let mut chunks = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let most = if seed & 1 << 40 == 0 { 4 } else { 64 };
        let (chunk, left) = rest.split_at(rest.len().min(1 + (seed >> 33) as usize % most));
        chunks.push(chunk);
        rest = left;
    }
    chunks
}

fn mutate(input: &[u8], (what, a, b, c): Mutation, seeds: &[Vec<u8>], tokens: &[&str]) -> Vec<u8> {
    let place = |number: u32| number as usize % (input.len() + 1);
    let (start, end) = (place(a).min(place(b)), place(a).max(place(b)));
    // Long ranges rarely find anything; short ones hit one token.
    let near = end.min(start + 1 + c as usize % 24);
    let piece: Vec<u8> = match what {
        // Changes a bit or a byte, inserts a token, or removes, doubles, cuts, repeats or copies a range.
        0 if start < input.len() => vec![input[start] ^ 1 << (c % 8)],
        1 => vec![c as u8],
        2 | 3 if !tokens.is_empty() => tokens[c as usize % tokens.len()].as_bytes().to_vec(),
        4 => Vec::new(),
        5 => [&input[start..near], &input[start..near]].concat(),
        6 => input[start..near].repeat(2 + c as usize % 300),
        7 => {
            let other = &seeds[c as usize % seeds.len()];
            let from = b as usize % (other.len() + 1);
            other[from..].to_vec()
        }
        _ => input[start..end].to_vec(),
    };
    let rest = match what {
        0 => (start + 1).min(input.len()),
        1 | 3 => start,
        2 | 4..=6 => near,
        7 => input.len(),
        // Cuts the end off, or moves a range.
        _ if c % 2 == 0 => input.len(),
        _ => place(c),
    };
    let mut mutated = [&input[..start], &piece, &input[rest..]].concat();
    mutated.truncate(INPUT_BYTES_MAX);
    mutated
}
