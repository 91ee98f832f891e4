//! Compile workers: processes that run the vendor's compiler, so that its crash or hang costs one candidate.
//!
//! A worker is this same executable under a hidden subcommand that calls [`crate::compile_worker_main`]. It takes one job per
//! line on its input (JSON), leaves the result in a file the job names, and answers with one line on its output; lines
//! that compilers themselves print there are skipped. Workers live on between jobs; one that dies or overruns its limit
//! is replaced by the next job.

use crate::job::{Binary, Refusal, Work};
use crate::process::leave;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// First word of the line a worker answers with.
const DONE: &str = "tilewright-compile-done";
/// The variable that tells a worker the folder of its answers.
const ANSWERS: &str = "TILEWRIGHT_COMPILE_ANSWERS";

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

    /// Sees that so many workers run, and has those that are started for it do some work, so that they load what it takes. A worker
    /// that does not start or does not do it is left out: whoever needs one will hear why.
    pub(crate) fn prepare(&self, count: usize, work: &Work, limit: Duration) {
        let there = self.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        let start = || {
            let Ok(mut worker) = Worker::start(&self.program, &self.args) else { return };
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

    /// Has work done in a worker.
    pub(crate) fn run(&self, work: Work, limit: Duration) -> Ended<Binary> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let worker = match idle {
            Some(worker) => Ok(worker),
            None => Worker::start(&self.program, &self.args),
        };
        let mut worker = match worker {
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

/// A running worker process. Dropping it ends the process.
#[derive(Debug)]
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    complaints: Arc<Mutex<Vec<u8>>>,
    /// Reads the complaints, until the process has ended.
    listener: Option<JoinHandle<()>>,
    jobs: u64,
    directory: tempfile::TempDir,
}

impl Worker {
    fn start(program: &Path, args: &[OsString]) -> std::io::Result<Worker> {
        let directory = tempfile::tempdir()?;
        let mut command = Command::new(program);
        command.args(args).env(ANSWERS, directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        {
            // A group of its own: Ctrl-C is for the tuner, which must not take it for a crash of the compiler.
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let (send, lines) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            std::thread::Builder::new().name("worker-out".into()).spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        break;
                    }
                }
            })?;
        }
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let mut listener = None;
        if let Some(mut err) = child.stderr.take() {
            let complaints = complaints.clone();
            listener = Some(std::thread::Builder::new().name("worker-err".into()).spawn(move || {
                let mut chunk = [0; 1024];
                while let Ok(n @ 1..) = err.read(&mut chunk) {
                    let mut tail = complaints.lock().unwrap_or_else(PoisonError::into_inner);
                    tail.extend_from_slice(&chunk[..n]);
                    let surplus = tail.len().saturating_sub(4096);
                    tail.drain(..surplus);
                }
            })?);
        }
        Ok(Worker { child, input, lines, complaints, listener, jobs: 0, directory })
    }

    fn run(&mut self, work: Work, limit: Duration) -> std::io::Result<Ended<Binary>> {
        self.jobs += 1;
        let answer = self.directory.path().join(format!("{}", self.jobs));
        let done = format!("{DONE} {}", answer.display());
        let mut line = serde_json::to_string(&Request { work, answer: answer.clone(), limit })?;
        line.push('\n');
        let sent = match &mut self.input {
            Some(input) => input.write_all(line.as_bytes()).and_then(|()| input.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        if sent.is_err() {
            return Ok(Ended::Crashed(self.last_words()));
        }
        let end = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line == done => break,
                Ok(line) => tracing::debug!("compile worker printed: {line}"),
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(Ended::TimedOut),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(Ended::Crashed(self.last_words())),
            }
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

    fn last_words(&mut self) -> String {
        let status = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(e) => e.to_string(),
        };
        // Its last output may still be in the pipe. Processes that it started may hold the pipe open for ever.
        let end = Instant::now() + Duration::from_secs(1);
        while self.listener.as_ref().is_some_and(|l| !l.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let tail = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{status}\n{}", String::from_utf8_lossy(&tail)).trim_end().to_string()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.input.take());
        // It ends by itself at the end of its input, unless all of it hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker's life: answers jobs by `run`. When its input ends its tuner is gone, however that ended: whatever the worker is at, it
/// removes the folder of its answers and ends.
pub(crate) fn serve(mut run: impl FnMut(&Work) -> Result<Binary, Refusal>) -> i32 {
    let (send, requests) = mpsc::channel();
    let listen = move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.send(serde_json::from_str::<Request>(&line)).is_err() {
                return;
            }
        }
        std::env::var_os(ANSWERS).map(std::fs::remove_dir_all);
        leave(0);
    };
    if let Err(e) = std::thread::Builder::new().name("requests".into()).spawn(listen) {
        eprintln!("no thread to listen for jobs: {e}");
        return 1;
    }
    for request in requests {
        let request = match request {
            Ok(request) => request,
            Err(e) => {
                eprintln!("not a compile job: {e}");
                return 2;
            }
        };
        if let Err(e) = answer(&request, &mut run) {
            eprintln!("{}: {e}", request.answer.display());
            return 3;
        }
        println!("{DONE} {}", request.answer.display());
    }
    1
}

fn answer(request: &Request, run: impl FnOnce(&Work) -> Result<Binary, Refusal>) -> std::io::Result<()> {
    // Should the tuner die while the compiler hangs, nobody would end this process: it ends itself.
    let (finished, watch) = mpsc::channel::<()>();
    let limit = request.limit + Duration::from_secs(5);
    std::thread::Builder::new().spawn(move || {
        if watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            leave(4);
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
