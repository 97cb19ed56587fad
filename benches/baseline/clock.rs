//! CPU time of a thread, which other programs on the machine do not lengthen.

use std::time::Duration;

/// The kernel counts in ticks of some milliseconds, so shorter measurements mean nothing.
pub(crate) const MEASURE_MIN: Duration = Duration::from_millis(100);

/// Time for which this thread has been on a CPU. Work in one thread is measured by it, as the wall clock on a busy
/// machine measures the other programs, too.
///
/// # Errors
/// If the kernel does not count it (`CONFIG_SCHED_INFO`).
pub(crate) fn thread_cpu() -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(Duration::from_nanos(nanos))
}

/// CPU seconds of one piece of work, which is repeated for long enough to be measured.
///
/// # Errors
/// As [`thread_cpu`].
pub(crate) fn seconds_of(mut work: impl FnMut(), time: Duration) -> anyhow::Result<f64> {
    let began = thread_cpu()?;
    let (mut count, mut took) = (0_u32, Duration::ZERO);
    while took < time {
        work();
        count += 1;
        took = thread_cpu()? - began;
    }
    Ok(took.as_secs_f64() / f64::from(count))
}
