//! Peak memory and processor time of this process, as Linux counts them.

/// Ticks of a second in `/proc`, on all architectures that Linux has in use.
const TICKS: f64 = 100.0;

/// The most bytes that the process had in memory at a time, of all threads. `None` elsewhere than on Linux.
pub fn peak() -> Option<u64> {
    peak_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The same of a text of `/proc/PID/status`.
fn peak_of(status: &str) -> Option<u64> {
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?;
    kilobytes.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// Processor seconds so far.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    /// Of this thread.
    pub thread: f64,
    /// Of the process, threads that have ended included.
    pub process: f64,
}

impl Processor {
    /// Zeros elsewhere than on Linux.
    pub fn now() -> Processor {
        let of = |path: &str| std::fs::read_to_string(path).ok().and_then(|stat| seconds_of(&stat)).unwrap_or_default();
        Processor { thread: of("/proc/thread-self/stat"), process: of("/proc/self/stat") }
    }
    /// From an earlier time on.
    pub fn since(self, earlier: Processor) -> Processor {
        Processor { thread: self.thread - earlier.thread, process: self.process - earlier.process }
    }
}

/// Seconds in user and system mode in a text of `stat`. The name of the program, in parentheses, may hold anything.
fn seconds_of(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).map_while(|ticks| ticks.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum::<u64>() as f64 / TICKS)
}

#[test]
fn texts_of_the_kernel_are_read() {
    assert_eq!(peak_of("Name:\tx\nVmPeak:\t    3060 kB\nVmHWM:\t    1624 kB\nVmRSS:\t    12 kB\n"), Some(1624 << 10));
    assert_eq!(peak_of("Name:\tx\n"), None);
    let stat = "27068 (a) b (c) R 27066 27066 15348 0 -1 4194304 84 0 0 0 250 50 9 9 20 0 1 0";
    assert_eq!(seconds_of(stat), Some(3.0));
    assert_eq!(seconds_of("27068 (cat) R 1 2"), None);
}

#[test]
#[cfg(target_os = "linux")]
fn a_busy_thread_takes_processor_time() {
    let (begin, start) = (Processor::now(), std::time::Instant::now());
    let mut rounds = 0_u64;
    while Processor::now().since(begin).thread < 0.05 {
        rounds = std::hint::black_box(rounds + 1);
        assert!(start.elapsed().as_secs() < 60, "{rounds} rounds: {:?}", Processor::now().since(begin));
    }
    let spent = Processor::now().since(begin);
    assert!(spent.process >= spent.thread, "{spent:?}");
    // A thread that sleeps takes none of its own.
    let of_sleeper = std::thread::spawn(|| {
        let begin = Processor::now();
        std::thread::sleep(std::time::Duration::from_millis(200));
        Processor::now().since(begin).thread
    });
    assert!(of_sleeper.join().expect("a thread") < 0.1);
}
