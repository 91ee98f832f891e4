//! Runs a reader on kept and on edited inputs, and keeps each input that it fails at.
//!
//! The whole corpus runs first, then edited inputs for as long as [`seconds`] says. A failure is a panic, more than [`MEMORY`] bytes held at a time, or
//! more than [`LIMIT`] of time. Its smallest input is written to the corpus. If the process dies, the last input is in `target/tmp/fuzz-NAME`.
//!
//! Bytes are counted twice. The allocator counts those of the thread that runs the input, so that an input is judged apart from targets that
//! run at the same time. On Linux the peak of the process counts as well, which holds the memory of all threads that an input starts.
//!
//! Each target prints its processor seconds: those of its thread, and those of the process while it ran. The second number is the target's own
//! where it runs alone: it then holds all threads.

use crate::edit::recipe;
use crate::memory::most_of;
use crate::process::{Processor, peak};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Seek, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Longest time of an input.
const LIMIT: Duration = Duration::from_secs(10);
/// Most bytes that an input may make its thread hold, and the process.
const MEMORY: isize = 1 << 30;
/// Inputs between two looks at the clock.
const ROUND: u32 = 8;

/// A number of the environment.
fn number<T: FromStr>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number: give one, or leave it out"))
}

/// How long edited inputs run.
fn seconds() -> f64 {
    number("TILEWRIGHT_FUZZ_SECONDS", 1.0)
}

/// Kept inputs of a target; those that once failed come first.
fn corpus(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of the corpus").path()).collect();
    paths
        .sort_by_key(|path| (!path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"found-")), path.clone()));
    paths.into_iter().map(|path| std::fs::read(&path).expect("an input of the corpus")).collect()
}

/// A hash that is the same everywhere (FNV-1a).
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Writes an input to the corpus and gives its path.
fn keep(folder: &Path, input: &[u8]) -> String {
    let path = folder.join(format!("found-{:016x}", hash(input)));
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, input)).expect("the corpus can be written");
    path.display().to_string()
}

/// The input that runs, and since when.
type Running = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

/// Ends the process when an input takes too long: a thread cannot be stopped.
fn watch(folder: PathBuf, running: Running) {
    std::thread::spawn(move || {
        while Arc::strong_count(&running) > 1 {
            std::thread::sleep(Duration::from_millis(100));
            let now = running.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some((_, input)) = now.filter(|(since, _)| since.elapsed() > LIMIT) {
                // The test's output would swallow the text of `eprintln`.
                let text = format!("an input takes more than {LIMIT:?}: {}\n", keep(&folder, &input));
                let _ = std::io::stderr().write_all(text.as_bytes());
                std::process::exit(101);
            }
        }
    });
}

thread_local! {
    /// The last panic while an input runs.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: RefCell<bool> = const { RefCell::new(false) };
}

/// Panics of inputs are texts, not output: some readers catch their own.
fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.with_borrow(|quiet| *quiet) {
                PANIC.with_borrow_mut(|last| *last = Some(format!("{info}\n{}", Backtrace::capture())));
            } else {
                usual(info);
            }
        }));
    });
}

/// The last panic of an input on this thread, even one that the library caught.
pub fn last_panic() -> String {
    PANIC.take().unwrap_or_default()
}

/// A reader, its folder of the corpus, and the state of a run.
struct Target<'a> {
    folder: PathBuf,
    /// The last input, for when the process dies.
    last: File,
    running: Running,
    check: &'a dyn Fn(&[u8]) -> Result<(), String>,
    /// Inputs that the reader took.
    taken: Cell<u64>,
    /// Most bytes of the process.
    memory: u64,
}

impl Target<'_> {
    fn run(&self, input: &[u8]) -> Result<(), String> {
        let mut last = &self.last;
        last.set_len(0).and_then(|()| last.rewind()).and_then(|()| last.write_all(input)).expect("the last input is written");
        let set = |now| *self.running.lock().unwrap_or_else(PoisonError::into_inner) = now;
        set(Some((Instant::now(), input.to_vec())));
        let mut ended = Ok(Ok(()));
        let before = peak();
        QUIET.set(true);
        let most = most_of(|| ended = catch_unwind(AssertUnwindSafe(|| (self.check)(input))));
        QUIET.set(false);
        set(None);
        match ended {
            Err(_) => Err(last_panic()),
            Ok(_) if most > MEMORY => Err(format!("it held {most} bytes")),
            // A peak that was there before is of another input.
            Ok(_) if peak() > before.max(Some(self.memory)) => {
                Err(format!("the process held {} bytes in all its threads", peak().unwrap_or_default()))
            }
            Ok(Err(refusal)) if refusal.is_empty() => Err("it was refused without a reason".into()),
            Ok(read) => {
                self.taken.set(self.taken.get() + u64::from(read.is_ok()));
                Ok(())
            }
        }
    }
    fn fail(&self, input: &[u8], why: &str) -> ! {
        let shown = String::from_utf8_lossy(&input[..input.len().min(400)]).into_owned();
        panic!("{}: {why}\n{shown:?}", keep(&self.folder, input))
    }
}

/// Runs a reader on the corpus of this name, on valid inputs and on edits of both. The reader gives the text
/// of its refusal.
pub fn fuzz(name: &str, mut valid: Vec<Vec<u8>>, check: impl Fn(&[u8]) -> Result<(), String>) {
    keep_panics();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
    let last = File::create(&path).expect("the folder for the last input can be written");
    let target = Target { folder, last, running: Arc::default(), check: &check, taken: Cell::new(0), memory: MEMORY as u64 };
    watch(target.folder.clone(), target.running.clone());
    valid.splice(0..0, corpus(&target.folder));
    for input in &valid {
        target.run(input).unwrap_or_else(|why| target.fail(input, &why));
    }
    let (begin, end) = (Processor::now(), Instant::now() + Duration::from_secs_f64(seconds()));
    let (first, mut rounds) = (number("TILEWRIGHT_FUZZ_SEED", 0_u64), 0_u64);
    while Instant::now() < end {
        let seed = [first.to_le_bytes(), rounds.to_le_bytes(), [0; 8], [0; 8]].concat();
        let config = Config {
            cases: ROUND,
            failure_persistence: None,
            max_shrink_time: 20_000,
            max_shrink_iters: 1000,
            ..Config::default()
        };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        let ended = runner.run(&recipe(), |recipe| target.run(&recipe.input(&valid)).map_err(TestCaseError::fail));
        match ended {
            Ok(()) => rounds += 1,
            Err(TestError::Fail(why, recipe)) => target.fail(&recipe.input(&valid), why.message()),
            Err(TestError::Abort(why)) => panic!("no inputs: {why}"),
        }
    }
    let (edited, taken) = (rounds * u64::from(ROUND), target.taken.get());
    let Processor { thread, process } = Processor::now().since(begin);
    let spent = format!("{thread:.2} processor seconds of its thread, {process:.2} of the process meanwhile");
    eprintln!("{name}: {} valid inputs, {edited} edited ones in {spent}; the reader took {taken}", valid.len());
    assert!(taken > 0, "{name}: the reader takes no input, so nothing after it is tested");
    drop(target);
    let _ = std::fs::remove_file(path);
}

/// Of its own process: the memory of other targets would count.
#[test]
#[cfg(target_os = "linux")]
fn memory_of_an_inputs_threads_counts() {
    const CHILD: &str = "TILEWRIGHT_FUZZ_MEMORY_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test"));
        let run =
            child.args(["harness::memory_of_an_inputs_threads_counts", "--exact"]).env(CHILD, "1").output().expect("a child");
        return assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let last = File::create(folder.path().join("last")).expect("a file");
    // As many MiB as the input has bytes, held by another thread.
    let check = |input: &[u8]| {
        let bytes = input.len() << 20;
        let other = std::thread::spawn(move || std::hint::black_box(vec![1_u8; bytes]).len());
        assert_eq!(other.join().expect("a thread"), bytes);
        Ok(())
    };
    let memory = peak().expect("the peak") + (64 << 20);
    let folder = folder.path().join("corpus");
    let target = Target { folder, last, running: Arc::default(), check: &check, taken: Cell::new(0), memory };
    assert_eq!(target.run(&[0; 16]), Ok(()));
    let refused = target.run(&[0; 192]).expect_err("it is too large");
    assert!(refused.contains("in all its threads"), "{refused}");
    // The next input is not blamed for it.
    assert_eq!(target.run(&[0; 16]), Ok(()));
}
