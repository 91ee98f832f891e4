//! Workers: processes that run the vendor's compiler, or a whole device, so that a crash or a hang costs one candidate.
//!
//! A worker is an executable under a hidden subcommand that calls [`crate::compile_worker_main`]. It takes one job per line on
//! its input (JSON) and leaves the result in a file the job names. It answers with one line on its output. Other lines, which
//! compilers print there, are skipped. Workers live on between jobs; one that dies or overruns its limit is replaced by the next
//! job. Compile workers do one job at a time. The worker of a device ([`crate::isolated`]) takes several at once.

use crate::job::{Binary, Refusal, Work};
use crate::process::exit_now;
use crate::wire::BUILD;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// First word of the line a worker answers with.
const DONE: &str = "tilewright-compile-done";
/// The variable that tells a worker the folder of its answers.
const ANSWERS: &str = "TILEWRIGHT_COMPILE_ANSWERS";

/// So often a worker asks whether its parent is still there.
#[cfg(unix)]
const POLL: Duration = Duration::from_secs(1);
/// Stack of a thread that compiles.
const STACK: usize = 64 << 20;

/// How a compilation ended.
pub(crate) enum Ended<T> {
    /// With a result.
    Made(T),
    /// The compiler said no.
    Refused(Refusal),
    /// The limit passed.
    TimedOut,
    /// The compiler died.
    Crashed(String),
}

#[derive(Serialize, Deserialize)]
struct Request {
    work: Work,
    answer: PathBuf,
    limit: Duration,
}

/// What the answer file starts with, as one line of JSON; the code follows it.
#[derive(Serialize, Deserialize)]
enum Answer {
    Made { log: String },
    Refused(Refusal),
}

/// A pool of compile workers. As many run at once as threads compile at once.
///
/// ```
/// use tilewright_device::{Options, Workers};
///
/// // The program has a subcommand that calls `compile_worker_main`. No worker starts before something is compiled.
/// let options = Options::default().with_workers(Workers::of_current_exe("compile-worker")?);
/// assert!(options.workers.is_some());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Workers {
    program: PathBuf,
    args: Vec<OsString>,
    idle: Mutex<Vec<Worker>>,
}

impl Workers {
    /// Workers are `program args...`, which must end in a call of [`crate::compile_worker_main`]. None is started yet.
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>) -> Self {
        Workers { program: program.into(), args: args.into_iter().collect(), idle: Mutex::new(Vec::new()) }
    }
    /// Workers are the running executable with this subcommand.
    ///
    /// # Errors
    /// The operating system's, if it does not tell the executable's path.
    pub fn of_current_exe(subcommand: &str) -> std::io::Result<Self> {
        Ok(Workers::new(std::env::current_exe()?, [OsString::from(subcommand)]))
    }

    /// Ensures that `count` workers run. Each new worker does `work` once, so that it loads its libraries. A worker that fails to start or
    /// to do the work is dropped; the next request for a worker reports the reason.
    pub(crate) fn prepare(&self, count: usize, work: &Work, limit: Duration) {
        let there = self.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        let start = || {
            let Ok(worker) = self.start(&[]) else { return };
            if let Ok(Ended::Made(_)) = worker.run(work.clone(), limit) {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
            }
        };
        std::thread::scope(|scope| {
            for _ in there..count {
                if let Err(e) = std::thread::Builder::new().name("start-worker".into()).spawn_scoped(scope, start) {
                    tracing::debug!("no thread to start a compile worker: {e}");
                }
            }
        });
    }

    /// The program and its arguments.
    pub(crate) fn program(&self) -> (&Path, &[OsString]) {
        (&self.program, &self.args)
    }

    /// Starts a worker that belongs to the caller, with these variables set.
    pub(crate) fn start(&self, variables: &[(&str, String)]) -> std::io::Result<Worker> {
        Worker::start(&self.program, &self.args, variables)
    }

    /// Has work done in a worker.
    pub(crate) fn run(&self, work: Work, limit: Duration) -> Ended<Binary> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let worker = match idle {
            Some(worker) => Ok(worker),
            None => self.start(&[]),
        };
        let worker = match worker {
            Ok(worker) => worker,
            Err(e) => return Ended::Crashed(format!("{} did not start: {e}", self.program.display())),
        };
        let compiling = matches!(work, Work::Compile(_));
        match worker.run(work, limit) {
            Ok(ended) => {
                // A run that failed may have left the worker's device unusable.
                if matches!(ended, Ended::Made(_)) || (compiling && matches!(ended, Ended::Refused(_))) {
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
                }
                ended
            }
            Err(e) => Ended::Crashed(format!("no answer from the worker: {e}")),
        }
    }
}

/// Who waits for which answer; nothing once the process writes no more.
type Waiting = Arc<Mutex<Option<HashMap<String, mpsc::Sender<()>>>>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running worker process. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Mutex<Child>,
    input: Mutex<Option<ChildStdin>>,
    waiting: Waiting,
    complaints: Arc<Mutex<Vec<u8>>>,
    /// Reads the complaints, until the process has ended.
    listener: Option<JoinHandle<()>>,
    jobs: AtomicU64,
    directory: tempfile::TempDir,
}

impl Worker {
    fn start(program: &Path, args: &[OsString], variables: &[(&str, String)]) -> std::io::Result<Worker> {
        let directory = tempfile::tempdir()?;
        let mut command = Command::new(program);
        command.args(args).env(ANSWERS, directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        #[cfg(unix)]
        {
            // A group of its own: Ctrl-C is for the tuner, which must not take it for a crash of the compiler.
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        if let Some(out) = child.stdout.take() {
            let waiting = waiting.clone();
            std::thread::Builder::new().name("worker-out".into()).spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    match locked(&waiting).as_mut().and_then(|waiting| waiting.remove(&line)) {
                        Some(waiter) => drop(waiter.send(())),
                        None => tracing::debug!("worker printed: {line}"),
                    }
                }
                *locked(&waiting) = None;
            })?;
        }
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let mut listener = None;
        if let Some(mut err) = child.stderr.take() {
            let complaints = complaints.clone();
            listener = Some(std::thread::Builder::new().name("worker-err".into()).spawn(move || {
                let mut chunk = [0; 1024];
                while let Ok(n @ 1..) = err.read(&mut chunk) {
                    let mut tail = locked(&complaints);
                    tail.extend_from_slice(&chunk[..n]);
                    let surplus = tail.len().saturating_sub(4096);
                    tail.drain(..surplus);
                }
            })?);
        }
        let (child, input) = (Mutex::new(child), Mutex::new(input));
        Ok(Worker { child, input, waiting, complaints, listener, jobs: AtomicU64::new(0), directory })
    }

    /// Has work done; may be called from many threads where the worker takes several jobs at once.
    pub(crate) fn run(&self, work: Work, limit: Duration) -> std::io::Result<Ended<Binary>> {
        let answer = self.directory.path().join(self.jobs.fetch_add(1, Ordering::Relaxed).to_string());
        let done = format!("{DONE} {}", answer.display());
        let (send, receive) = mpsc::channel();
        match locked(&self.waiting).as_mut() {
            Some(waiting) => drop(waiting.insert(done, send)),
            None => return Ok(Ended::Crashed(self.last_words())),
        }
        let mut line = serde_json::to_string(&Request { work, answer: answer.clone(), limit })?;
        line.push('\n');
        let sent = match locked(&self.input).as_mut() {
            Some(input) => input.write_all(line.as_bytes()).and_then(|()| input.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        if sent.is_err() {
            return Ok(Ended::Crashed(self.last_words()));
        }
        match receive.recv_timeout(limit) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(Ended::TimedOut),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(Ended::Crashed(self.last_words())),
        }
        let data = std::fs::read(&answer)?;
        std::fs::remove_file(&answer)?;
        let head = data.iter().position(|&b| b == b'\n').unwrap_or(data.len());
        let (head, code) = data.split_at(head);
        Ok(match serde_json::from_slice(head)? {
            Answer::Made { log } => Ended::Made(Binary { log, code: code.get(1..).unwrap_or_default().to_vec() }),
            Answer::Refused(refusal) => Ended::Refused(refusal),
        })
    }

    fn last_words(&self) -> String {
        let status = match locked(&self.child).wait() {
            Ok(status) => status.to_string(),
            Err(e) => e.to_string(),
        };
        // Its last output may still be in the pipe. Processes that it started may hold the pipe open for ever.
        let end = Instant::now() + Duration::from_secs(1);
        while self.listener.as_ref().is_some_and(|l| !l.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let tail = locked(&self.complaints);
        format!("{status}\n{}", String::from_utf8_lossy(&tail)).trim_end().to_string()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(locked(&self.input).take());
        // The worker ends at the end of its input, unless all its threads hang.
        let mut child = locked(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// True in a process that was started as a worker.
pub(crate) fn is_worker() -> bool {
    std::env::var_os(ANSWERS).is_some()
}

/// What a worker does.
pub(crate) trait Serve: Sync {
    /// True for jobs that run beside others, each on a thread of its own.
    fn runs_in_parallel(&self, work: &Work) -> bool;
    /// Does a job.
    fn run(&self, work: &Work) -> Result<Binary, Refusal>;
}

/// A job, or why what came is none.
type Taken = std::io::Result<Request>;

/// The next job of the input; nothing at its end.
fn take(input: &mut impl BufRead) -> Option<Taken> {
    let mut line = String::new();
    if input.read_line(&mut line).ok()? == 0 {
        return None;
    }
    Some(serde_json::from_str(&line).map_err(Into::into))
}

/// Ends a worker whose tuner is gone, whatever it is at, and removes the folder of its answers.
fn leave() -> ! {
    std::env::var_os(ANSWERS).map(std::fs::remove_dir_all);
    exit_now(0);
}

/// Returns when this process has another parent than at first: its own has ended.
#[cfg(unix)]
fn outlive_parent(first: u32) {
    while std::os::unix::process::parent_id() == first {
        std::thread::sleep(POLL);
    }
}

/// A worker's life: does jobs, until its tuner is gone, however that ended. Then its input ends, unless a process that the tuner forked holds
/// the pipe, and it has another parent.
pub(crate) fn serve(server: &impl Serve) -> i32 {
    let (send, requests) = mpsc::channel::<Taken>();
    let listen = move || {
        let mut input = std::io::stdin().lock();
        while let Some(taken) = take(&mut input) {
            if send.send(taken).is_err() {
                return;
            }
        }
        leave();
    };
    #[cfg(unix)]
    {
        let parent = std::os::unix::process::parent_id();
        let watch = move || {
            outlive_parent(parent);
            leave();
        };
        if let Err(e) = std::thread::Builder::new().name("parent".into()).spawn(watch) {
            eprintln!("no thread to watch the parent: {e}");
            return 1;
        }
    }
    if let Err(e) = std::thread::Builder::new().name("requests".into()).spawn(listen) {
        eprintln!("no thread to listen for jobs: {e}");
        return 1;
    }
    std::thread::scope(|scope| {
        for taken in requests {
            let request = match taken {
                Ok(taken) => taken,
                Err(e) => {
                    eprintln!("not a job of build {BUILD}: {e}");
                    exit_now(2);
                }
            };
            let beside = server.runs_in_parallel(&request.work);
            let work = move || {
                if let Err(e) = answer(&request, |work| server.run(work)) {
                    eprintln!("{}: {e}", request.answer.display());
                    exit_now(3);
                }
                println!("{DONE} {}", request.answer.display());
            };
            if !beside {
                work();
            } else if let Err(e) = std::thread::Builder::new().name("job".into()).stack_size(STACK).spawn_scoped(scope, work) {
                eprintln!("no thread for a job: {e}");
                exit_now(1);
            }
        }
    });
    1
}

fn answer(request: &Request, run: impl FnOnce(&Work) -> Result<Binary, Refusal>) -> std::io::Result<()> {
    // Should the tuner die while the compiler hangs, nobody would end this process: it ends itself.
    let (finished, watch) = mpsc::channel::<()>();
    let limit = request.limit + Duration::from_secs(5);
    std::thread::Builder::new().spawn(move || {
        if watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            exit_now(4);
        }
    })?;
    let (head, code) = match run(&request.work) {
        Ok(Binary { log, code }) => (Answer::Made { log }, code),
        Err(refusal) => (Answer::Refused(refusal), Vec::new()),
    };
    drop(finished);
    let mut file = std::fs::File::create(&request.answer)?;
    file.write_all(serde_json::to_string(&head)?.as_bytes())?;
    file.write_all(b"\n")?;
    file.write_all(&code)
}
