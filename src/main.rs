//! The binary: the allocator, and [`informerd::run`].

use std::process::ExitCode;

/// glibc's allocator gives little back after the peak of a list, and its arenas grow with the threads.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    informerd::run()
}
